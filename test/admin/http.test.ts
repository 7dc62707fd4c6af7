/** The admin port over real HTTP, before a real ledger. */
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { AdminServer } from '../../src/admin/http.js';
import { Ledger } from '../../src/ledger/ledger.js';
import type { AdmitRequest } from '../../src/ledger/types.js';
import { type Kept, keep } from '../support/quiet.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

let server: TestRedis;
let ledger: Ledger;
let admin: AdminServer;
let address = '';
let kept: Kept;
let missing: string[] = [];
let frozen: unknown[][] = [];

beforeAll(async () => {
  server = await startRedis();
  ledger = new Ledger({ redis: { path: server.socket }, prefix: 'p:', timeoutMs: 500 });
  await new Promise((resolve) => ledger.redis.once('ready', resolve));
  kept = keep();
  admin = new AdminServer({
    ledger,
    missing: async () => missing,
    metrics: async () => ({ type: 'text/plain', body: 'earmark_x 1\n' }),
    freezeRoute: async (...args) => {
      frozen.push(args);
    },
    log: kept,
    meter: kept,
  });
  address = await admin.listen('127.0.0.1:0');
});

beforeEach(() => {
  missing = [];
  frozen = [];
});

afterAll(async () => {
  await admin.stop();
  await ledger.stop();
  await server.stop();
});

let keys = 0;

async function held(): Promise<{ reservation: string; operation: string }> {
  keys++;
  const request: AdmitRequest = {
    subject: `s${keys}`,
    route: 'chat',
    key: 'k',
    attempt: 1,
    digest: 'x'.repeat(43),
    units: [600],
    budget: {
      generation: 1,
      content: 'c',
      factor: { numerator: 1, denominator: 1 },
      terms: {
        limits: [
          {
            name: '',
            burst: 1000,
            refill: null,
            maxReservation: 1000,
            maxOverdraft: 100,
            executionHardCap: null,
            ownCost: false,
          },
        ],
        epochMs: 86_400_000,
        holdTtlMs: 30_000,
        usageDeadlineMs: 600_000,
        retentionMs: 86_400_000,
        onBreach: 'freezeRoute',
        freezeForMs: 0,
      },
    },
    shadow: false,
    closed: false,
    routeFrozenUntil: 0,
    again: false,
    operation: 'op',
  };
  const outcome = await ledger.admit(request);
  if (outcome.kind !== 'moved') throw new Error('not admitted');
  return { reservation: outcome.receipt.reservation, operation: 'op' };
}

async function post(body: unknown) {
  const answer = await fetch(`http://${address}/v1/receipts`, {
    method: 'POST',
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  return { status: answer.status, body: (await answer.json()) as Record<string, unknown> };
}

it('settles a receipt once, however often it comes', async () => {
  const use = { ...(await held()), units: 200 };
  const first = await post(use);
  expect(first).toMatchObject({
    status: 200,
    body: { moved: true, receipt: { state: 'SETTLED', actual: [200], evidence: 'reported' } },
  });
  expect(await post(use)).toMatchObject({ status: 200, body: { moved: false } });
  expect(await post({ ...use, units: 201 })).toMatchObject({
    status: 409,
    body: {
      error: { message: expect.stringMatching(/^conflict: another amount .* operator/) },
      receipt: { actual: [200] },
    },
  });
  expect(kept.metrics.get('earmark_receipts_total 200')).toBe(2);
  expect(kept.metrics.get('earmark_receipts_total 409')).toBe(1);
});

it('ends a USAGE_UNKNOWN, and says how long it lasted', async () => {
  const use = await held();
  await ledger.unknown({ ...use, least: [] });
  kept.metrics.delete('earmark_unknown_resolved_seconds chat');
  const known = await post({ ...use, units: 40 });
  expect(known.body).toMatchObject({ moved: true, receipt: { state: 'SETTLED', actual: [40] } });
  expect(kept.metrics.get('earmark_unknown_resolved_seconds chat')).toBeGreaterThanOrEqual(0);
  // One that was never unknown has nothing to converge.
  kept.metrics.delete('earmark_unknown_resolved_seconds chat');
  await post({ ...(await held()), units: 1 });
  expect(kept.metrics.has('earmark_unknown_resolved_seconds chat')).toBe(false);
});

it('freezes the route of a breach', async () => {
  const use = await held();
  const settled = await post({ ...use, units: 5000 });
  expect(settled.body.receipt).toMatchObject({ state: 'SETTLED_WITH_DEBT', breach: true });
  await until(() => frozen.length === 1);
  expect(frozen).toEqual([['chat', use.reservation.slice(3, 25), -1]]);
});

const NONE = `rl-${'A'.repeat(22)}-${'B'.repeat(22)}`;
it.each([
  [
    404,
    { reservation: NONE, operation: 'op', units: 1 },
    'not-found: no such receipt is kept: check the ID',
    null,
  ],
  [400, { reservation: 'x', operation: 'op', units: 1 }, 'is no ID', 'reservation'],
  [400, { operation: 'op', units: 1 }, 'is missing', 'reservation'],
  [400, { reservation: NONE, units: 1 }, 'is missing', 'operation'],
  [400, { reservation: NONE, operation: 'o'.repeat(129), units: 1 }, 'longer than', 'operation'],
  [400, { reservation: NONE, operation: 'op' }, 'whole number', 'units'],
  [400, { reservation: NONE, operation: 'op', units: 1.5 }, 'whole number', 'units'],
  [400, { reservation: NONE, operation: 'op', units: -1 }, 'whole number', 'units'],
  [400, { reservation: NONE, operation: 'op', units: 2 ** 53 }, 'whole number', 'units'],
  [400, 'units=1', 'no JSON', null],
  [400, '[1]', 'no JSON object', null],
  [400, 'null', 'no JSON object', null],
  [413, ' '.repeat(65_537), 'longer than 65536 bytes', null],
])('answers %i to %j', async (status, body, message, field) => {
  expect(await post(body)).toMatchObject({
    status,
    body: { error: { message: expect.stringContaining(message), field } },
  });
});

it('says what keeps it from being ready', async () => {
  const ready = await fetch(`http://${address}/readyz`);
  expect([ready.status, await ready.json()]).toEqual([200, { ready: true, missing: [] }]);
  missing = ['no policy'];
  const not = await fetch(`http://${address}/readyz`);
  expect([not.status, await not.json()]).toEqual([503, { ready: false, missing }]);
  expect((await fetch(`http://${address}/healthz`)).status).toBe(200);
});

it('has no other paths, and each takes its own method', async () => {
  expect(await (await fetch(`http://${address}/metrics`)).text()).toBe('earmark_x 1\n');
  expect((await fetch(`http://${address}/metrics?x=1`, { method: 'HEAD' })).status).toBe(200);
  expect((await fetch(`http://${address}/constructor`)).status).toBe(404);
  expect((await fetch(`http://${address}/v1/receipts`)).status).toBe(405);
  expect((await fetch(`http://${address}/readyz`, { method: 'POST' })).status).toBe(405);
});

it('answers 503 while the ledger does not answer', async () => {
  const use = { ...(await held()), units: 1 };
  server.process.kill('SIGSTOP');
  try {
    expect(await post(use)).toMatchObject({ status: 503 });
  } finally {
    server.process.kill('SIGCONT');
  }
  await until(async () => (await post(use)).status === 200);
});
