/** A replica that takes over without the latest writes: seen, frozen, and what is used all the same is booked. */
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { auditLine } from '../../src/ledger/audit.js';
import { Ledger } from '../../src/ledger/ledger.js';
import type { Outcome } from '../../src/ledger/types.js';
import { FaultProxy } from '../fault/proxy.js';
import { budgetOf, Line, limitTerms, operationOf } from '../model/samples.js';
import { ready, told } from '../support/ledger.js';
import { type Kept, keep } from '../support/quiet.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const budget = budgetOf([limitTerms({ burst: 1000 })], { holdTtlMs: 3_600_000 });
const line = new Line();
const { subject, route } = line;
const { tag } = line.empty();

let primary: TestRedis;
let replica: TestRedis;
let proxy: FaultProxy;
let straight: Ledger;
let kept: Kept;
let gateway: Ledger;

async function freePort(): Promise<string> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return String(port);
}

async function ledgerOn(path: string, seen?: Kept): Promise<Ledger> {
  const watching = seen === undefined ? {} : { log: seen, meter: seen };
  const ledger = new Ledger({ redis: { path }, prefix: 'f:', timeoutMs: 2000, ...watching });
  await ready(ledger);
  return ledger;
}

beforeEach(async () => {
  const port = await freePort();
  primary = await startRedis({ args: ['--port', port, '--repl-diskless-sync-delay', '0'] });
  replica = await startRedis({ args: ['--replicaof', '127.0.0.1', port] });
  straight = await ledgerOn(replica.socket);
  proxy = await FaultProxy.listen(join(primary.folder, 'proxy'), primary.socket);
  kept = keep();
  gateway = await ledgerOn(proxy.path, kept);
});
afterEach(async () => {
  await gateway.stop();
  await straight.stop();
  await proxy.stop();
  await replica.stop();
  await primary.stop();
});

function admit(ledger: Ledger, key: string, units: number): Promise<Outcome> {
  const event = line.reserve(0, key, units, { operation: key, budget });
  if (event.op !== 'admit') throw new Error('unreachable');
  return ledger.admit({ ...event, subject, route });
}

async function replicated(seq: number): Promise<void> {
  await until(async () => (await straight.dump(tag))[0]?.seq === seq, 'it is replicated', 20_000);
}

/** The replica loses what comes now, and is then where the name leads. */
async function takeOver(lost: () => Promise<void>): Promise<void> {
  await straight.redis.call('REPLICAOF', 'NO', 'ONE');
  await lost();
  proxy.target = replica.socket;
  const closed = new Promise((resolve) => gateway.redis.once('close', resolve));
  proxy.cutAll();
  await closed;
  await until(() => gateway.redis.status === 'ready', 'the gateway is there', 20_000);
}

test('a line that went back is frozen at the first answer that shows it, and reported', async () => {
  expect(told(await admit(gateway, 'a', 300))).toBe('moved STARTED');
  await replicated(1);
  let forgotten: Outcome | undefined;
  await takeOver(async () => {
    await admit(gateway, 'b', 300);
    forgotten = await admit(gateway, 'c', 300);
  });
  expect(forgotten).toMatchObject({ kind: 'moved', line: { seq: 3 } });

  await admit(gateway, 'd', 100);
  await until(async () => (await straight.dump(tag))[0]?.frozenUntil === -1, 'it is frozen');
  expect(told(await admit(gateway, 'e', 100))).toBe('limited frozen');
  expect(kept.metrics.get('earmark_ledger_lines_fallen_total')).toBe(1);

  // The execution that the ledger forgot comes to its end.
  if (forgotten?.kind !== 'moved') throw new Error('unreachable');
  const { reservation, reservedAt } = forgotten.receipt;
  const metadata = { subject, route, shadow: false, reservedAt, unreserved: false, budget };
  const evidence = { reservation, operation: operationOf('c'), metadata };
  const settle = { ...evidence, actual: [250], grade: 'reported' as const };
  expect(told(await gateway.settle(settle))).toBe('moved SETTLED');
  expect(told(await gateway.settle(settle))).toBe('same SETTLED');
  const [dump] = await straight.dump(tag);
  expect(dump!.pages[0]!.books[0]!.counters).toMatchObject({ spent: 250, reserved: 400 });
  expect(auditLine(dump!, false).problems).toEqual([]);

  // Reconciled, it runs again and is not frozen anew.
  await straight.unfreeze({ subject, route }, false);
  expect(told(await admit(gateway, 'g', 100))).toBe('moved STARTED');
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(told(await admit(gateway, 'h', 100))).toBe('moved STARTED');
});

test('a replica that has everything changes nothing', async () => {
  await admit(gateway, 'a', 300);
  await admit(gateway, 'b', 300);
  await replicated(2);
  await takeOver(async () => undefined);
  expect(told(await admit(gateway, 'c', 300))).toBe('moved STARTED');
  expect(told(await admit(gateway, 'd', 300))).toBe('limited capacity');
  expect(kept.metrics.get('earmark_ledger_lines_fallen_total')).toBeUndefined();
});
