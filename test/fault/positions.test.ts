/** Every fault of the network at every command of a request's life: what is told is so, and it all adds up. */
import { join } from 'node:path';
import { status } from '@grpc/grpc-js';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import { auditLine } from '../../src/ledger/audit.js';
import { openRedis } from '../../src/ledger/connect.js';
import { Ledger } from '../../src/ledger/ledger.js';
import { LedgerUnavailable } from '../../src/ledger/types.js';
import { type Answer, type Gateway, type Json, startGateway } from '../support/gateway.js';
import { budgetOf, Line, ready, termsOf } from '../support/ledger.js';
import { keep } from '../support/quiet.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';
import { FAULTS, type Fault, FaultProxy } from './proxy.js';
import { words } from './resp.js';

const policy = `
schema: admissionBudget.v1
generation: 5
unmatched: refuse
budgets:
  - { route: chat, subject: 'request.headers["x-tenant"]', burst: 1000, estimate: { fixed: 600 } }
`;
const rollout = '{ schema: rollout.v1, generation: 5, default: { mode: enforce } }';
const path = '/v1/chat';
const DEADLINE_MS = 700;
const TIMEOUT_MS = 100;
const NOTHING: Answer = {
  ...{ kind: 'error', status: 503, headers: {}, removed: [], responseHeaders: {} },
  ...{ body: { type: '', error: {} }, metadata: {} },
};

let redis: TestRedis;
let proxy: FaultProxy;
let gateway: Gateway;
/** Past the proxy, to see what is so. */
let straight: Ledger;
let asked = 0;
let late = 0;
let tenants = 0;
let tenant = '';

beforeAll(async () => {
  redis = await startRedis();
  proxy = await FaultProxy.listen(join(redis.folder, 'proxy'), redis.socket);
  gateway = await startGateway({
    ...{ socket: proxy.path, folder: redis.folder, policy, rollout, timeoutMs: TIMEOUT_MS },
  });
  straight = new Ledger({ redis: { path: redis.socket }, prefix: 'earmark:', timeoutMs: 2000 });
  await ready(straight);
});
afterAll(async () => {
  expect(late).toBeLessThanOrEqual(asked / 10);
  await gateway.stop();
  await straight.stop();
  await proxy.stop();
  await redis.stop();
});
beforeEach(async () => {
  tenant = `tenant-${++tenants}`;
  // A connection that the last test silenced looks ready until its silence is noticed: it must answer.
  await until(
    async () => (await gateway.ledger.redis.ping().catch(() => undefined)) === 'PONG',
    'the connection is back',
  );
});
afterEach(() => proxy.disarm());

async function ask(subject = tenant): Promise<Answer> {
  const headers = { 'x-tenant': subject, 'x-request-id': `request-${subject}` };
  const http = { method: 'POST', path, headers };
  asked++;
  try {
    return await gateway.check(http, { deadlineMs: DEADLINE_MS });
  } catch (error) {
    if ((error as { code?: number }).code !== status.DEADLINE_EXCEEDED) throw error;
    // As Envoy takes it: 503, and an entry that has none of our metadata. On a busy machine it happens, but seldom.
    late++;
    return { ...NOTHING };
  }
}

/** What Envoy logs of it: an answer that says "go on" was sent and used 200, any other was not. */
function entryOf(answer: Answer, subject = tenant): Json {
  const ours = { 'envoy.filters.http.ext_authz': answer.metadata };
  const usage = { 'llm.usage': { total_tokens: 200 } };
  const sent = { upstream_wire_bytes_sent: '300', time_to_last_upstream_rx_byte: '0.1s' };
  const forwarded = answer.kind === 'ok';
  return {
    common_properties: {
      metadata: { filter_metadata: { ...ours, ...usage } },
      access_log_type: 'DownstreamEnd',
      upstream_request_attempt_count: forwarded ? 1 : 0,
      ...(forwarded ? sent : {}),
    },
    request: { request_method: 'POST', path, request_id: `request-${subject}` },
    response: {
      response_code: forwarded ? 200 : 503,
      response_code_details: forwarded ? 'via_upstream' : 'ext_authz_error',
    },
  };
}

/** Nothing is held any more, and what the client was told is what happened. */
async function settles(answer: Answer, subject = tenant): Promise<void> {
  await until(async () => {
    const dumps = await straight.dump(lineTag(subject, 'chat'));
    for (const dump of dumps) expect(auditLine(dump, false).problems).toEqual([]);
    const book = dumps[0]?.pages.at(-1)?.books[0]?.counters;
    if (answer.kind === 'ok') return book?.spent === 200 && book.available === 800;
    return book === undefined || (book.available === 1000 && book.reserved === 0);
  }, `${answer.kind} is booked`);
}

/** With the scripts unknown there are two commands for each run. */
const POSITIONS = [1, 2, 3, 4] as const;

describe.each(FAULTS)('%s', (fault) => {
  test.each(POSITIONS)('at command %i of a Check', async (position) => {
    if (position > 2) await straight.redis.script('FLUSH');
    proxy.arm(fault, position);
    const answer = await ask();
    expect([200, 503], JSON.stringify(answer)).toContain(answer.status);
    proxy.disarm();
    await gateway.log(entryOf(answer));
    await settles(answer);
  });

  test.each([1, 2])('at command %i of a settlement', async (position) => {
    const answer = await ask();
    expect(answer.kind).toBe('ok');
    if (position === 2) await straight.redis.script('FLUSH');
    proxy.arm(fault, position);
    await gateway.log(entryOf(answer));
    await settles(answer);
    expect(proxy.armed).toBe(false);
    const again = await ask();
    expect(again.status).toBe(409);
  });
});

