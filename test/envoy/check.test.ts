/** The answers of a Check as Envoy gets them: over gRPC, from a real ledger. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type Answer, type Gateway, type Json, startGateway } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';

/** One budget for each thing that answers differ by. */
const policy = (generation: number) => `
schema: admissionBudget.v1
generation: ${generation}
unmatched: refuse
budgets:
  - route: refilled
    match: context.route == "refilled"
    subject: request.headers["x-tenant"]
    burst: 1000
    refill: { units: 100, every: 1s }
    maxReservation: 800
    maxOverdraft: 500
    estimate: { prompt: { bytesPerToken: 4 }, completion: { default: 512 } }
  - route: fixed
    match: context.route == "fixed"
    subject: request.headers["x-tenant"]
    burst: 1000
    plainResponses: false
    estimate: { fixed: 600 }
  - route: several
    match: context.route == "several"
    subject: request.headers["x-tenant"]
    limits:
      - { name: minute, burst: 1000, refill: { units: 1000, every: 1m } }
      - { name: day, burst: 1500, refill: { units: 1500, every: 24h } }
    estimate: { fixed: 700 }
  - route: calls
    match: context.route == "calls"
    subject: request.headers["x-tenant"]
    limits:
      - { name: tokens, burst: 10000 }
      - { name: calls, burst: 1, cost: { call: 1 } }
    estimate: { fixed: 700 }
  - route: executor
    match: context.route == "executor"
    subject: request.headers["x-tenant"]
    burst: 1000
    startedBy: executor
    estimate: { fixed: 100 }
  - route: again
    match: context.route == "again"
    subject: request.headers["x-tenant"]
    burst: 1000
    settledAgain: reserve
    estimate: { fixed: 100 }
  - route: broken
    match: context.route == "broken" && int(request.headers["x-number"]) > 0
    subject: request.headers["x-tenant"]
    burst: 1000
`;
const mode = (name: string, more = '') =>
  `{ schema: rollout.v1, generation: 31, default: { mode: ${name} } ${more} }`;
const enforce = mode('enforce');

let redis: TestRedis;
let gateway: Gateway;
/** ms since 1970, of the ledger. */
let clock = Date.UTC(2026, 6, 19, 14, 0, 0);
let tenants = 0;
let requests = 0;
let tenant = '';

beforeAll(async () => {
  redis = await startRedis();
  gateway = await startGateway({
    ...{ socket: redis.socket, folder: redis.folder, policy: policy(31) },
    clock: () => clock,
  });
});
afterAll(async () => {
  await gateway.stop();
  await redis.stop();
});
beforeEach(() => {
  tenant = `tenant-${++tenants}`;
  Object.assign(gateway, { policy: policy(31), rollout: enforce, override: false });
  gateway.kept.metrics.clear();
  gateway.frozenRoutes.clear();
});

interface Question {
  readonly headers?: Json;
  readonly body?: unknown;
  readonly path?: string;
}

function ask(route: string, { headers = {}, body, path = '/v1/chat' }: Question = {}) {
  const all = {
    ...{ 'x-tenant': tenant, 'x-request-id': `request-${++requests}` },
    ...{ 'content-type': 'application/json' },
    ...headers,
  };
  const text =
    body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) };
  const http = { method: 'POST', path, headers: all, ...text };
  return gateway.check(http, { context: { route } });
}

const keyed = (key: string, more: Json = {}) => ({ headers: { 'idempotency-key': key, ...more } });
const tokens = (max_tokens: number) => ({ body: { max_tokens } });

async function lineOf(answer: Answer) {
  return (await gateway.ledger.get(answer.metadata.reservation))!;
}

function settle(answer: Answer, units: number) {
  const { reservation, operation } = answer.metadata;
  return gateway.ledger.settle({ reservation, operation, actual: [units], grade: 'reported' });
}

/** The error's fields, the body's form checked on the way. */
function errorOf(answer: Answer): Json {
  const { type, error } = answer.body;
  expect(type).toBe('error');
  expect(Object.keys(error).sort()).toEqual(['code', 'message', 'param', 'type']);
  expect(error.param).toBeNull();
  expect(answer.headers['content-type']).toBe('application/json');
  return error;
}

