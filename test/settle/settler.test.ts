/** Evidence that comes early, twice, out of order, without our metadata, forged, or while the ledger is away. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { Faults } from '../support/fault.js';
import { type Answer, type Gateway, type Json, startGateway } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const policy = (generation: number, cost = '{ input: 1, output: 1 }') => `
schema: admissionBudget.v1
generation: ${generation}
unmatched: refuse
budgets:
  - route: chat
    subject: request.headers["x-tenant"]
    burst: 1000
    maxOverdraft: 100
    cost: ${cost}
    estimate: { fixed: 600 }
`;
const rollout = '{ schema: rollout.v1, generation: 5, default: { mode: enforce } }';

let redis: TestRedis;
let gateway: Gateway;
const faults = new Faults();
let requests = 0;
let requestId = '';

beforeAll(async () => {
  redis = await startRedis();
  gateway = await startGateway({
    ...{ socket: redis.socket, folder: redis.folder, policy: policy(5), rollout },
    between: (ledger) => faults.between(ledger),
  });
});
afterAll(async () => {
  await gateway.stop();
  await redis.stop();
});
beforeEach(() => {
  requestId = `request-${++requests}`;
  gateway.policy = policy(5);
  gateway.kept.metrics.clear();
});
afterEach(() => faults.plan.clear());

const path = '/v1/chat?a=b';
/** Each request is of a tenant of its own. */
const ask = (from: Gateway = gateway, method = 'POST') =>
  from.check({ method, path, headers: { 'x-tenant': requestId, 'x-request-id': requestId } });

interface Shown {
  readonly metadata?: Json | undefined;
  readonly usage?: Json;
  readonly common?: Json;
  readonly request?: Json;
  readonly response?: Json;
}

function entry({ metadata, usage, common = {}, request = {}, response = {} }: Shown): Json {
  const ours = metadata && { 'envoy.filters.http.ext_authz': metadata };
  const reported = usage && { 'llm.usage': usage };
  return {
    common_properties: {
      metadata: { filter_metadata: { ...ours, ...reported } },
      upstream_wire_bytes_sent: '300',
      time_to_last_upstream_rx_byte: '0.1s',
      upstream_request_attempt_count: 1,
      access_log_type: 'DownstreamEnd',
      ...common,
    },
    request: { request_method: 'POST', path, request_id: requestId, ...request },
    response: { response_code: 200, response_code_details: 'via_upstream', ...response },
  };
}

const of = (answer: Answer, total_tokens?: unknown): Json =>
  entry({
    metadata: answer.metadata,
    ...(total_tokens === undefined ? {} : { usage: { total_tokens } }),
  });

async function stateOf(answer: Answer) {
  const found = await gateway.ledger.get(answer.metadata.reservation);
  const { state, actual, evidence, breach } = found!.receipt;
  const { available, spent } = found!.line.limits[0]!.counters;
  return { state, actual: actual?.[0], evidence, breach, available, spent, seq: found!.line.seq };
}

const counted = (name: string) => gateway.kept.metrics.get(name) ?? 0;

