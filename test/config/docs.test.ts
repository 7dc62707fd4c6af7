import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { environmentName, FIELDS } from '../../src/config/fields.js';

it('documents every setting by both of its names', () => {
  const page = readFileSync(fileURLToPath(new URL('../../docs/cli.md', import.meta.url)), 'utf8');
  const rows = [...page.matchAll(/^\| `([A-Za-z.]+)` +\| `(EARMARK_[A-Z_]+)` +\|/gm)];
  expect(rows.map(([, field, name]) => [field, name])).toEqual(
    Object.keys(FIELDS).map((field) => [field, environmentName(field)]),
  );
});
