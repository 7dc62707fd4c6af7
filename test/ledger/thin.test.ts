import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.js';
import type { AdmitRequest, Terms } from '../../src/ledger/types.js';
import { type TestRedis, startRedis } from '../support/redis.js';

const terms: Terms = {
  limits: [
    {
      name: '',
      burst: 1000,
      refill: null,
      maxReservation: 800,
      maxOverdraft: 500,
      executionHardCap: 2000,
      ownCost: false,
    },
  ],
  epochMs: 86_400_000,
  holdTtlMs: 30_000,
  usageDeadlineMs: 600_000,
  retentionMs: 86_400_000,
  onBreach: 'freezeLine',
  freezeForMs: 0,
};

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

function request(key: string, units: number): AdmitRequest {
  return {
    subject: 'acme',
    route: 'chat',
    key,
    attempt: 1,
    digest: key.padEnd(43, 'x'),
    units: [units],
    budget: {
      generation: 1,
      content: 'c',
      terms,
      factor: { numerator: 1, denominator: 1 },
    },
    shadow: false,
    closed: false,
    routeFrozenUntil: 0,
    again: false,
    operation: randomBytes(16).toString('base64url'),
  };
}

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
