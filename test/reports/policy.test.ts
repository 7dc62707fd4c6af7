/** Faults that others had with their configuration. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Documents } from '../../src/ledger/documents.js';
import { Ledger } from '../../src/ledger/ledger.js';
import { parsePolicy } from '../../src/policy/parse.js';
import { facts } from '../support/facts.js';
import { ready } from '../support/ledger.js';
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

test('five thousand budgets are read, published and found', async () => {
  // Comments count for nothing, but make it as large as such a file gets.
  const budgets = Array.from(
    { length: 5000 },
    (_none, at) => `  - route: route-${at} # ${'x'.repeat(900)}
    match: context.route == "route-${at}"
    subject: request.headers["x-tenant"]
    burst: 1000`,
  );
  const text = `schema: admissionBudget.v1\ngeneration: 1\nunmatched: refuse\nbudgets:\n${budgets.join('\n')}\n`;
  expect(text.length).toBeGreaterThan(5_000_000);
  const { policy, problems } = parsePolicy(text, 'policy.yaml');
  expect(problems).toEqual([]);
  const documents = new Documents(ledger.redis, 'earmark:');
  await documents.publish(policy!);
  const stored = await documents.policy(1);
  const again = parsePolicy(stored!.canonical, 'stored').policy!;
  expect([again.content, again.budgets.length]).toEqual([policy!.content, 5000]);
  const last = facts({ context: { route: 'route-4999' } });
  expect(again.budgets.find((budget) => budget.match(last))!.route).toBe('route-4999');
}, 120_000);
