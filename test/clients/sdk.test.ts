/** The clients that people use, as they come, through a real Envoy: what they send, wait for and repeat. */
import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { gzipSync } from 'node:zlib';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import { exampleFilter, ScriptedBackend, startExample, type TestEnvoy } from '../support/envoy.js';
import { type Gateway, startGateway } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const policy = `
schema: admissionBudget.v1
generation: 1
unmatched: refuse
budgets:
  - route: refilled
    match: request.headers["x-budget"] == "refilled"
    subject: request.headers["x-tenant"]
    burst: 1000
    refill: { units: 450, every: 1s }
    estimate: { fixed: 600 }
  - route: once
    match: request.headers["x-budget"] == "once"
    subject: request.headers["x-tenant"]
    key: digest
    settledAgain: reserve
    burst: 1000
    estimate: { fixed: 100 }
  - route: plain
    subject: request.headers["x-tenant"]
    burst: 1000
    estimate: { fixed: 100 }
`;
const rollout = '{ schema: rollout.v1, generation: 1, default: { mode: enforce } }';

let redis: TestRedis;
let gateway: Gateway;
let envoy: TestEnvoy;
let direct = 0;
const backend = new ScriptedBackend();
let tenants = 0;
let tenant = '';

beforeAll(async () => {
  redis = await startRedis();
  gateway = await startGateway({ socket: redis.socket, folder: redis.folder, policy, rollout });
  const { http1 } = await backend.listen();
  direct = http1;
  envoy = await startExample('usage-sse.yaml', {
    ...{ folder: redis.folder, upstream: http1, earmark: gateway.address },
    edit: ({ static_resources }) => {
      const [{ typed_config }] = static_resources.listeners[0].filter_chains[0].filters;
      typed_config.http_filters.splice(1, 0, exampleFilter('usage-json.yaml', 'json_to_metadata'));
    },
  });
});
afterAll(async () => {
  await envoy.stop();
  backend.stop();
  await gateway.stop();
  await redis.stop();
});
beforeEach(() => {
  tenant = `tenant-${++tenants}`;
  backend.seen.length = 0;
});

/** What a client sent, as it left it, and what came of it. */
interface Sent {
  readonly headers: Headers;
  readonly at: number;
  status: number | 'broken off';
  retryAfterMs: number;
}

interface Options {
  readonly budget?: string;
  readonly port?: number;
  readonly headers?: Record<string, string>;
  readonly timeout?: number;
}

interface Sdk {
  readonly sent: Sent[];
  /** The tokens that the answer reports. */
  ask(): Promise<number>;
  stream(): Promise<number>;
}

/** Its own retries, waits and headers; only its fetch is listened to. */
function settings(sent: Sent[], options: Options) {
  const listen: typeof fetch = async (url, init) => {
    const one: Sent = {
      ...{ headers: new Headers(init?.headers), at: performance.now() },
      ...{ status: 'broken off', retryAfterMs: 0 },
    };
    sent.push(one);
    const response = await fetch(url, init);
    one.status = response.status;
    one.retryAfterMs = Number(response.headers.get('retry-after-ms'));
    return response;
  };
  return {
    apiKey: 'none',
    fetch: listen,
    defaultHeaders: { 'x-tenant': tenant, 'x-budget': options.budget ?? '', ...options.headers },
    ...(options.timeout === undefined ? {} : { timeout: options.timeout }),
  };
}

function openai(options: Options = {}): Sdk {
  const sent: Sent[] = [];
  const baseURL = `http://127.0.0.1:${options.port ?? envoy.port}/v1`;
  const sdk = new OpenAI({ baseURL, ...settings(sent, options) });
  const messages = [{ role: 'user' as const, content: 'hello' }];
  return {
    sent,
    async ask() {
      return (await sdk.chat.completions.create({ model: 'm', messages })).usage!.total_tokens;
    },
    async stream() {
      const asked = { stream: true, stream_options: { include_usage: true } } as const;
      let total = 0;
      for await (const chunk of await sdk.chat.completions.create({
        model: 'm',
        messages,
        ...asked,
      }))
        total = chunk.usage?.total_tokens ?? total;
      return total;
    },
  };
}

