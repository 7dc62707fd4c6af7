/** Each example of envoy/, as it stands before a real Envoy, and used for what it is an example of. */
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import type { OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { lineTag } from '../../src/core/ids.js';
import { envoyBinary } from '../support/binaries.js';
import {
  EXAMPLES,
  post,
  type Response,
  ScriptedBackend,
  startExample,
  type TestEnvoy,
} from '../support/envoy.js';
import { Faults } from '../support/fault.js';
import { type Gateway, startGateway } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const policy = `
schema: admissionBudget.v1
generation: 1
unmatched: refuse
budgets:
  - route: embeddings
    match: context.route == "embeddings"
    subject: request.headers["x-tenant"]
    burst: 1000
    estimate: { fixed: 50 }
  - route: chat
    subject: request.headers["x-tenant"]
    burst: 10000
    estimate: { fixed: 100 }
    usage: { partial: atLeast }
`;
const rollout = '{ schema: rollout.v1, generation: 1, default: { mode: enforce } }';

/** sidecar.yaml is what the demo and the tests beside this one use. */
const USED_HERE = [
  'fail-open.yaml',
  'include-usage.yaml',
  'local-reply.yaml',
  'per-route.yaml',
  'unix-sockets.yaml',
  'usage-json.yaml',
  'usage-sse.yaml',
  'usage-trailers.yaml',
];

let redis: TestRedis;
let gateway: Gateway;
let envoy: TestEnvoy;
let http1 = 0;
let http2 = 0;
const backend = new ScriptedBackend();
const faults = new Faults();
let tenants = 0;
let tenant = '';

beforeAll(async () => {
  redis = await startRedis();
  gateway = await startGateway({
    ...{ socket: redis.socket, folder: redis.folder, policy, rollout },
    between: (ledger) => faults.between(ledger),
  });
  ({ http1, http2 } = await backend.listen());
});
afterAll(async () => {
  backend.stop();
  await gateway.stop();
  await redis.stop();
});
beforeEach(() => {
  tenant = `tenant-${++tenants}`;
  backend.seen.length = 0;
});
afterEach(() => faults.plan.clear());

const start = (example: string, upstream: number | string = http1): Promise<TestEnvoy> =>
  startExample(example, { folder: redis.folder, upstream, earmark: gateway.address });

function using(example: string, upstream: () => number | string, tests: () => void): void {
  describe(example, () => {
    beforeAll(async () => {
      envoy = await start(example, upstream());
    });
    afterAll(() => envoy.stop());
    tests();
  });
}

async function send(body: object | string, path = '/v1/chat/completions'): Promise<Response> {
  const headers: OutgoingHttpHeaders = { 'x-tenant': tenant, 'content-type': 'application/json' };
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  const response = await post(envoy.port, headers, text, { path });
  if (response === 'left') throw new Error('nobody left');
  return response;
}

const receipts = async (route = 'chat') =>
  (await gateway.ledger.dump(lineTag(tenant, route)))[0]?.receipts ?? [];

/** The one receipt of the tenant, once it is in this state. */
async function receipt(state = 'SETTLED', route = 'chat') {
  await until(async () => (await receipts(route)).some((each) => each.state === state), state);
  const [only, ...more] = await receipts(route);
  expect(more).toEqual([]);
  return only!;
}

function json(response: ServerResponse, body: object): void {
  response.writeHead(200, { 'content-type': 'application/json; charset=utf-8' });
  response.end(JSON.stringify(body));
}

const event = (data: unknown): string => `data: ${JSON.stringify(data)}\n\n`;

/** Answers with these events, and breaks off after them where it is told to. */
function stream(events: readonly object[], breaks = false): void {
  backend.script = (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const data of events) response.write(event(data));
    if (breaks) setTimeout(() => response.destroy(), 50);
    else response.end('data: [DONE]\n\n');
  };
}

describe('every file', () => {
  const examples = readdirSync(EXAMPLES).filter(
    (name) => name.endsWith('.yaml') && !name.startsWith('demo-'),
  );

  test('is used', () => {
    expect(examples).toEqual([...USED_HERE, 'sidecar.yaml'].sort());
  });

  test.each(examples)('%s is one that Envoy takes as it stands, with room for bodies', (name) => {
    const file = new URL(name, EXAMPLES);
    const args = ['--mode', 'validate', '-c', fileURLToPath(file)];
    const said = execFileSync(envoyBinary(), args, { encoding: 'utf8', stdio: 'pipe' });
    expect(said).toContain('OK');
    const { listeners, clusters } = parse(readFileSync(file, 'utf8')).static_resources;
    const backends = clusters.filter((cluster: { name: string }) => cluster.name !== 'earmark');
    expect(backends.length).toBe(clusters.length - 1);
    for (const each of [...listeners, ...backends]) {
      expect(each.per_connection_buffer_limit_bytes, each.name).toBe(16_777_216);
    }
  });
});