test('the reservation in doubt is the one that a retry finds', async () => {
  proxy.arm('cut after the run', 2);
  const answer = await ask();
  expect(answer.kind).toBe('ok');
  const dumps = await straight.dump(lineTag(tenant, 'chat'));
  expect(dumps[0]!.receipts.map(({ state }) => state)).toEqual(['STARTED']);
  expect(await ask()).toMatchObject({ status: 409, metadata: { code: 'duplicate_request' } });
});

describe('one call of the ledger', () => {
  const line = () =>
    new Line({ ledger: gateway.ledger } as never, tenant, 'direct', budgetOf(termsOf()));
  const sent = (text: string) =>
    proxy.commands.filter((command) => words(command).some((word) => word.includes(text))).length;

  test.each(FAULTS.filter((fault) => fault !== 'double'))(
    '%s: it ends, and is sent once',
    async (fault) => {
      const mine = line();
      await mine.admit('warm', 1);
      const id = mine.id('k');
      await mine.reserve('k', 10);
      proxy.arm(fault, 1);
      proxy.commands.length = 0;
      const operation = `operation-${tenant}`;
      const started = performance.now();
      const outcome = await gateway.ledger.start(id, operation).catch((error: Error) => error);
      expect(performance.now() - started).toBeLessThan(20 * TIMEOUT_MS);
      if (fault !== 'cut behind') expect(outcome).toBeInstanceOf(LedgerUnavailable);
      await until(() => gateway.ledger.redis.status === 'ready' && !holed(fault));
      await new Promise((resolve) => setTimeout(resolve, 50));
      expect(sent(operation)).toBe(1);
    },
  );

  /** A hole is left by a new connection alone. */
  function holed(fault: Fault): boolean {
    return fault === 'hole' && gateway.ledger.redis.status !== 'ready';
  }

  test('answers that come late are nobody else’s', async () => {
    const mine = line();
    proxy.lateMs = 3 * TIMEOUT_MS;
    for (const fault of ['late', 'cut after the run', 'double'] as const) {
      proxy.arm(fault, 3);
      const keys = Array.from({ length: 10 }, (_, at) => `${fault} ${at}`);
      await Promise.all(
        keys.map(async (key, at) => {
          await new Promise((resolve) => setTimeout(resolve, at));
          for (;;) {
            const request = mine.request(key, 1);
            const outcome = await gateway.ledger.reserve(request).catch(() => undefined);
            if (outcome === undefined) {
              // As a Check does: a connection comes back only while nobody keeps the process busy.
              await new Promise((resolve) => setTimeout(resolve, 5));
              continue;
            }
            expect(outcome.kind).toMatch(/moved|same/);
            expect('receipt' in outcome && outcome.receipt?.reservation).toBe(mine.id(key));
            return;
          }
        }),
      );
    }
  });
});

describe('a connection for documents', () => {
  test.each(FAULTS.filter((fault) => fault !== 'double'))(
    '%s: a command ends, and is sent once',
    async (fault) => {
      const other = openRedis({ path: proxy.path }, keep());
      await until(() => other.status === 'ready');
      proxy.commands.length = 0;
      proxy.arm(fault, 1);
      proxy.lateMs = 100;
      const value = `value-${tenant}`;
      await other.set('documents', value).catch(() => undefined);
      await until(() => other.status === 'ready');
      await until(async () => (await other.get('documents').catch(() => undefined)) !== undefined);
      const mine = proxy.commands.filter((command) => command.includes(value));
      expect(mine.length).toBe(1);
      other.disconnect();
    },
  );
});

test('two hundred connections killed during Checks: every answer is true, none is left open', async () => {
  const admin = openRedis({ path: redis.socket }, keep());
  await until(() => admin.status === 'ready');
  let killing = true;
  let killed = 0;
  const killer = (async () => {
    for (; killing && killed < 200; killed++) {
      await admin.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
      await new Promise((resolve) => setTimeout(resolve, 40));
    }
  })().catch((error: Error) => error);
  const counted = { ok: 0, error: 0, denied: 0 };
  const answers = new Map<string, Answer>();
  const client = async (name: string): Promise<void> => {
    for (let round = 0; killed < 200 && round < 2000; round++) {
      const subject = `${name}-${round}`;
      const answer = await ask(subject);
      counted[answer.kind]++;
      answers.set(subject, answer);
      await gateway.log(entryOf(answer, subject));
    }
  };
  await Promise.all(['a', 'b', 'c', 'd'].map(client));
  killing = false;
  expect(await killer).toBeUndefined();
  admin.disconnect();
  expect(killed).toBe(200);
  expect(counted.ok).toBeGreaterThan(30);
  expect(counted.denied).toBe(0);
  await until(() => gateway.ledger.redis.status === 'ready');
  for (const [subject, answer] of answers) await settles(answer, subject);
  expect(proxy.connections).toBeLessThanOrEqual(2);
}, 60_000);