function anthropic(options: Options = {}): Sdk {
  const sent: Sent[] = [];
  const baseURL = `http://127.0.0.1:${options.port ?? envoy.port}`;
  const sdk = new Anthropic({ baseURL, ...settings(sent, options) });
  const messages = [{ role: 'user' as const, content: 'hello' }];
  const body = { model: 'm', max_tokens: 50, messages };
  const sum = (usage: Anthropic.Usage) => usage.input_tokens + usage.output_tokens;
  return {
    sent,
    ask: async () => sum((await sdk.messages.create(body)).usage),
    stream: async () => sum((await sdk.messages.stream(body).finalMessage()).usage),
  };
}

/** A backend that compresses whatever it may, as those of vendors do. */
function answer(text: (stream: boolean) => string) {
  return (request: IncomingMessage, response: ServerResponse, body: Buffer): void => {
    const { stream } = JSON.parse(body.toString());
    const gzip = /gzip/.test(request.headers['accept-encoding'] ?? '');
    response.writeHead(200, {
      'content-type': stream ? 'text/event-stream' : 'application/json',
      ...(gzip ? { 'content-encoding': 'gzip' } : {}),
    });
    response.end(gzip ? gzipSync(text(stream === true)) : text(stream === true));
  };
}

const events = (list: readonly object[], named = false): string =>
  list
    .map((data) => {
      const name = named ? `event: ${(data as { type: string }).type}\n` : '';
      return `${name}data: ${JSON.stringify(data)}\n\n`;
    })
    .join('');

const openaiAnswer = (output: number) => (stream: boolean) => {
  const usage = { prompt_tokens: 10, completion_tokens: output, total_tokens: 10 + output };
  const word = { choices: [{ index: 0, delta: { content: 'word' } }], usage: null };
  if (stream) return `${events([word, { choices: [], usage }])}data: [DONE]\n\n`;
  return JSON.stringify({ choices: [{ message: { role: 'assistant', content: 'word' } }], usage });
};

const anthropicAnswer = (output: number) => (stream: boolean) => {
  const message = { id: 'm', type: 'message', role: 'assistant', model: 'm', content: [] };
  const end = { stop_reason: 'end_turn', stop_sequence: null };
  const usage = { input_tokens: 10, output_tokens: output };
  if (!stream) return JSON.stringify({ ...message, ...end, usage });
  const first = { ...message, stop_reason: null, usage: { input_tokens: 10, output_tokens: 1 } };
  const last = { type: 'message_delta', delta: end, usage: { output_tokens: output } };
  const start = { type: 'message_start', message: first };
  return events([start, last, { type: 'message_stop' }], true);
};

const receipts = async (route = 'plain') =>
  (await gateway.ledger.dump(lineTag(tenant, route)))[0]?.receipts ?? [];

const states = async (route = 'plain') => (await receipts(route)).map(({ state }) => state).sort();

async function settled(count: number, route = 'plain'): Promise<void> {
  const all = Array(count).fill('SETTLED').join();
  await until(async () => (await states(route)).join() === all, `${count} settled`);
}

