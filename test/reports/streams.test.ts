/** Faults that others had with answers, streams and their usage: through a real Envoy, into a real ledger. */
import type { OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import {
  exampleFilter,
  post,
  type Response,
  ScriptedBackend,
  startExample,
  type TestEnvoy,
} from '../support/envoy.js';
import { type Gateway, startGateway } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const policy = `
schema: admissionBudget.v1
generation: 1
unmatched: refuse
budgets:
  - route: least
    match: request.headers["x-budget"] == "least"
    subject: request.headers["x-tenant"]
    burst: 1000
    estimate: { fixed: 100 }
    usage: { partial: atLeast }
  - route: fraction
    match: request.headers["x-budget"] == "fraction"
    subject: request.headers["x-tenant"]
    burst: 1000
    estimate: { fixed: 10 }
    cost: { input: 1, output: 0.1 }
  - route: plain
    subject: request.headers["x-tenant"]
    burst: 1000
    estimate: { fixed: 600 }
`;
const rollout = '{ schema: rollout.v1, generation: 1, default: { mode: enforce } }';

let redis: TestRedis;
let gateway: Gateway;
/** Reads usage from JSON and from streams. */
let envoy: TestEnvoy;
/** Lets requests through when earmark does not answer in 0.3 s, and tries a second attempt. */
let open: TestEnvoy;
const backend = new ScriptedBackend();
let tenants = 0;
let tenant = '';

// biome-ignore lint/suspicious/noExplicitAny: Envoy's own document
function bothFilters({ static_resources }: any): any {
  const [{ typed_config }] = static_resources.listeners[0].filter_chains[0].filters;
  typed_config.http_filters.splice(1, 0, exampleFilter('usage-json.yaml', 'json_to_metadata'));
  return typed_config;
}

beforeAll(async () => {
  redis = await startRedis();
  const { folder } = redis;
  gateway = await startGateway({ socket: redis.socket, folder, policy, rollout });
  const { http1 } = await backend.listen();
  const settings = { folder, upstream: http1, earmark: gateway.address };
  envoy = await startExample('usage-sse.yaml', { ...settings, edit: bothFilters });
  open = await startExample('fail-open.yaml', {
    ...settings,
    edit: (document) => {
      const config = bothFilters(document);
      config.http_filters[0].typed_config.grpc_service.timeout = '0.3s';
      const [{ route }] = config.route_config.virtual_hosts[0].routes;
      route.retry_policy = { retry_on: '5xx', num_retries: 1 };
    },
  });
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
});

async function send(headers: OutgoingHttpHeaders = {}, body: object = {}, to = envoy) {
  const all = { 'x-tenant': tenant, 'content-type': 'application/json', ...headers };
  return (await post(to.port, all, JSON.stringify(body))) as Response;
}

const receipts = async (route = 'plain') =>
  (await gateway.ledger.dump(lineTag(tenant, route)))[0]?.receipts ?? [];

async function ended(state = 'SETTLED', route = 'plain') {
  await until(async () => (await receipts(route)).some((each) => each.state === state), state);
  const all = await receipts(route);
  expect(all).toHaveLength(1);
  return all[0]!;
}

const counters = async (route = 'plain') =>
  (await gateway.ledger.dump(lineTag(tenant, route)))[0]!.pages.at(-1)!.books[0]!.counters;

const event = (data: unknown): string => `data: ${JSON.stringify(data)}\n\n`;
const DONE = 'data: [DONE]\n\n';
const word = { choices: [{ delta: { content: 'word' } }], usage: null };

/** Answers with this text, and breaks off where it is told to. */
function answer(type: string, text: string, breaks = false): void {
  backend.script = (_request, response) => {
    response.writeHead(200, { 'content-type': type });
    response.write(text);
    if (breaks) setTimeout(() => response.destroy(), 50);
    else response.end();
  };
}
const stream = (events: readonly object[], breaks = false) =>
  answer('text/event-stream', events.map(event).join('') + (breaks ? '' : DONE), breaks);
const json = (body: object) => answer('application/json; charset=utf-8', JSON.stringify(body));

const total = (total_tokens: number) => ({ choices: [], usage: { total_tokens } });

describe('a report is found', () => {
  test('in two chunks: it is taken once', async () => {
    stream([word, total(46), total(46)]);
    await send();
    expect(await ended()).toMatchObject({ actual: [46], evidence: 'reported' });
    expect(await counters()).toMatchObject({ spent: 46, available: 954, reserved: 0 });
  });

  test('behind null in every chunk before it', async () => {
    stream([word, word, word, total(77)]);
    await send();
    expect(await ended()).toMatchObject({ actual: [77] });
  });

  test('behind the chunk that says the reason for the end', async () => {
    stream([word, { choices: [{ delta: {}, finish_reason: 'stop' }] }, total(52)]);
    await send();
    expect(await ended()).toMatchObject({ actual: [52] });
  });

  test('on that chunk itself', async () => {
    const finish = { delta: { role: 'assistant', content: null }, finish_reason: 'stop' };
    stream([word, { ...total(53), choices: [finish] }]);
    await send();
    expect(await ended()).toMatchObject({ actual: [53] });
  });

  test('running through fifty chunks: the last counts, no sum', async () => {
    stream(Array.from({ length: 50 }, (_none, at) => total(at + 1)));
    await send();
    expect(await ended()).toMatchObject({ actual: [50] });
  });

  test('of embeddings, which have no completion', async () => {
    json({ data: [], usage: { prompt_tokens: 8, total_tokens: 8 } });
    await send({}, { input: 'text' });
    expect(await ended()).toMatchObject({ actual: [8] });
  });

  test('in JSON for a request that wanted a stream, and the other way round', async () => {
    json({ usage: { prompt_tokens: 4, completion_tokens: 37, total_tokens: 41 } });
    await send({}, { stream: true });
    expect(await ended()).toMatchObject({ actual: [41] });
    tenant = `tenant-${++tenants}`;
    stream([total(42)]);
    await send({}, { stream: false });
    expect(await ended()).toMatchObject({ actual: [42] });
  });

  test('with a price in fractions: rounded up once, and whole', async () => {
    json({ usage: { prompt_tokens: 0, completion_tokens: 4, total_tokens: 4 } });
    for (let times = 0; times < 20; times++) await send({ 'x-budget': 'fraction' });
    await until(async () => (await counters('fraction')).reserved === 0);
    expect(await counters('fraction')).toMatchObject({ spent: 20, available: 980 });
  });
});

describe('no report is no zero', () => {
  test('nulls alone', async () => {
    stream([word, word]);
    await send();
    expect(await ended('USAGE_UNKNOWN')).toMatchObject({ units: [600] });
    expect(await counters()).toMatchObject({ reserved: 600, available: 400, spent: 0 });
  });

  test('a backend that compresses whatever it was asked', async () => {
    backend.script = (_request, response) => {
      const headers = { 'content-type': 'application/json', 'content-encoding': 'gzip' };
      response.writeHead(200, headers);
      response.end(gzipSync(JSON.stringify(total(5))));
    };
    await send({ 'accept-encoding': 'gzip' });
    expect(backend.seen[0]!.headers['accept-encoding']).toBeUndefined();
    expect((await ended('USAGE_UNKNOWN')).units).toEqual([600]);
  });

  test('a stream that its backend breaks', async () => {
    stream([word, word, word, word, word], true);
    await send().catch(() => undefined);
    await ended('USAGE_UNKNOWN');
    expect(await counters()).toMatchObject({ reserved: 600, spent: 0 });
  });

  test('one that breaks after running totals: the last of them is the least', async () => {
    stream(
      Array.from({ length: 30 }, (_none, at) => total(at + 1)),
      true,
    );
    await send({ 'x-budget': 'least' }).catch(() => undefined);
    expect(await ended('USAGE_UNKNOWN', 'least')).toMatchObject({ least: [30], units: [100] });
  });

  test('after two attempts: the first may have run', async () => {
    backend.script = (_request, response) => {
      if (backend.seen.length === 1) response.writeHead(503).end();
      else
        response
          .writeHead(200, { 'content-type': 'application/json' })
          .end('{"usage":{"total_tokens":7}}');
    };
    expect((await send({}, {}, open)).status).toBe(200);
    expect(backend.seen.length).toBe(2);
    expect(await ended('USAGE_UNKNOWN')).toMatchObject({ least: [7], units: [600] });
  });
});

describe('who refuses, and when', () => {
  test('a use above the hold does not cut its stream; the next request is refused', async () => {
    stream([word, word, total(1100)]);
    const whole = await send();
    expect(whole.text.endsWith(DONE)).toBe(true);
    expect(await ended('SETTLED_WITH_DEBT')).toMatchObject({ actual: [1100] });
    const next = await send();
    expect([next.status, next.headers['x-earmark-limited-by']]).toEqual([429, 'debt']);
    expect(backend.seen.length).toBe(1);
  });

  test('a 429 of the backend is its own, costs nothing, and does not look like ours', async () => {
    backend.script = (_request, response) => {
      response.writeHead(429, { 'content-type': 'application/json', 'retry-after': '7' });
      response.end('{"error":"theirs"}');
    };
    const theirs = await send();
    expect([theirs.status, theirs.text, theirs.headers['retry-after']]).toEqual([
      429,
      '{"error":"theirs"}',
      '7',
    ]);
    expect(theirs.headers['x-earmark-limited-by']).toBeUndefined();
    expect(await ended()).toMatchObject({ actual: [0], evidence: 'refused' });
    stream([total(900)]);
    await send();
    await until(async () => (await counters()).spent === 900);
    const ours = await send();
    expect([ours.status, ours.headers['x-earmark-limited-by']]).toEqual([429, 'capacity']);
    expect(JSON.parse(ours.text).error.type).toBe('rate_limit_error');
  });
});

describe('an answer that comes too late', () => {
  let real: Gateway['ledger']['admit'];
  beforeEach(() => {
    real = gateway.ledger.admit.bind(gateway.ledger);
    gateway.ledger.admit = async (request) => {
      const outcome = await real(request);
      await new Promise((resolve) => setTimeout(resolve, 800));
      return outcome;
    };
  });
  afterEach(() => {
    gateway.ledger.admit = real;
  });

  test('Envoy went on without it: the reservation is found by the request ID, and settled', async () => {
    let held: ServerResponse | undefined;
    backend.script = (_request, response) => {
      held = response;
    };
    const client = send({}, {}, open);
    await until(() => held !== undefined, 'the backend is asked');
    expect(backend.seen[0]!.headers['x-earmark-reservation']).toBeUndefined();
    held!.writeHead(200, { 'content-type': 'application/json' });
    held!.end('{"usage":{"total_tokens":87}}');
    expect((await client).status).toBe(200);
    expect(await ended()).toMatchObject({ actual: [87], units: [600], own: false });
    expect(await counters()).toMatchObject({ available: 913, spent: 87, reserved: 0 });
  });
});