describe('OK', () => {
  test('metadata, headers both ways, the reservation started in the ledger', async () => {
    const client = {
      'x-earmark-reservation': 'mine',
      'x-earmark-spoof': '1',
      'accept-encoding': 'gzip',
    };
    const answer = await ask('refilled', { headers: client, ...tokens(300) });
    const { reservation, operation, mac, reservedAt } = answer.metadata as Json;
    expect(answer.kind).toBe('ok');
    expect(answer.metadata).toEqual({
      ...{ reservation, operation, mac, reservedAt },
      ...{ generation: 31, epoch: '2026-07-19T00:00Z', subject: tenant, route: 'refilled' },
      ...{ units: 305, shadow: false },
    });
    expect(mac).toMatch(/^[A-Za-z0-9_-]{43}$/);
    expect(reservedAt).toBe(clock);
    expect(answer.headers).toEqual({
      'x-earmark-reservation': reservation,
      'x-earmark-operation': operation,
    });
    expect(answer.removed.sort()).toEqual(['accept-encoding', 'x-earmark-spoof']);
    expect(answer.responseHeaders).toEqual({
      'x-ratelimit-limit-tokens': '1000',
      'x-ratelimit-remaining-tokens': '695',
      'x-ratelimit-reset-tokens': '4',
      'x-earmark-generation': '31',
    });
    const { receipt } = await lineOf(answer);
    expect(receipt).toMatchObject({ state: 'STARTED', operation, units: [305] });
  });

  test('without refill no reset; plainResponses off leaves accept-encoding alone', async () => {
    const answer = await ask('fixed', { headers: { 'accept-encoding': 'gzip' } });
    expect(answer.removed).toEqual([]);
    expect(answer.responseHeaders).toEqual({
      'x-ratelimit-limit-tokens': '1000',
      'x-ratelimit-remaining-tokens': '400',
      'x-earmark-generation': '31',
    });
  });

  test('of several limits the tightest is shown', async () => {
    const answer = await ask('several');
    expect(answer.metadata.units).toEqual([700, 700]);
    expect(answer.responseHeaders).toMatchObject({
      'x-ratelimit-limit-tokens': '1000',
      'x-ratelimit-remaining-tokens': '300',
      'x-ratelimit-reset-tokens': '42',
    });
  });

  test('a line emptied to the last unit says 0', async () => {
    await ask('refilled', tokens(795));
    const answer = await ask('refilled', tokens(195));
    expect(answer.responseHeaders).toMatchObject({
      'x-ratelimit-remaining-tokens': '0',
      'x-ratelimit-reset-tokens': '10',
    });
  });

  test('x-earmark headers that the answer sets are never among the removed', async () => {
    const client = { 'x-earmark-reservation': 'a', 'x-earmark-operation': 'b' };
    expect((await ask('fixed', { headers: client })).removed).toEqual([]);
  });
});