describe.each([
  ['openai', openai, openaiAnswer],
  ['@anthropic-ai/sdk', anthropic, anthropicAnswer],
])('%s', (_name, client, answerOf) => {
  test('asks for gzip, and its usage is booked all the same: JSON and stream', async () => {
    backend.script = answer(answerOf(23));
    expect(await client({ port: direct }).ask()).toBe(33);
    expect(backend.seen[0]!.headers['accept-encoding']).toContain('gzip');
    const sdk = client();
    expect([await sdk.ask(), await sdk.stream()]).toEqual([33, 33]);
    expect(backend.seen.slice(1).map(({ headers }) => headers['accept-encoding'])).toEqual([
      undefined,
      undefined,
    ]);
    await settled(2);
    const booked = (await receipts()).map(({ actual, evidence }) => [actual, evidence]);
    expect(booked).toEqual([
      [[33], 'reported'],
      [[33], 'reported'],
    ]);
  });

  test('refused once, it waits as long as it is told, and succeeds', async () => {
    // 990 used of a hold of 600 leave 10 of 1000, and 600 are wanted.
    backend.script = answer(answerOf(980));
    const sdk = client({ budget: 'refilled' });
    expect(await sdk.ask()).toBe(990);
    await settled(1, 'refilled');
    backend.script = answer(answerOf(5));
    expect(await sdk.ask()).toBe(15);
    expect(sdk.sent.map(({ status }) => status)).toEqual([200, 429, 200]);
    const [, refused, repeated] = sdk.sent as [Sent, Sent, Sent];
    // Left to itself it waits for half a second at most, and Retry-After says 2 s.
    expect(refused.retryAfterMs).toBeGreaterThan(1000);
    expect(refused.retryAfterMs).toBeLessThanOrEqual(1312);
    expect(repeated.at - refused.at).toBeGreaterThanOrEqual(refused.retryAfterMs);
    expect(repeated.at - refused.at).toBeLessThan(2000);
    expect(backend.seen.length).toBe(2);
    await settled(2, 'refilled');
  });

  test('a duplicate is refused with 409, which it does not repeat', async () => {
    backend.script = answer(answerOf(23));
    const sdk = client({ headers: { 'idempotency-key': 'k' } });
    await sdk.ask();
    await settled(1);
    await expect(sdk.ask()).rejects.toMatchObject({ status: 409 });
    expect(sdk.sent.map(({ status }) => status)).toEqual([200, 409]);
    expect(backend.seen.length).toBe(1);
    await settled(1);
  });

  test('a refusal that no wait helps is not repeated either', async () => {
    tenant = '';
    const sdk = client();
    await expect(sdk.ask()).rejects.toMatchObject({ status: 403 });
    tenant = `tenant-${tenants}`;
    const late = client({ budget: 'refilled', headers: { 'content-type': 'application/json' } });
    gateway.frozenRoutes.set('refilled', -1);
    try {
      await expect(late.ask()).rejects.toMatchObject({ status: 429 });
    } finally {
      gateway.frozenRoutes.clear();
    }
    expect([sdk.sent.length, late.sent.length]).toEqual([1, 1]);
  });

  test('it gives up three times: three executions, each accounted for', async () => {
    const waiting: ServerResponse[] = [];
    backend.script = (_request, response) => waiting.push(response);
    const sdk = client({ timeout: 300 });
    await expect(sdk.ask()).rejects.toThrow(/timed out/);
    expect(sdk.sent.map(({ headers }) => headers.get('x-stainless-retry-count'))).toEqual([
      '0',
      '1',
      '2',
    ]);
    expect(sdk.sent.map(({ headers }) => headers.get('idempotency-key'))).toEqual([
      null,
      null,
      null,
    ]);
    await until(async () => (await states()).join() === Array(3).fill('USAGE_UNKNOWN').join());
    const [dump] = await gateway.ledger.dump(lineTag(tenant, 'plain'));
    expect(dump!.pages[0]!.books[0]!.counters).toMatchObject({ available: 700, reserved: 300 });
    expect(backend.seen.length).toBe(3);
    const names = backend.seen.map(({ headers }) => headers['x-earmark-reservation']);
    expect(new Set(names).size).toBe(3);
  });

  test('with a key made of the digest it gives up once: one execution, and a 409', async () => {
    let running: ServerResponse | undefined;
    backend.script = (_request, response) => {
      running = response;
    };
    const sdk = client({ budget: 'once', timeout: 300 });
    await expect(sdk.ask()).rejects.toMatchObject({ status: 409 });
    expect(sdk.sent.map(({ status }) => status)).toEqual(['broken off', 409]);
    expect(backend.seen.length).toBe(1);
    await until(async () => (await states('once')).join() === 'USAGE_UNKNOWN');
    if (!running!.destroyed) await once(running!, 'close');
    // Once a receipt says what the first one used, the same may be asked again.
    const { reservation, operation } = (await receipts('once'))[0]!;
    await gateway.ledger.settle({ reservation, operation, actual: [33], grade: 'operator' });
    backend.script = answer(answerOf(23));
    expect(await sdk.ask()).toBe(33);
    await settled(2, 'once');
  });
});
