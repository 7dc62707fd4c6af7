/** docs/failures.md: each row names a test that there is. */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

const root = new URL('../../', import.meta.url);
const page = readFileSync(new URL('docs/failures.md', root), 'utf8');
const rows = page
  .split('\n')
  .filter((line) => line.startsWith('| '))
  .slice(2)
  .map((line) =>
    line
      .slice(2, -2)
      .split(' | ')
      .map((cell) => cell.trim()),
  );

test('there are some', () => {
  expect(rows.length).toBeGreaterThan(25);
});

test.each(rows)('%s', (...cells) => {
  expect(cells.length).toBe(5);
  expect(cells.filter((cell) => cell === '')).toEqual([]);
  const [, file, words] = /^`([\w/]+)`: (.+)$/.exec(cells[4]!)!;
  const text = readFileSync(new URL(`test/${file}.test.ts`, root), 'utf8');
  const titles = [...text.matchAll(/\(\s*(['`])((?:(?!\1).)*)\1,\s*(?:async\s*)?\(/g)];
  expect(
    titles.map(([, , title]) => title!).filter((title) => title.includes(words!)),
  ).toHaveLength(1);
});