describe('429', () => {
  test('capacity with refill: the shortfall, rounded up, and no earlier', async () => {
    expect((await ask('refilled', tokens(700))).kind).toBe('ok');
    const answer = await ask('refilled', tokens(700));
    expect([answer.kind, answer.status]).toEqual(['denied', 429]);
    expect(answer.headers).toEqual({
      ...{
        'content-type': 'application/json',
        'x-earmark-limited-by': 'capacity',
        'x-earmark-generation': '31',
      },
      ...{ 'retry-after': '5', 'retry-after-ms': '4100' },
    });
    expect(errorOf(answer)).toEqual({
      ...{ type: 'rate_limit_error', code: 'rate_limit_exceeded', param: null },
      message: 'refilled: 705 tokens needed, more than is left now; enough in 4.1 s',
    });
    expect(answer.metadata).toEqual({
      ...{ generation: 31, subject: tenant, route: 'refilled' },
      ...{ limitedBy: 'capacity', code: 'rate_limit_exceeded' },
    });
    clock += 4099;
    expect((await ask('refilled', tokens(700))).status).toBe(429);
    clock += 1;
    expect((await ask('refilled', tokens(700))).kind).toBe('ok');
  });

  test('a wait over a minute also says not to retry', async () => {
    await ask('several');
    clock += 60_000;
    await ask('several');
    const answer = await ask('several');
    expect(answer.headers).toMatchObject({
      'x-earmark-limited-by': 'capacity; limit=day',
      'x-should-retry': 'false',
      'retry-after': '34500',
      'retry-after-ms': '34500000',
    });
    expect(errorOf(answer).message).toContain('several, limit day: 700 tokens needed');
  });

  test('a limit with a cost of its own does not count in the unit of the others', async () => {
    await ask('calls');
    const answer = await ask('calls');
    expect(answer.headers).toMatchObject({ 'x-earmark-limited-by': 'capacity; limit=calls' });
    expect(errorOf(answer).message).toMatch(/^calls, limit calls: 1 needed, more than is left/);
  });

  test('without refill: the hold TTL while something is reserved, else no wait at all', async () => {
    const first = await ask('fixed');
    const held = await ask('fixed');
    expect(held.headers).toMatchObject({ 'retry-after': '30', 'retry-after-ms': '30000' });
    expect(held.headers['x-should-retry']).toBeUndefined();
    await settle(first, 600);
    const { headers } = await ask('fixed');
    expect(headers['retry-after']).toBeUndefined();
    expect(headers).toMatchObject({
      'x-should-retry': 'false',
      'x-earmark-limited-by': 'capacity',
    });
  });

  test('debt: the wait includes it', async () => {
    await settle(await ask('refilled', tokens(700)), 1200);
    const answer = await ask('refilled', tokens(95));
    expect(answer.headers).toMatchObject({
      ...{ 'x-earmark-limited-by': 'debt', 'retry-after': '3', 'retry-after-ms': '3000' },
    });
    expect(errorOf(answer).message).toContain('repaid');
  });

  test('a single request above maxReservation: no wait ever helps', async () => {
    const { status, headers } = await ask('refilled', tokens(801));
    expect(status).toBe(429);
    expect(headers).toEqual({
      ...{
        'content-type': 'application/json',
        'x-should-retry': 'false',
        'x-earmark-generation': '31',
      },
      'x-earmark-limited-by': 'max-reservation',
    });
  });

  test('frozen line, frozen route, closed', async () => {
    const answer = await ask('refilled', tokens(1));
    await gateway.ledger.freeze({ subject: tenant, route: 'refilled' }, false, -1);
    const gone = {
      'content-type': 'application/json',
      'x-should-retry': 'false',
      'x-earmark-generation': '31',
    };
    const frozen = { ...gone, 'x-earmark-limited-by': 'frozen' };
    expect((await ask('refilled', tokens(1))).headers).toEqual(frozen);
    gateway.frozenRoutes.set('fixed', -1);
    expect((await ask('fixed')).headers).toEqual(frozen);
    gateway.rollout = mode('refuseAll');
    const closed = await ask('several');
    expect(closed.headers).toEqual({ ...gone, 'x-earmark-limited-by': 'closed' });
    expect(gateway.kept.metrics.get('earmark_refusals_total several closed  refuseAll')).toBe(1);
    // What is under way is settled under any of them.
    expect((await settle(answer, 1)).kind).toBe('moved');
  });

  test('nothing of it speaks of another tenant', async () => {
    const other = tenant;
    await ask('fixed');
    tenant = `${tenant}-b`;
    await ask('fixed');
    const answer = await ask('fixed');
    expect(JSON.stringify(answer)).not.toContain(`"${other}"`);
    expect(answer.body.error.message).not.toContain('400');
  });
});