describe('one operation, many entries', () => {
  test('twice, at once and later: booked once', async () => {
    const answer = await ask();
    await gateway.log(of(answer, 200), of(answer, 200));
    const once = await stateOf(answer);
    expect(once).toMatchObject({ state: 'SETTLED', actual: 200, available: 800, spent: 200 });
    await gateway.log(of(answer, 200));
    expect(await stateOf(answer)).toEqual(once);
    expect(counted('earmark_evidence_total chat reported')).toBe(1);
    expect(counted('earmark_evidence_total chat repeated')).toBe(2);
  });

  test('out of order: the report first, then an entry that knows nothing', async () => {
    const answer = await ask();
    await gateway.log(of(answer, 200));
    const settled = await stateOf(answer);
    await gateway.log(of(answer));
    await gateway.log(
      entry({
        metadata: answer.metadata,
        common: { access_log_type: 'DownstreamStart', upstream_wire_bytes_sent: '0' },
      }),
    );
    expect(await stateOf(answer)).toEqual(settled);
  });

  test('a report after an entry that knew nothing ends the UNKNOWN', async () => {
    const answer = await ask();
    await gateway.log(of(answer));
    expect(await stateOf(answer)).toMatchObject({ state: 'USAGE_UNKNOWN', available: 400 });
    expect(counted('earmark_evidence_unknown_total chat no report')).toBe(1);
    await gateway.log(of(answer, 200));
    expect(await stateOf(answer)).toMatchObject({ state: 'SETTLED', actual: 200, available: 800 });
  });

  test('another report contradicts: refused, counted, logged', async () => {
    const answer = await ask();
    await gateway.log(of(answer, 200));
    await gateway.log(of(answer, 201));
    expect(await stateOf(answer)).toMatchObject({ state: 'SETTLED', actual: 200 });
    expect(counted('earmark_evidence_conflicts_total chat')).toBe(1);
    expect(gateway.kept.lines).toContain('warn evidence contradicts a receipt');
  });

  test('a start is no end: nothing moves', async () => {
    const answer = await ask();
    const before = await stateOf(answer);
    const common = { access_log_type: 'DownstreamStart', upstream_wire_bytes_sent: '0' };
    await gateway.log(entry({ metadata: answer.metadata, common }));
    expect(await stateOf(answer)).toEqual(before);
  });
});

describe('forged metadata moves nothing and is counted', () => {
  test.each([
    ['another reservation', { reservation: 'rl-AAAAAAAAAAAAAAAAAAAAAA-BBBBBBBBBBBBBBBBBBBBBB' }],
    ['another operation', { operation: 'mine' }],
    ['fewer units', { units: 1 }],
    ['no MAC', { mac: '' }],
    ['no fields', { subject: 7 }],
  ])('%s', async (_what, forged) => {
    const answer = await ask();
    const before = await stateOf(answer);
    await gateway.log(
      entry({ metadata: { ...answer.metadata, ...forged }, usage: { total_tokens: 9 } }),
    );
    expect(await stateOf(answer)).toEqual(before);
    expect(counted('earmark_evidence_forged_total')).toBe(1);
    expect(gateway.settler.waiting).toBe(0);
  });
});

describe('without our metadata, by the request ID', () => {
  const unsent = { upstream_wire_bytes_sent: '0' };

  test('a use is booked by the policy of the receipt', async () => {
    const answer = await ask();
    await gateway.log(entry({ usage: { total_tokens: 200 } }));
    expect(await stateOf(answer)).toMatchObject({ state: 'SETTLED', actual: 200, spent: 200 });
  });

  test.each([
    ['another method', { request_method: 'GET' }],
    ['another path', { path: '/v1/chat' }],
    ['another request ID', { request_id: 'other' }],
    ['no request ID', { request_id: '' }],
  ])('%s is another request', async (_what, request) => {
    const answer = await ask();
    const before = await stateOf(answer);
    await gateway.log(entry({ common: unsent, request }));
    expect(await stateOf(answer)).toEqual(before);
  });

  test('the path before a rewrite is the one that counts', async () => {
    const answer = await ask();
    const request = { path: '/rewritten', original_path: path };
    await gateway.log(entry({ common: unsent, request }));
    expect(await stateOf(answer)).toMatchObject({
      state: 'SETTLED',
      actual: 0,
      evidence: 'neverSent',
    });
  });

  test('two Checks with the same: nobody can say which, so neither', async () => {
    const first = await ask();
    await ask();
    const before = await stateOf(first);
    await gateway.log(entry({ common: unsent }));
    expect(await stateOf(first)).toEqual(before);
  });

  test('half a repeat under the same ID, of which no Check was made, is not the one that runs', async () => {
    const headers = { 'x-tenant': requestId, 'x-request-id': requestId };
    const request = { time: '2026-12-01T05:33:24Z', http: { method: 'POST', path, headers } };
    const running = await gateway.check({}, { attributes: { request } });
    const started = (start_time: string) => entry({ common: { ...unsent, start_time } });
    await gateway.log(started('2026-12-01T05:33:25Z'));
    expect(await stateOf(running)).toMatchObject({ state: 'STARTED', spent: 0 });
    await gateway.log(started('2026-12-01T05:33:24Z'));
    expect(await stateOf(running)).toMatchObject({ state: 'SETTLED', actual: 0 });
  });

  test('a duplicate’s entry never settles the original', async () => {
    const headers = { 'x-tenant': requestId, 'idempotency-key': 'k' };
    const check = (id: string) =>
      gateway.check({ method: 'POST', path, headers: { ...headers, 'x-request-id': id } });
    const original = await check(`${requestId}-a`);
    expect((await check(`${requestId}-b`)).status).toBe(409);
    const before = await stateOf(original);
    await gateway.log(entry({ common: unsent, request: { request_id: `${requestId}-b` } }));
    expect(await stateOf(original)).toEqual(before);
  });

  test('early: the entry comes before its Check, and is booked when that is done', async () => {
    await gateway.log(entry({ common: unsent }));
    expect(gateway.settler.waiting).toBeGreaterThan(0);
    const answer = await ask();
    expect((await stateOf(answer)).state).toBe('STARTED');
    await until(
      async () => (await stateOf(answer)).state === 'SETTLED',
      'the early entry is booked',
    );
    expect(await stateOf(answer)).toMatchObject({ actual: 0, available: 1000 });
  });
});

