/** Faults that others had with their configuration. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Documents } from '../../src/ledger/documents.js';
import { Ledger } from '../../src/ledger/ledger.js';
import { parsePolicy } from '../../src/policy/parse.js';
import { parseRollout } from '../../src/policy/rollout.js';
import { PolicyWatch } from '../../src/policy/watch.js';
import { facts } from '../support/facts.js';
import { ready } from '../support/ledger.js';
import { keep } from '../support/quiet.js';
import { startRedis, type TestRedis } from '../support/redis.js';

let redis: TestRedis;
let ledger: Ledger;

beforeAll(async () => {
  redis = await startRedis();
  ledger = new Ledger({ redis: { path: redis.socket }, prefix: 'earmark:', timeoutMs: 10_000 });
  await ready(ledger);
});
afterAll(async () => {
  await ledger.stop();
  await redis.stop();
});

const budgets = (length: number, more = ''): string =>
  Array.from(
    { length },
    (_none, at) => `  - route: route-${at}${more}
    match: context.route == "route-${at}"
    subject: request.headers["x-tenant"]
    burst: 1000
`,
  ).join('');
const document = (list: string): string =>
  `schema: admissionBudget.v1\ngeneration: 1\nunmatched: refuse\nbudgets:\n${list}`;

test('five thousand budgets, and a document of 5 MB, are refused with the limit named', () => {
  const text = document(budgets(5000, ` # ${'x'.repeat(900)}`));
  expect(text.length).toBeGreaterThan(5_000_000);
  const { policy, problems } = parsePolicy(text, 'policy.yaml');
  expect(policy).toBeUndefined();
  expect(problems.map(({ message }) => message)).toEqual(['is above 1 MiB: split it']);
  const many = parsePolicy(document(budgets(5000)), 'policy.yaml');
  expect(many.policy).toBeUndefined();
  expect(many.problems.map(({ message }) => message)).toEqual([
    'has 5000 budgets: at most 1000 may be',
  ]);
});

test('a thousand budgets and a long rollout come into force, longer as they are stored', async () => {
  const { policy, problems } = parsePolicy(document(budgets(1000)), 'policy.yaml');
  expect(problems).toEqual([]);
  const routes = Array.from(
    { length: 15_000 },
    (_none, at) => `  route-${at}: { mode: enforce }\n`,
  );
  const text = `schema: rollout.v1\ngeneration: 1\ndefault: { mode: "off" }\nroutes:\n${routes.join('')}`;
  const { rollout } = parseRollout(text, 'rollout.yaml');
  for (const { canonical } of [policy!, rollout!])
    expect(canonical.length).toBeGreaterThan(2 ** 20);
  const documents = new Documents(ledger.redis, 'earmark:');
  await documents.publish(policy!);
  await documents.applyRollout(rollout!);
  const kept = keep();
  const watch = new PolicyWatch({ documents, log: kept, meter: kept });
  await watch.start();
  watch.stop();
  expect(watch.problem()).toBeUndefined();
  const view = watch.view();
  expect(view.policy!.content).toBe(policy!.content);
  expect(Object.keys(view.rollout!.routes)).toHaveLength(15_000);
  const last = facts({ context: { route: 'route-999' } });
  expect(view.policy!.budgets.find((budget) => budget.match(last))!.route).toBe('route-999');
}, 120_000);
