import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { formatProblem, parsePolicy } from '../../src/policy/parse.js';

const read = (n: string) =>
  readFileSync(fileURLToPath(new URL(`./good/${n}`, import.meta.url)), 'utf8');
test.each(['policy.yaml', 'policy-small.yaml'])('%s', (n) => {
  const { policy, problems, warnings } = parsePolicy(read(n), n);
  expect(problems.map(formatProblem)).toEqual([]);
  console.log(policy?.canonical, policy?.content, warnings.map(formatProblem));
  const again = parsePolicy(policy!.canonical, 'x');
  expect(again.problems.map(formatProblem)).toEqual([]);
  expect(again.policy!.canonical).toBe(policy!.canonical);
  console.log(JSON.stringify(policy, null, 1).slice(0, 1500));
});