describe('the policy of its generation', () => {
  test('a use under an older policy costs what that policy says', async () => {
    const answer = await ask();
    gateway.policy = policy(6, '{ input: 1, output: 3 }');
    requestId = `${requestId}-new`;
    const newer = await ask();
    expect(newer.metadata.generation).toBe(6);
    await gateway.log(of(answer, 100), of(newer, 100));
    expect(await stateOf(answer)).toMatchObject({ actual: 100 });
    expect(await stateOf(newer)).toMatchObject({ actual: 300 });
  });

  test('an amount that no integer can hold is no report', async () => {
    gateway.policy = policy(7, '{ input: 1000, output: 1000 }');
    const answer = await ask();
    await gateway.log(of(answer, Number.MAX_SAFE_INTEGER));
    expect(await stateOf(answer)).toMatchObject({ state: 'USAGE_UNKNOWN', spent: 0 });
    expect(counted('earmark_evidence_unknown_total chat no cost')).toBe(1);
  });

  test('a value that is no count is told', async () => {
    const answer = await ask();
    await gateway.log(of(answer, '11,22'));
    expect(await stateOf(answer)).toMatchObject({ state: 'USAGE_UNKNOWN' });
    expect(counted('earmark_evidence_total chat invalid report')).toBe(1);
    expect(counted('earmark_evidence_unknown_total chat invalid report')).toBe(1);
  });
});

test('a breach freezes the route: whoever has to is told', async () => {
  const answer = await ask();
  await gateway.log(of(answer, 1101));
  expect(await stateOf(answer)).toMatchObject({ state: 'SETTLED_WITH_DEBT', breach: true });
  expect(gateway.toldToFreeze).toEqual(['chat']);
  expect(counted('earmark_breaches_total chat')).toBe(1);
});

test('a breach in shadow stops nobody', async () => {
  gateway.rollout = '{ schema: rollout.v1, generation: 5, default: { mode: shadow } }';
  const told = gateway.toldToFreeze.length;
  const answer = await ask();
  gateway.rollout = rollout;
  await gateway.log(of(answer, 2000));
  expect(await stateOf(answer)).toMatchObject({ breach: true });
  expect(gateway.toldToFreeze.slice(told)).toEqual([]);
});

test('a breach whose answer was lost freezes the route all the same', async () => {
  const answer = await ask();
  const told = gateway.toldToFreeze.length;
  faults.plan.set('settle', ['lost']);
  await gateway.log(of(answer, 2000));
  await until(() => counted('earmark_evidence_total chat repeated') === 1, 'it is asked again');
  await gateway.settler.idle();
  expect(await stateOf(answer)).toMatchObject({ breach: true });
  expect(gateway.toldToFreeze.slice(told)).toEqual(['chat']);
});

