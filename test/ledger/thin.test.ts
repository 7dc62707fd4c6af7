import { afterAll, beforeAll, expect, test } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { request } from '../support/thin.js';

let redis: TestRedis;
let ledger: Ledger;
beforeAll(async () => {
  redis = await startRedis();
  ledger = new Ledger({ redis: { path: redis.socket }, prefix: 'earmark:', timeoutMs: 1000 });
  await new Promise((resolve) => ledger.redis.once('ready', resolve));
});
afterAll(async () => {
  await ledger.stop();
  await redis.stop();
});

test('three gateways ask for 600 of 1000 at once: one is admitted; 200 used leave 800', async () => {
  const outcomes = await Promise.all(['a', 'b', 'c'].map((key) => ledger.admit(request(key, 600))));
  const kinds = outcomes.map(({ kind }) => kind).sort();
  expect(kinds, JSON.stringify(outcomes)).toEqual(['limited', 'limited', 'moved']);
  const admitted = outcomes.find((outcome) => outcome.kind === 'moved')!;
  if (admitted.kind !== 'moved') throw new Error('unreachable');
  const { reservation, operation } = admitted.receipt;
  const settled = await ledger.settle({ reservation, operation, actual: [200], grade: 'reported' });
  expect(settled).toMatchObject({ kind: 'moved', receipt: { state: 'SETTLED', actual: [200] } });
  const [line] = await ledger.dump(reservation.slice(3, 25));
  expect(line!.pages[0]!.books[0]!.counters).toMatchObject({ available: 800, spent: 200 });
});