using(
  'usage-trailers.yaml',
  () => http2,
  () => {
    test('trailers over HTTP/2', async () => {
      backend.script = (_request, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.write(event({}));
        response.addTrailers({ 'x-usage-input-tokens': '11', 'x-usage-output-tokens': '30' });
        response.end();
      };
      expect((await send({})).status).toBe(200);
      expect(await receipt()).toMatchObject({ actual: [41], evidence: 'reported' });
    });
  },
);

using(
  'usage-json.yaml',
  () => http1,
  () => {
    test.each([
      ['chat', { prompt_tokens: 4, completion_tokens: 37, total_tokens: 41 }, 41],
      ['embeddings', { prompt_tokens: 8, total_tokens: 8 }, 8],
      ['responses', { input_tokens: 12, output_tokens: 80, total_tokens: 92 }, 92],
      ['messages', { input_tokens: 12, output_tokens: 80 }, 92],
    ])('%s', async (_api, usage, actual) => {
      backend.script = (_request, response) => json(response, { usage });
      expect((await send({})).status).toBe(200);
      expect(await receipt()).toMatchObject({ actual: [actual], evidence: 'reported' });
    });

    test('a body of 10 MiB', async () => {
      const usage = { total_tokens: 99 };
      backend.script = (_request, response) =>
        json(response, { text: 'x'.repeat(10_485_760), usage });
      expect((await send({})).text.length).toBeGreaterThan(10_485_760);
      expect(await receipt()).toMatchObject({ actual: [99], evidence: 'reported' });
    });
  },
);

using(
  'usage-sse.yaml',
  () => http1,
  () => {
    const first = { input_tokens: 317, cache_creation_input_tokens: 4425, output_tokens: 1 };
    const begun = { type: 'message_start', message: { usage: first } };

    test('OpenAI: the last chunk', async () => {
      stream([
        { choices: [{}], usage: null },
        { choices: [], usage: { prompt_tokens: 11, completion_tokens: 22, total_tokens: 33 } },
      ]);
      await send({});
      expect(await receipt()).toMatchObject({ actual: [33], evidence: 'reported' });
    });

    test('Anthropic: the last value of each field, nothing summed', async () => {
      stream([begun, { type: 'message_delta', usage: { ...first, output_tokens: 50 } }]);
      await send({});
      expect(await receipt()).toMatchObject({ actual: [317 + 4425 + 50], evidence: 'reported' });
    });

    test('Anthropic: a delta that has only the output', async () => {
      stream([begun, { type: 'message_delta', usage: { output_tokens: 30 } }]);
      await send({});
      expect(await receipt()).toMatchObject({ actual: [317 + 4425 + 30], evidence: 'reported' });
    });

    test('OpenAI Responses: the completed response', async () => {
      const usage = { input_tokens: 12, output_tokens: 80, total_tokens: 92 };
      stream([{ type: 'response.created' }, { type: 'response.completed', response: { usage } }]);
      await send({});
      expect(await receipt()).toMatchObject({ actual: [92], evidence: 'reported' });
    });

    test('a stream that breaks after its first report: that is the least', async () => {
      stream([begun], true);
      await send({}).catch(() => undefined);
      expect(await receipt('USAGE_UNKNOWN')).toMatchObject({ least: [317 + 4425] });
    });
  },
);

using(
  'per-route.yaml',
  () => http1,
  () => {
    test('a budget for each route, one that is not asked for', async () => {
      backend.script = (_request, response) => {
        response.writeHead(200, { 'x-usage-total-tokens': '5' });
        response.end();
      };
      const body = { input: 'x'.repeat(1000) };
      expect((await send(body)).headers['x-ratelimit-remaining-tokens']).toBe('9900');
      expect(await receipt()).toMatchObject({ units: [100], actual: [5] });
      await send(body, '/v1/embeddings');
      expect(await receipt('SETTLED', 'embeddings')).toMatchObject({ units: [50], actual: [5] });
      expect(backend.seen.at(-1)!.body.toString()).toBe(JSON.stringify(body));
      const free = await send({}, '/v1/models');
      expect(free.headers['x-ratelimit-remaining-tokens']).toBeUndefined();
      expect(await receipts()).toHaveLength(1);
    });
  },
);

using(
  'fail-open.yaml',
  () => http1,
  () => {
    test('what passes while the ledger is away is booked afterwards', async () => {
      backend.script = (_request, response) => {
        response.writeHead(200, { 'x-usage-total-tokens': '55' });
        response.end('text');
      };
      faults.plan.set('admit', 'away');
      expect((await send({})).status).toBe(200);
      faults.plan.clear();
      expect(await receipt()).toMatchObject({ unstarted: true, units: [0], actual: [55] });
    });

    test('a refusal stays one', async () => {
      tenant = '';
      backend.script = (_request, response) => response.end();
      expect((await send({})).status).toBe(403);
      expect(backend.seen).toEqual([]);
    });
  },
);

