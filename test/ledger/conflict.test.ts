import { afterAll, beforeAll, expect, test } from 'vitest';
import { reservationCommand } from '../../src/cli/reservation.js';
import { lineTag, newOperation, receiptId, reservationId } from '../../src/core/ids.js';
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

test('a settlement that contradicts the receipt is refused, and kept for the operator', async () => {
  const operation = newOperation();
  const admitted = await ledger.admit({ ...request('k', 600), operation });
  if (admitted.kind !== 'moved') throw new Error(admitted.kind);
  const { reservation } = admitted.receipt;
  const settle = (actual: number) =>
    ledger.settle({ reservation, operation, actual: [actual], grade: 'reported' });
  expect((await settle(200)).kind).toBe('moved');
  expect(await settle(300)).toMatchObject({ kind: 'refused', why: 'conflict' });
  expect((await settle(200)).kind).toBe('same');
  await expect
    .poll(() => ledger.conflicts(reservation))
    .toMatchObject([{ operation, actual: [300], grade: 'reported' }]);
  const shown = await reservationCommand(['show', reservation], {
    ledger: async () => ledger,
  } as unknown as Parameters<typeof reservationCommand>[1]);
  expect(shown.text).toContain('300 reported');
  expect(await ledger.conflicts('rl-other')).toEqual([]);
});

test('a reserve that its own use has overtaken holds nothing', async () => {
  const operation = newOperation();
  const asked = { ...request('late', 600), operation, subject: 'overtaken' };
  const { subject, route, budget } = asked;
  const tag = lineTag(subject, route);
  const reservation = reservationId(tag, receiptId(subject, route, asked.key, 1));
  const metadata = { subject, route, shadow: false, reservedAt: 1, unreserved: true, budget };
  const used = { reservation, operation, actual: [250], grade: 'reported', metadata } as const;
  expect((await ledger.settle(used)).kind).toBe('moved');
  expect(await ledger.admit(asked)).toMatchObject({ kind: 'refused', why: 'state' });
  const [line] = await ledger.dump(tag);
  expect(line!.pages[0]!.books[0]!.counters).toMatchObject({ reserved: 0, spent: 250 });
  // Another Check of the same request is a question of its own.
  const again = await ledger.admit({ ...asked, operation: newOperation() });
  expect(again.kind).toBe('moved');
});
