/** docs/reports.md against what it names: each number once, each test there, nothing put off without saying to when. */
import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

const root = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url));

interface Row {
  readonly number: number;
  readonly fault: string;
  readonly tests: readonly (readonly [file: string, name: string])[];
  readonly waits: readonly string[];
}

const WAITS = [
  'policy',
  'estimates and usage',
  'operating and metrics',
  'rate-limit descriptors',
  'Cluster and failover',
];
/** Reports that were taken out of the list when they turned out to be none. */
const GONE = [20, 40, 41, 58, 65, 67, 68, 79, 82, 83, 90, 96];

const rows: Row[] = [
  ...readFileSync(root('docs/reports.md'), 'utf8').matchAll(/^\| +(\d+) +\| (.+?) \| (.+?) \|$/gm),
].map(([, number, fault, here]) => ({
  number: Number(number),
  fault: fault!.trim(),
  tests: [...here!.matchAll(/`(test\/[^`]+)`: "([^"]+)"/g)].map(([, file, name]) => [file!, name!]),
  waits: [...here!.matchAll(/waits for _([^_]+)_/g)].map(([, what]) => what!),
}));

test('each report stands there once, in order', () => {
  const all = Array.from({ length: 120 }, (_none, at) => at + 1);
  expect(rows.map(({ number }) => number)).toEqual(all.filter((one) => !GONE.includes(one)));
  expect(rows).toHaveLength(108);
});

test('each has a test, or says what it waits for', () => {
  expect(rows.filter(({ tests, waits }) => tests.length + waits.length === 0)).toEqual([]);
  expect(rows.flatMap(({ waits }) => waits).filter((what) => !WAITS.includes(what))).toEqual([]);
  expect(rows.filter(({ tests }) => tests.length === 0).length).toBeLessThanOrEqual(5);
});

/** As it stands in a call: a name in quotes, or a line of a table of cases. */
function isThere([file, name]: readonly [string, string]): boolean {
  if (!existsSync(root(file))) return false;
  const text = readFileSync(root(file), 'utf8');
  return [`'${name}'`, `"${name}"`, `\`${name}\``].some((quoted) => text.includes(quoted));
}

test('each named test is there', () => {
  const missing = rows.flatMap(({ number, tests }) =>
    tests.filter((one) => !isThere(one)).map(([file, name]) => `${number}: ${file}: ${name}`),
  );
  expect(missing).toEqual([]);
});