describe('duplicates', () => {
  test('409 while it runs and after it was used, with the state; nothing moves', async () => {
    const first = await ask('fixed', keyed('k'));
    const before = await lineOf(first);
    const running = await ask('fixed', keyed('k'));
    expect([running.kind, running.status]).toEqual(['denied', 409]);
    expect(running.headers).toEqual({
      ...{
        'content-type': 'application/json',
        'x-should-retry': 'false',
        'x-earmark-generation': '31',
      },
    });
    expect(errorOf(running)).toMatchObject({ type: 'conflict_error', code: 'duplicate_request' });
    expect(running.body.error.message).toContain('STARTED');
    expect(running.metadata).toEqual({
      ...{ generation: 31, subject: tenant, route: 'fixed', code: 'duplicate_request' },
    });
    expect((await lineOf(first)).line.seq).toBe(before.line.seq);
    await settle(first, 200);
    const done = await ask('fixed', keyed('k'));
    expect(done.status).toBe(409);
    expect(done.body.error.message).toContain('SETTLED');
  });

  test('409 while nobody knows what it used', async () => {
    const first = await ask('fixed', keyed('k'));
    const { reservation, operation } = first.metadata;
    await gateway.ledger.unknown({ reservation, operation, least: [] });
    const answer = await ask('fixed', keyed('k'));
    expect([answer.status, String(answer.body.error.message)]).toEqual([
      409,
      expect.stringContaining('USAGE_UNKNOWN'),
    ]);
  });

  test('422 for another request under the same key; nothing moves', async () => {
    const first = await ask('fixed', { ...keyed('k'), body: { a: 1 } });
    for (const other of [{ body: { a: 2 } }, { body: { a: 1 }, path: '/v1/chat?x' }]) {
      const answer = await ask('fixed', { ...keyed('k'), ...other });
      expect([answer.kind, answer.status]).toEqual(['denied', 422]);
      expect(answer.headers['x-should-retry']).toBe('false');
      expect(errorOf(answer).code).toBe('idempotency_key_reused');
    }
    expect((await lineOf(first)).line.seq).toBe(1);
    // The key is one of this subject and route only.
    expect((await ask('refilled', keyed('k'))).kind).toBe('ok');
  });

  test('what ended without execution is asked for anew, and the newest attempt is found at once', async () => {
    const answers = [await ask('fixed', keyed('k'))];
    for (let attempt = 2; attempt <= 4; attempt++) {
      await settle(answers.at(-1)!, 0);
      const next = await ask('fixed', keyed('k'));
      expect(next.kind).toBe('ok');
      const { receipt } = await lineOf(next);
      expect(receipt).toMatchObject({ attempt, state: 'STARTED' });
      answers.push(next);
    }
    expect(new Set(answers.map(({ metadata }) => metadata.reservation)).size).toBe(4);
    expect((await ask('fixed', keyed('k'))).status).toBe(409);
    expect((await lineOf(answers[0]!)).receipt.latest).toBe(4);
    expect((await lineOf(answers[3]!)).line.limits[0]!.counters.reserved).toBe(600);
  });

  test('settledAgain: a request that was used may run again, one that runs may not', async () => {
    const first = await ask('again', keyed('k'));
    expect((await ask('again', keyed('k'))).status).toBe(409);
    await settle(first, 50);
    const second = await ask('again', keyed('k'));
    expect((await lineOf(second)).receipt).toMatchObject({ attempt: 2, state: 'STARTED' });
  });

  test('settledAgain: what was only presumed to be used may still run, so it is not run again', async () => {
    const first = await ask('again', keyed('k'));
    const { reservation, operation } = first.metadata;
    await gateway.ledger.settle({ reservation, operation, actual: [100], grade: 'presumed' });
    expect((await ask('again', keyed('k'))).status).toBe(409);
  });

  test('many retries at once make one execution', async () => {
    const first = await ask('fixed', keyed('k'));
    await settle(first, 0);
    const answers = await Promise.all(Array.from({ length: 8 }, () => ask('fixed', keyed('k'))));
    const kinds = answers.map(({ kind, status }) => `${kind} ${status}`).sort();
    expect(kinds).toEqual([...Array(7).fill('denied 409'), 'ok 200']);
  });
});

describe('startedBy: executor', () => {
  test('the Check reserves, the backend starts; a repeat may start it as long as nobody has', async () => {
    const first = await ask('executor', keyed('k'));
    const { reservation, operation } = first.metadata;
    expect((await lineOf(first)).receipt).toMatchObject({ state: 'RESERVED', operation: '' });
    const second = await ask('executor', keyed('k'));
    expect(second.metadata.reservation).toBe(reservation);
    expect(second.metadata.operation).not.toBe(operation);
    const started = await gateway.ledger.start(reservation, second.metadata.operation);
    expect(started.kind).toBe('moved');
    expect((await gateway.ledger.start(reservation, operation)).kind).toBe('refused');
    expect((await ask('executor', keyed('k'))).status).toBe(409);
  });

  test('a hold that ran out is neither started nor made twice before it is returned', async () => {
    const first = await ask('executor', keyed('k'));
    clock += 30_000;
    await ask('executor');
    const late = await ask('executor', keyed('k'));
    expect([late.kind, late.status]).toEqual(['error', 503]);
    const tag = String(first.metadata.reservation).slice(3, 25);
    await gateway.ledger.sweep(tag, 10);
    await gateway.ledger.sweep(tag, 10);
    expect((await lineOf(first)).receipt.state).toBe('EXPIRED');
    const next = await ask('executor', keyed('k'));
    expect((await lineOf(next)).receipt).toMatchObject({ attempt: 2, state: 'RESERVED' });
  });
});