describe('unix-sockets.yaml', () => {
  test('clients, backend and earmark on sockets', async () => {
    const path = join(redis.folder, 'backend.sock');
    await backend.listenAt(path);
    backend.script = (_request, response) => {
      response.writeHead(200, { 'x-usage-total-tokens': '7' });
      response.end();
    };
    envoy = await start('unix-sockets.yaml', `unix:${path}`);
    expect(envoy.port).toBe(join(redis.folder, 'unix-sockets.yaml.sock'));
    try {
      expect((await send({})).status).toBe(200);
      expect(await receipt()).toMatchObject({ actual: [7] });
    } finally {
      await envoy.stop();
    }
  });
});

using(
  'include-usage.yaml',
  () => http1,
  () => {
    const asked = { include_usage: true };
    const usage = { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 };
    const text = 'a "stream": true, \\" {"stream":true} \n {[';

    test.each([
      ['no options', { stream: true, messages: [{ text }] }, asked],
      ['options without it', { stream_options: { x: 1 }, stream: true }, { ...asked, x: 1 }],
      ['empty options', { stream_options: {}, stream: true }, asked],
      ['null', { stream_options: null, stream: true }, asked],
      ['the opposite', { stream: true, stream_options: { include_usage: false, x: 1 } }, undefined],
      ['asked already', { stream: true, stream_options: asked }, asked],
      [
        'the word elsewhere',
        { stream: true, stream_options: { x: {} }, metadata: { include_usage: false } },
        { x: {}, ...asked },
      ],
    ])('%s: the backend is asked, and nothing else changes', async (_what, body, options) => {
      stream([{ choices: [], usage }]);
      await send(body);
      const seen = JSON.parse(backend.seen[0]!.body.toString());
      expect(seen).toEqual({ ...body, stream_options: options ?? { ...asked, x: 1 } });
      expect(await receipt()).toMatchObject({ actual: [3], evidence: 'reported' });
    });

    test.each([
      ['no stream', { messages: [{ text }], tools: [{ stream: true }] }],
      ['stream false', { stream: false }],
      ['no JSON', 'stream=true'],
      ['an array', '[{"stream":true}]'],
      ['cut JSON', '{"stream'],
      ['nothing', ''],
    ])('%s: not a byte changes', async (_what, body) => {
      backend.script = (_request, response) => json(response, { usage });
      const text = typeof body === 'string' ? body : JSON.stringify(body);
      const headers = { 'x-tenant': tenant, 'content-type': 'application/x-json-lines' };
      await post(envoy.port, headers, text);
      expect(backend.seen[0]!.body.toString()).toBe(text);
    });
  },
);

describe('local-reply.yaml', () => {
  const errorOf = (response: Response) => {
    expect(response.headers['content-type']).toBe('application/json');
    return JSON.parse(response.text) as { type: string; error: object };
  };

  test('a connection that broke, a timeout, and what is none of Envoy’s', async () => {
    envoy = await startExample('local-reply.yaml', {
      ...{ folder: redis.folder, upstream: http1, earmark: gateway.address },
      edit: ({ static_resources }) => {
        const [listener] = static_resources.listeners;
        const [{ typed_config }] = listener.filter_chains[0].filters;
        typed_config.route_config.virtual_hosts[0].routes[0].route.timeout = '0.2s';
      },
    });
    try {
      backend.script = (request) => request.socket.destroy();
      const broken = await send({});
      expect([broken.status, broken.headers['x-should-retry']]).toEqual([503, 'false']);
      expect(errorOf(broken)).toMatchObject({
        type: 'error',
        error: { type: 'api_error', code: expect.stringContaining('upstream_reset'), param: null },
      });

      backend.script = (_request, response) => {
        response.writeHead(503, { 'content-type': 'text/plain' });
        response.end('mine');
      };
      expect((await send({})).text).toBe('mine');

      backend.script = () => undefined;
      const late = await send({});
      expect([late.status, late.headers['x-should-retry']]).toEqual([504, 'false']);
      expect(errorOf(late)).toMatchObject({ error: { code: 'response_timeout' } });

      tenant = '';
      const ours = await send({});
      expect(errorOf(ours)).toMatchObject({ error: { code: 'no_subject' } });
    } finally {
      await envoy.stop();
    }
  });

  test('no backend at all: come again', async () => {
    envoy = await start('local-reply.yaml', `unix:${join(redis.folder, 'nobody.sock')}`);
    try {
      const refused = await send({});
      expect([refused.status, refused.headers['retry-after']]).toEqual([503, '1']);
      expect(errorOf(refused)).toMatchObject({ error: { type: 'api_error' } });
      expect(await receipt()).toMatchObject({ actual: [0], evidence: 'neverSent' });
    } finally {
      await envoy.stop();
    }
  });
});
