/** A Check whose answer from the ledger gets lost, and the log entry that sets it right whatever became of it. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createCheck } from '../../src/envoy/check.js';
import { LedgerUnavailable } from '../../src/ledger/types.js';
import { parseRollout } from '../../src/policy/rollout.js';
import { Faults } from '../support/fault.js';
import {
  type Answer,
  type Gateway,
  type Json,
  policyOf,
  startGateway,
} from '../support/gateway.js';
import { keep } from '../support/quiet.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const policy = `
schema: admissionBudget.v1
generation: 5
unmatched: refuse
budgets:
  - { route: chat, subject: 'request.headers["x-tenant"]', burst: 1000, estimate: { fixed: 600 } }
`;
const enforce = '{ schema: rollout.v1, generation: 5, default: { mode: enforce } }';
const shadow = '{ schema: rollout.v1, generation: 5, default: { mode: shadow } }';

let redis: TestRedis;
let gateway: Gateway;
const faults = new Faults();
let tenants = 0;
let tenant = '';

beforeAll(async () => {
  redis = await startRedis();
  gateway = await startGateway({
    ...{ socket: redis.socket, folder: redis.folder, policy, rollout: enforce },
    between: (ledger) => faults.between(ledger),
  });
});
afterAll(async () => {
  await gateway.stop();
  await redis.stop();
});
beforeEach(() => {
  tenant = `tenant-${++tenants}`;
  gateway.rollout = enforce;
  faults.calls.length = 0;
});
afterEach(() => faults.plan.clear());

const path = '/v1/chat';
/** The gateway answers in its own time, which no busy machine can make too late. */
const NO_DEADLINE = 0;
const ask = (deadlineMs = 5000) => {
  const headers = { 'x-tenant': tenant, 'x-request-id': `request-${tenant}` };
  return gateway.check({ method: 'POST', path, headers }, { deadlineMs });
};

function entryOf(answer: Answer, common: Json, response: Json): Json {
  const ours = { 'envoy.filters.http.ext_authz': { ...answer.metadata, ext_authz_duration: 1 } };
  const usage = { 'llm.usage': { total_tokens: 250 } };
  const metadata = { filter_metadata: { ...ours, ...usage } };
  return {
    common_properties: { metadata, access_log_type: 'DownstreamEnd', ...common },
    request: { request_method: 'POST', path, request_id: `request-${tenant}` },
    response,
  };
}

/** What Envoy logs with failure_mode_allow: false, and with true. */
const stopped = (answer: Answer) =>
  entryOf(answer, {}, { response_code: 503, response_code_details: 'ext_authz_error' });
const forwarded = (answer: Answer) =>
  entryOf(
    answer,
    { upstream_wire_bytes_sent: '300', time_to_last_upstream_rx_byte: '0.1s' },
    { response_code: 200, response_code_details: 'via_upstream' },
  );

const receiptOf = async (answer: Answer) =>
  (await gateway.ledger.get(answer.metadata.reservation))?.receipt;

async function counters(answer: Answer) {
  const dumps = await gateway.ledger.dump(String(answer.metadata.reservation).slice(3, 25));
  const line = dumps.find((dump) => dump.shadow === answer.metadata.shadow);
  return line?.pages.at(-1)?.books[0]?.counters;
}

describe('asked again until it is known', () => {
  test.each([
    [['lost'] as const, 2],
    [['away'] as const, 2],
    [['away', 'lost', 'lost', 'away'] as const, 5],
  ])('%j: one reservation, forwarded once', async (plan, calls) => {
    faults.plan.set('admit', [...plan]);
    const answer = await ask();
    expect(answer.kind).toBe('ok');
    expect(answer.metadata.unreserved).toBeUndefined();
    expect(faults.calls.filter((name) => name === 'admit').length).toBe(calls);
    const { operation } = answer.metadata;
    expect(await receiptOf(answer)).toMatchObject({ state: 'STARTED', operation });
    expect(await counters(answer)).toMatchObject({ reserved: 600, available: 400 });
  });

  test('not known in time: an error, with metadata that can be booked', async () => {
    faults.plan.set('admit', 'lost');
    const answer = await ask(NO_DEADLINE);
    expect([answer.kind, answer.status]).toEqual(['error', 503]);
    expect(Number(answer.headers['retry-after'])).toBeGreaterThanOrEqual(1);
    expect(Number(answer.headers['retry-after'])).toBeLessThanOrEqual(4);
    expect(answer.headers['x-should-retry']).toBeUndefined();
    expect(answer.body.error).toMatchObject({ type: 'overloaded_error', code: 'unavailable' });
    expect(answer.metadata).toMatchObject({
      ...{ unreserved: true, generation: 5, subject: tenant, route: 'chat', units: 600 },
      shadow: false,
    });
    expect(faults.calls.filter((name) => name === 'admit').length).toBeGreaterThan(2);
  });

  test('a ledger that hangs is not waited for', async () => {
    await new Promise<void>((resolve) => {
      redis.process.kill('SIGSTOP');
      setTimeout(resolve, 20);
    });
    try {
      const answer = await ask(NO_DEADLINE);
      expect([answer.kind, answer.status]).toEqual(['error', 503]);
    } finally {
      redis.process.kill('SIGCONT');
    }
  });

  test('shadow passes at once, and is accounted for all the same', async () => {
    gateway.rollout = shadow;
    faults.plan.set('admit', ['lost']);
    const answer = await ask();
    expect(answer.kind).toBe('ok');
    expect(faults.calls.filter((name) => name === 'admit').length).toBe(1);
    expect(answer.metadata).toMatchObject({ unreserved: true, shadow: true });
    await gateway.log(forwarded(answer));
    expect(await receiptOf(answer)).toMatchObject({ state: 'SETTLED', actual: [250] });
  });
});