describe('400 and 403', () => {
  const denied = (answer: Answer, status: number, code: string, named: string) => {
    expect([answer.kind, answer.status]).toEqual(['denied', status]);
    expect(answer.headers).toEqual({
      ...{
        'content-type': 'application/json',
        'x-should-retry': 'false',
        'x-earmark-generation': '31',
      },
    });
    const error = errorOf(answer);
    expect(error.code).toBe(code);
    expect(error.message).toContain(named);
    expect(answer.metadata.reservation).toBeUndefined();
    expect(answer.metadata).toMatchObject({ generation: 31, code });
  };

  test('a body that claims to be JSON and is not', async () => {
    denied(await ask('fixed', { body: '{"a":' }), 400, 'bad_request', 'body');
    const typed = { headers: { 'content-type': 'application/vnd.x+json; charset=utf-8' } };
    denied(await ask('fixed', { ...typed, body: 'x' }), 400, 'bad_request', 'body');
    const plain = { headers: { 'content-type': 'text/plain' }, body: '{"a":' };
    expect((await ask('fixed', plain)).kind).toBe('ok');
  });

  test.each(['many', -1, 1.5, 1e308, [], true])('max_tokens: %j', async (max_tokens) => {
    denied(await ask('fixed', { body: { max_tokens } }), 400, 'bad_request', 'max_tokens');
  });

  test('a key that is too long, sent twice, or missing together with the request ID', async () => {
    denied(await ask('fixed', keyed('k'.repeat(1025))), 400, 'key_too_long', 'idempotency key');
    denied(await ask('fixed', keyed('k1,k1')), 400, 'key_twice', 'idempotency-key');
    const neither = { headers: { 'x-request-id': '' } };
    denied(await ask('fixed', neither), 400, 'no_key', 'x-request-id');
    expect((await ask('fixed', keyed('k', { 'x-request-id': '' }))).kind).toBe('ok');
  });

  test('a subject that is too long', async () => {
    tenant = 'ü'.repeat(513);
    const answer = await ask('fixed');
    denied(answer, 400, 'subject_too_long', 'subject');
    expect(JSON.stringify(answer.body)).not.toContain('üü');
    expect(answer.metadata.subject).toBe('');
  });

  test('no subject, no budget', async () => {
    tenant = '';
    denied(await ask('fixed'), 403, 'no_subject', 'whose');
    denied(await ask('elsewhere'), 403, 'no_budget', 'budget');
  });

  test('an expression that fails refuses, and nothing falls through', async () => {
    const answer = await ask('broken', { headers: { 'x-number': 'none' } });
    denied(answer, 400, 'policy_error', 'match');
    expect(gateway.kept.metrics.get('earmark_policy_errors_total broken match')).toBe(1);
    expect((await ask('broken', { headers: { 'x-number': '1' } })).kind).toBe('ok');
  });

  test('odd subjects are lines of their own', async () => {
    const odd = ['a}b', 'a{b', 'Jürgen  Groß\t✓', 'x:fixed', 'x', 'n\u0000ul', '😀'.repeat(200)];
    for (const name of odd) {
      tenant = name;
      const answer = await ask('fixed');
      expect(answer.metadata).toMatchObject({ subject: name });
      expect((await lineOf(answer)).line.limits[0]!.counters.reserved).toBe(600);
    }
  });
});