test('a reservation that the ledger forgot is booked in full, once', async () => {
  const answer = await ask();
  const tag = String(answer.metadata.reservation).slice(3, 25);
  await gateway.ledger.redis.del(gateway.ledger.keys.line(tag));
  await gateway.log(of(answer, 300), of(answer, 300));
  const [line] = await gateway.ledger.dump(tag);
  expect(line!.receipts).toMatchObject([{ own: true, unstarted: true, actual: [300] }]);
  expect(line!.pages[0]!.books[0]!.counters).toMatchObject({ available: 700, spent: 300 });
});

describe('a ledger that is away', () => {
  test.each(['settle', 'macKey', 'findCheck', 'get'])(
    '%s: kept until it is taken',
    async (call) => {
      const own = await startGateway({
        ...{ socket: redis.socket, folder: redis.folder, policy: policy(5), rollout },
        between: (ledger) => faults.between(ledger),
      });
      const answer = await ask(gateway);
      faults.plan.set(call, ['away', 'away']);
      const bound = call === 'settle' || call === 'macKey';
      await own.log(bound ? of(answer, 200) : entry({ usage: { total_tokens: 200 } }));
      expect(own.settler.waiting).toBe(1);
      expect((await stateOf(answer)).state).toBe('STARTED');
      await until(async () => (await stateOf(answer)).state === 'SETTLED', 'the entry is booked');
      expect(await stateOf(answer)).toMatchObject({ actual: 200, spent: 200 });
      await own.settler.idle();
      expect(own.settler.waiting).toBe(0);
      await own.stop();
    },
  );

  test('an answer that got lost: asked again, booked once', async () => {
    const answer = await ask();
    faults.plan.set('settle', ['lost']);
    await gateway.log(of(answer, 200));
    const repeated = () => counted('earmark_evidence_total chat repeated') === 1;
    await until(repeated, 'it is asked again');
    expect(await stateOf(answer)).toMatchObject({ actual: 200, spent: 200, available: 800 });
    expect(counted('earmark_evidence_conflicts_total chat')).toBe(0);
  });

  test('what is searched for seldom keeps nothing else waiting', async () => {
    faults.calls.length = 0;
    await gateway.log(
      entry({ common: { upstream_wire_bytes_sent: '0' }, request: { request_id: 'nobody' } }),
    );
    const searched = () => faults.calls.filter((name) => name === 'findCheck').length >= 3;
    await until(searched, 'the next search is seconds away');
    const answer = await ask();
    faults.plan.set('settle', ['lost']);
    await gateway.log(of(answer, 200));
    const repeated = () => counted('earmark_evidence_total chat repeated') === 1;
    await until(repeated, 'it is asked again', 3000);
  });

  test('a stop tries once more what waits', async () => {
    const stopping = await startGateway({
      ...{
        socket: redis.socket,
        folder: redis.folder,
        policy: policy(5),
        rollout,
        prefix: 'last:',
      },
      between: (ledger) => faults.between(ledger),
    });
    const answer = await ask(stopping);
    faults.plan.set('settle', ['away']);
    await stopping.log(of(answer, 200));
    await stopping.settler.stop();
    const { receipt } = (await stopping.ledger.get(answer.metadata.reservation))!;
    expect(receipt).toMatchObject({ state: 'SETTLED', actual: [200] });
    expect(await stopping.ledger.redis.exists('last:evidence')).toBe(0);
    await stopping.stop();
  });

  test('what a stopping process can’t deliver, another takes from the ledger', async () => {
    const stopping = await startGateway({
      ...{
        socket: redis.socket,
        folder: redis.folder,
        policy: policy(5),
        rollout,
        prefix: 'stop:',
      },
      between: (ledger) => faults.between(ledger),
    });
    const answer = await ask(stopping);
    faults.plan.set('settle', 'away');
    await stopping.log(of(answer, 200));
    await stopping.stop();
    faults.plan.clear();
    const next = await startGateway({
      ...{
        socket: redis.socket,
        folder: redis.folder,
        policy: policy(5),
        rollout,
        prefix: 'stop:',
      },
    });
    const receipt = async () => (await next.ledger.get(answer.metadata.reservation))!.receipt;
    await until(async () => (await receipt()).state === 'SETTLED', 'the spooled entry is booked');
    expect((await receipt()).actual).toEqual([200]);
    await next.stop();
  });
});
