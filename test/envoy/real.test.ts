/** Through a real Envoy: what clients and backends see, and what the ledger has of it afterwards. */
import type { OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import {
  post,
  type Response,
  ScriptedBackend,
  startEnvoy,
  type TestEnvoy,
} from '../support/envoy.js';
import { Faults } from '../support/fault.js';
import { type Gateway, startGateway } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const policy = `
schema: admissionBudget.v1
generation: 5
unmatched: refuse
budgets:
  - route: chat
    match: context.route == "chat"
    subject: request.headers["x-tenant"]
    burst: 1000
    refill: { units: 1, every: 1h }
    maxReservation: 800
`;
const rollout = '{ schema: rollout.v1, generation: 5, default: { mode: enforce } }';

let redis: TestRedis;
let gateway: Gateway;
/** As envoy/sidecar.yaml has it, before HTTP/1.1. */
let envoy: TestEnvoy;
/** failure_mode_allow, short deadlines, small bodies; before HTTP/2. */
let open: TestEnvoy;
const backend = new ScriptedBackend();
const faults = new Faults();
let tenants = 0;
let tenant = '';

beforeAll(async () => {
  redis = await startRedis();
  const { folder } = redis;
  gateway = await startGateway({
    ...{ socket: redis.socket, folder, policy, rollout },
    between: (ledger) => faults.between(ledger),
  });
  const { http1, http2 } = await backend.listen();
  const earmark = gateway.address;
  const settings = { folder, earmark };
  envoy = await startEnvoy({ ...settings, name: 'envoy', upstream: http1, protocol: 'http/1.1' });
  const authz = {
    failure_mode_allow: true,
    grpc_service: { envoy_grpc: { cluster_name: 'earmark' }, timeout: '1.2s' },
    with_request_body: { max_request_bytes: 64, allow_partial_message: true, pack_as_bytes: true },
  };
  const more = { name: 'open', upstream: http2, protocol: 'http/2', authz } as const;
  open = await startEnvoy({ ...settings, ...more });
});

afterAll(async () => {
  await Promise.all([envoy.stop(), open.stop()]);
  backend.stop();
  await gateway.stop();
  await redis.stop();
});

beforeEach(() => {
  tenant = `tenant-${++tenants}`;
  backend.seen.length = 0;
  backend.script = (_request, response) => json(response, { total_tokens: 33 });
});
afterEach(() => faults.plan.clear());

function json(response: ServerResponse, usage?: object): void {
  response.writeHead(200, { 'content-type': 'application/json; charset=utf-8' });
  response.end(JSON.stringify({ choices: [], usage }));
}

const event = (data: unknown): string => `data: ${JSON.stringify(data)}\n\n`;

const ask = (max_tokens: number, extra = '') => JSON.stringify({ max_tokens, extra });

async function send(
  headers: OutgoingHttpHeaders = {},
  body = ask(100),
  to = envoy,
): Promise<Response> {
  const all = { 'x-tenant': tenant, 'content-type': 'application/json', ...headers };
  const response = await post(to.port, all, body);
  if (response === 'left') throw new Error('nobody left');
  return response;
}

/** The line as it is stored; its reservations in order. */
async function line() {
  const [dump] = await gateway.ledger.dump(lineTag(tenant, 'chat'));
  return dump;
}
const receipts = async () => (await line())?.receipts ?? [];
const settled = async (state = 'SETTLED') =>
  until(async () => (await receipts()).some((receipt) => receipt.state === state), state);
const counters = async () => (await line())!.pages.at(-1)!.books[0]!.counters;

describe('it goes on', () => {
  test('JSON: headers both ways, usage from the body', async () => {
    const client = {
      ...{ 'accept-encoding': 'gzip', 'x-earmark-reservation': 'mine' },
      ...{ 'x-earmark-operation': 'mine', 'x-earmark-spoof': '1' },
    };
    const response = await send(client);
    expect(response.status).toBe(200);
    expect(response.headers).toMatchObject({
      'x-ratelimit-limit-tokens': '1000',
      'x-ratelimit-remaining-tokens': '892',
      'x-ratelimit-reset-tokens': String(108 * 3600),
      'x-earmark-generation': '5',
    });
    const { headers } = backend.seen[0]!;
    await settled();
    const [receipt] = await receipts();
    expect(headers['x-earmark-reservation']).toBe(receipt!.reservation);
    expect(headers['x-earmark-operation']).toBe(receipt!.operation);
    expect(headers['x-earmark-spoof']).toBeUndefined();
    expect(headers['accept-encoding']).toBeUndefined();
    expect(receipt).toMatchObject({ actual: [33], evidence: 'reported', units: [108] });
    expect(await counters()).toMatchObject({ available: 967, reserved: 0, spent: 33 });
  });

  test('SSE: usage in the last chunk, nulls before it', async () => {
    backend.script = (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(event({ choices: [{ delta: {} }], usage: null }));
      response.write(event({ choices: [], usage: { prompt_tokens: 11, completion_tokens: 22 } }));
      response.end('data: [DONE]\n\n');
    };
    expect((await send()).status).toBe(200);
    await settled();
    expect((await receipts())[0]).toMatchObject({ actual: [33], evidence: 'reported' });
  });

  test('trailers over HTTP/2', async () => {
    backend.script = (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/plain' });
      response.write('text');
      response.addTrailers({ 'x-usage-input-tokens': '11', 'x-usage-output-tokens': '30' });
      response.end();
    };
    expect((await send({}, ask(100), open)).status).toBe(200);
    await settled();
    expect((await receipts())[0]).toMatchObject({ actual: [41], evidence: 'reported' });
  });

  test('response headers', async () => {
    backend.script = (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/plain', 'x-usage-total-tokens': '55' });
      response.end('text');
    };
    await send();
    await settled();
    expect((await receipts())[0]).toMatchObject({ actual: [55] });
  });

  test('200 without usage is unknown, 400 of the backend is free, 500 is unknown', async () => {
    const statuses: number[] = [];
    for (const status of [200, 400, 500]) {
      backend.script = (_request, response) => {
        response.writeHead(status, { 'content-type': 'application/json' });
        response.end('{}');
      };
      tenant = `tenant-${++tenants}`;
      statuses.push((await send()).status);
      await settled(status === 400 ? 'SETTLED' : 'USAGE_UNKNOWN');
      const [receipt] = await receipts();
      expect(receipt!.evidence).toBe(status === 400 ? 'refused' : '');
    }
    expect(statuses).toEqual([200, 400, 500]);
  });

  test('a client that leaves in the middle of a stream: unknown, until a receipt comes', async () => {
    backend.script = (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(event({ choices: [{ delta: { content: 'one' } }] }));
    };
    const headers = { 'x-tenant': tenant, 'content-type': 'application/json' };
    expect(await post(envoy.port, headers, ask(100), { afterBytes: 10 })).toBe('left');
    await settled('USAGE_UNKNOWN');
    const [receipt] = await receipts();
    expect(await counters()).toMatchObject({ available: 892, reserved: 108 });
    const { reservation, operation } = receipt!;
    await gateway.ledger.settle({ reservation, operation, actual: [40], grade: 'operator' });
    expect(await counters()).toMatchObject({ available: 960, reserved: 0, spent: 40 });
  });

  test('a body that Envoy cut is estimated by its whole length, and is what its length says', async () => {
    const whole = (filler: string) => ask(100, filler);
    const body = whole('x'.repeat(2000));
    expect((await send({ 'idempotency-key': 'k' }, body, open)).status).toBe(200);
    const [receipt] = await receipts();
    expect(receipt!.units[0]).toBeGreaterThan(body.length / 4);
    expect(backend.seen[0]!.body.toString()).toBe(body);
    const longer = await send({ 'idempotency-key': 'k' }, whole('x'.repeat(2001)), open);
    expect(longer.status).toBe(422);
  });
});

describe('it does not go on, and the client sees why', () => {
  const message = (response: Response) => JSON.parse(response.text).error;

  test('429', async () => {
    backend.script = (_request, response) => json(response, { total_tokens: 700 });
    await send({}, ask(700));
    await settled();
    const response = await send({}, ask(700));
    expect(response.status).toBe(429);
    expect(response.headers).toMatchObject({
      'content-type': 'application/json',
      'x-earmark-limited-by': 'capacity',
      'x-should-retry': 'false',
    });
    const ms = Number(response.headers['retry-after-ms']);
    expect(Number(response.headers['retry-after'])).toBe(Math.ceil(ms / 1000));
    expect(message(response)).toMatchObject({ type: 'rate_limit_error', param: null });
    expect(message(response).message).toMatch(/^chat: 708 tokens needed, .* enough in \d+/);
    expect(backend.seen.length).toBe(1);
  });

  test('429 max-reservation, 409, 422, 403, 400', async () => {
    const key = { 'idempotency-key': 'k' };
    const large = await send({}, ask(900));
    expect([large.status, large.headers['x-earmark-limited-by']]).toEqual([429, 'max-reservation']);
    expect(large.headers['retry-after']).toBeUndefined();
    expect((await send(key)).status).toBe(200);
    const again = await send(key);
    expect([again.status, message(again).code]).toEqual([409, 'duplicate_request']);
    const other = await send(key, ask(101));
    expect([other.status, message(other).code]).toEqual([422, 'idempotency_key_reused']);
    const broken = await send({}, '{"max_tokens":');
    expect([broken.status, message(broken).code]).toEqual([400, 'bad_request']);
    const twice = await send({ 'idempotency-key': ['k1', 'k1'] });
    expect([twice.status, message(twice).code]).toEqual([400, 'key_twice']);
    const nobody = await send({ 'x-tenant': '' });
    expect([nobody.status, message(nobody).code]).toEqual([403, 'no_subject']);
    for (const { headers } of [again, other, broken, twice, nobody]) {
      expect(headers['x-should-retry']).toBe('false');
    }
    expect(backend.seen.length).toBe(1);
    // Their own entries move nothing.
    await settled();
    expect((await line())!.receipts.length).toBe(1);
  });

  test('503 of ours, before Envoy gives up; nothing is forwarded, and what was made is freed', async () => {
    faults.plan.set('admit', 'lost');
    const response = await send();
    expect(response.status).toBe(503);
    expect(message(response)).toMatchObject({ type: 'overloaded_error', code: 'unavailable' });
    expect(Number(response.headers['retry-after'])).toBeGreaterThanOrEqual(1);
    expect(backend.seen).toEqual([]);
    faults.plan.clear();
    await settled();
    expect((await receipts())[0]).toMatchObject({ actual: [0], evidence: 'neverSent' });
    expect(await counters()).toMatchObject({ available: 1000, reserved: 0 });
  });

  test('a client that leaves while it is asked: its reservation is found and freed', async () => {
    const admit = gateway.ledger.admit.bind(gateway.ledger);
    gateway.ledger.admit = async (request) => {
      const outcome = await admit(request);
      await new Promise((resolve) => setTimeout(resolve, 300));
      return outcome;
    };
    try {
      const headers = { 'x-tenant': tenant, 'content-type': 'application/json' };
      expect(await post(envoy.port, headers, ask(100), { afterMs: 150 })).toBe('left');
      await settled();
    } finally {
      gateway.ledger.admit = admit;
    }
    expect((await receipts())[0]).toMatchObject({ actual: [0], evidence: 'neverSent' });
    expect(backend.seen).toEqual([]);
  });
});

describe('failure_mode_allow', () => {
  test('a request that passed while the ledger was away is booked afterwards, in full', async () => {
    faults.plan.set('admit', 'away');
    const response = await send({}, ask(100), open);
    expect(response.status).toBe(200);
    expect(backend.seen.length).toBe(1);
    faults.plan.clear();
    await settled();
    const [receipt] = await receipts();
    expect(receipt).toMatchObject({ own: true, unstarted: true, units: [0], actual: [33] });
    expect(await counters()).toMatchObject({ available: 967, spent: 33 });
  });

  test('a denial stays one', async () => {
    expect((await send({}, ask(900), open)).status).toBe(429);
    expect(backend.seen).toEqual([]);
  });
});