describe('its log entry', () => {
  test('the reservation was made, nothing was sent: all of it is back', async () => {
    faults.plan.set('admit', 'lost');
    const answer = await ask(NO_DEADLINE);
    await gateway.log(stopped(answer));
    expect(await receiptOf(answer)).toMatchObject({ state: 'SETTLED', actual: [0] });
    expect(await counters(answer)).toMatchObject({ available: 1000, reserved: 0, spent: 0 });
  });

  test('the reservation was made, Envoy let the request through: settled', async () => {
    faults.plan.set('admit', 'lost');
    const answer = await ask(NO_DEADLINE);
    await gateway.log(forwarded(answer));
    expect(await receiptOf(answer)).toMatchObject({ state: 'SETTLED', actual: [250] });
    expect(await counters(answer)).toMatchObject({ available: 750, spent: 250 });
  });

  test('never made, Envoy let the request through: booked in full, as unstarted', async () => {
    faults.plan.set('admit', 'away');
    const answer = await ask(NO_DEADLINE);
    await gateway.log(forwarded(answer), forwarded(answer));
    expect(await receiptOf(answer)).toBeUndefined();
    expect(await counters(answer)).toMatchObject({ available: 750, reserved: 0, spent: 250 });
    const [line] = await gateway.ledger.dump(String(answer.metadata.reservation).slice(3, 25));
    expect(line!.receipts).toEqual([
      expect.objectContaining({ own: true, unstarted: true, actual: [250], units: [0] }),
    ]);
  });

  test('never made, never sent: nothing moves', async () => {
    faults.plan.set('admit', 'away');
    const answer = await ask(NO_DEADLINE);
    await gateway.log(stopped(answer));
    expect(await counters(answer)).toBeUndefined();
  });

  test('the reserve runs only after the entry was read: tried again, and freed', async () => {
    faults.plan.set('admit', 'late');
    const answer = await ask(NO_DEADLINE);
    faults.plan.clear();
    await gateway.log(stopped(answer));
    expect(await counters(answer)).toBeUndefined();
    await faults.release();
    expect(await counters(answer)).toMatchObject({ reserved: 600 });
    await until(async () => (await receiptOf(answer))?.state === 'SETTLED', 'the hold is freed');
    expect(await counters(answer)).toMatchObject({ available: 1000, reserved: 0, spent: 0 });
  });

  test('a duplicate whose answer was lost never touches the original', async () => {
    const original = await ask();
    faults.plan.set('admit', 'lost');
    const repeat = await ask(NO_DEADLINE);
    expect(repeat.metadata.reservation).toBe(original.metadata.reservation);
    faults.plan.clear();
    await gateway.log(stopped(repeat));
    expect(await receiptOf(original)).toMatchObject({ state: 'STARTED' });
    expect(await counters(original)).toMatchObject({ reserved: 600, available: 400 });
  });
});

test('the key that signs is asked for until it is known; without it there is no metadata', async () => {
  const fresh = new Faults();
  fresh.plan.set('macKey', 'away');
  const other = await startGateway({
    ...{ socket: redis.socket, folder: redis.folder, policy, rollout: enforce },
    between: (ledger) => fresh.between(ledger),
  });
  const headers = { 'x-tenant': tenant, 'x-request-id': 'r' };
  const asked = () => other.check({ method: 'POST', path, headers }, { deadlineMs: NO_DEADLINE });
  expect(await asked()).toMatchObject({ kind: 'error', metadata: { reservation: '' } });
  fresh.plan.set('macKey', ['away', 'away']);
  expect((await asked()).kind).toBe('ok');
  await other.stop();
});

test.each([
  ['hangs', () => new Promise<never>(() => {})],
  ['is away', () => Promise.reject(new LedgerUnavailable('away'))],
])('a ledger that %s: the answer comes before Envoy’s deadline', async (_how, admit) => {
  const kept = keep();
  const view = { rollout: undefined, frozenUntil: () => 0, generation: () => undefined };
  const rollout = parseRollout(enforce, 'rollout.yaml').rollout;
  const check = createCheck({
    ledger: { admit, reserve: admit, estimatedNow: Date.now, macKey: async () => Buffer.alloc(32) },
    policy: () => ({ ...view, policy: policyOf(policy), rollout }),
    reload: async () => {},
    override: () => false,
    notReady: () => undefined,
    ...{ meter: kept, log: kept },
  });
  const headers = { 'x-tenant': 'a', 'x-request-id': 'r' };
  const rest = {
    startedAt: '',
    host: '',
    body: Buffer.alloc(0),
    context: {},
    principal: '',
    metadata: {},
  };
  const request = { method: 'POST', path, headers, ...rest };
  const started = performance.now();
  const call = { deadline: Date.now() + 200, cancelled: () => false };
  expect(await check(request, call)).toMatchObject({ kind: 'error', status: 503 });
  // Without a deadline it would be patient for most of a second.
  expect(performance.now() - started).toBeLessThan(700);
});