describe('modes', () => {
  test('shadow never refuses: what would have been is counted and moves nothing', async () => {
    gateway.rollout = mode('shadow');
    const first = await ask('fixed', keyed('k'));
    expect(first.metadata).toMatchObject({ shadow: true, units: 600 });
    expect(first.responseHeaders).toEqual({});
    expect((await lineOf(first)).receipt).toMatchObject({ shadow: true, state: 'STARTED' });
    const limited = await ask('fixed');
    expect(limited.kind).toBe('ok');
    expect(limited.metadata).toEqual({
      ...{ reservation: '', shadow: true, generation: 31, subject: tenant, route: 'fixed' },
      limitedBy: 'capacity',
    });
    expect(limited.headers).toEqual({});
    expect((await ask('fixed', keyed('k'))).kind).toBe('ok');
    expect((await ask('fixed', { ...keyed('k'), body: {} })).kind).toBe('ok');
    tenant = '';
    expect((await ask('fixed')).kind).toBe('ok');
    expect((await ask('fixed', { body: '{' })).kind).toBe('ok');
    expect((await ask('elsewhere')).kind).toBe('ok');
    expect((await ask('broken', { headers: { 'x-number': 'none' } })).kind).toBe('ok');
    expect((await lineOf(first)).line.seq).toBe(2);
    const counted = [...gateway.kept.metrics.keys()].filter((name) => name.includes('refusals'));
    expect(counted.sort()).toEqual(
      [
        'earmark_refusals_total  no_budget  shadow',
        'earmark_refusals_total broken policy_error  shadow',
        'earmark_refusals_total fixed bad_request  shadow',
        'earmark_refusals_total fixed capacity  shadow',
        'earmark_refusals_total fixed digest  shadow',
        'earmark_refusals_total fixed duplicate  shadow',
        'earmark_refusals_total fixed no_subject  shadow',
      ].sort(),
    );
  });

  test('without a rollout everything runs in shadow', async () => {
    gateway.rollout = undefined;
    expect((await ask('fixed')).metadata).toMatchObject({ shadow: true });
  });

  test('a retry is no second execution when the mode changed in between', async () => {
    const enforced = await ask('fixed', keyed('k'));
    gateway.rollout = mode('shadow');
    expect((await ask('fixed', keyed('k'))).status).toBe(409);
    expect((await ask('fixed', { ...keyed('k'), body: {} })).status).toBe(422);
    await ask('again', keyed('k'));
    gateway.rollout = enforce;
    expect((await ask('again', keyed('k'))).status).toBe(409);
    expect((await lineOf(enforced)).receipt.state).toBe('STARTED');
  });

  test('off, override and an allowed stranger pass without a ledger, and without our headers', async () => {
    const spoof = { headers: { 'x-earmark-reservation': 'mine', 'x-earmark-x': '1' } };
    const passes = async (route: string, why: string) => {
      const answer = await ask(route, spoof);
      expect(answer).toMatchObject({ kind: 'ok', headers: {}, responseHeaders: {} });
      expect(answer.metadata).toEqual({ reservation: '', why });
      expect(answer.removed.sort()).toEqual(['x-earmark-reservation', 'x-earmark-x']);
    };
    gateway.rollout = mode('off');
    await passes('fixed', 'off');
    await passes('elsewhere', 'off');
    gateway.rollout = enforce;
    gateway.policy = policy(31).replace('unmatched: refuse', 'unmatched: allow');
    await passes('elsewhere', 'unmatched');
    gateway.override = true;
    await passes('fixed', 'override');
    gateway.policy = '';
    await passes('fixed', 'override');
  });

  test('no policy yet, or an estimator that differs: an error, never open and never a denial', async () => {
    gateway.policy = '';
    const none = await ask('fixed');
    expect([none.kind, none.status]).toEqual(['error', 503]);
    expect(Number(none.headers['retry-after'])).toBeGreaterThanOrEqual(1);
    gateway.policy = policy(31);
    gateway.notReady = 'the estimator differs';
    const differs = await ask('fixed');
    gateway.notReady = undefined;
    expect([differs.kind, differs.status]).toEqual(['error', 503]);
    expect(differs.body.error.message).toContain('estimator');
    expect(none.metadata).toEqual({ reservation: '' });
  });

  test('an older policy than the line has: reload and ask again', async () => {
    gateway.policy = policy(32);
    expect((await ask('fixed', keyed('a'))).metadata).toMatchObject({ generation: 32 });
    gateway.policy = policy(31);
    let reloads = 0;
    gateway.onReload = () => {
      reloads++;
    };
    const stale = await ask('fixed', keyed('b'));
    expect([stale.kind, stale.status, reloads]).toEqual(['error', 503, 1]);
    // Envoy may let it through: then it is booked.
    expect(stale.metadata).toMatchObject({ unreserved: true, units: 600 });
    gateway.onReload = () => {
      gateway.policy = policy(33);
    };
    const { metadata } = await ask('fixed', keyed('a'));
    expect(metadata).toMatchObject({ code: 'duplicate_request' });
    gateway.policy = policy(31);
    const answer = await ask('fixed', keyed('c'));
    expect(answer.metadata).toMatchObject({ generation: 33, limitedBy: 'capacity' });
  });
});
