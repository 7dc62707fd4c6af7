/** Faults that others had where capacity is counted: several gateways in front of one real ledger. */
import { Client, credentials } from '@grpc/grpc-js';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import { auditLine } from '../../src/ledger/audit.js';
import { envoyBytes } from '../support/envoy-messages.js';
import { type Answer, type Gateway, type Json, startGateway } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const policy = `
schema: admissionBudget.v1
generation: 1
unmatched: refuse
budgets:
  - route: refilled
    match: context.route == "refilled"
    subject: request.headers["x-tenant"]
    burst: 1000
    refill: { units: 100, every: 1s }
    usage: { fields: { total: x-usage-total-tokens } }
  - route: window
    match: context.route == "window"
    subject: request.headers["x-tenant"]
    burst: 100
    refill: { units: 100, window: 1m }
  - route: small
    match: context.route == "small"
    subject: request.headers["x-tenant"]
    burst: 100
  - route: limited
    match: context.route == "limited"
    subject: request.headers["x-tenant"]
    burst: 400
    estimate: { completion: { default: 512 } }
  - route: none
    subject: request.headers["x-tenant"]
    burst: 1000
    receiptRetention: 30m
`;
const rollout = '{ schema: rollout.v1, generation: 1, default: { mode: enforce } }';

let redis: TestRedis;
/** Two of them, with no clock of their own. */
let gateways: Gateway[];
let gateway: Gateway;
/** ms since 1970, of the ledger. */
let clock = Date.UTC(2027, 2, 9, 12, 0, 30);
let requests = 0;
let tenant = '';

beforeAll(async () => {
  redis = await startRedis();
  const { socket, folder } = redis;
  const options = { socket, folder, policy, rollout, timeoutMs: 10_000 };
  gateways = [
    await startGateway({ ...options, clock: () => clock }),
    await startGateway({ ...options, clock: () => clock }),
  ];
  gateway = gateways[0]!;
});
afterAll(async () => {
  for (const each of gateways) await each.stop();
  await redis.stop();
});
beforeEach(() => {
  tenant = `tenant-${++requests}`;
});
afterEach(async () => {
  for (const route of ['refilled', 'window', 'small', 'limited', 'none']) await counters(route);
});

/** A request that holds so many units. */
function ask(units: number, route = 'none', through = gateway, more: Json = {}): Promise<Answer> {
  const headers = {
    ...{ 'x-tenant': tenant, 'x-request-id': `r${++requests}` },
    ...{ 'content-type': 'application/json', ...more },
  };
  // Its own bytes count as well, at four for a token.
  const body = JSON.stringify({ max_tokens: 10_000 });
  const prompt = Math.ceil(body.length / 4);
  const sent = JSON.stringify({ max_tokens: units - prompt }).padEnd(body.length);
  const http = { method: 'POST', path: '/v1/chat', headers, body: sent };
  return through.check(http, { context: { route } });
}

async function dump(route = 'none') {
  const [line] = await gateway.ledger.dump(lineTag(tenant, route));
  if (line !== undefined) expect(auditLine(line, false).problems).toEqual([]);
  return line;
}
const counters = async (route = 'none') => (await dump(route))?.pages.at(-1)?.books[0]?.counters;

function settle(answer: Answer, units: number, through = gateway) {
  const { reservation, operation } = answer.metadata as { reservation: string; operation: string };
  return through.ledger.settle({ reservation, operation, actual: [units], grade: 'reported' });
}

const statusesOf = (answers: readonly Answer[]) => answers.map(({ status }) => status).sort();

describe('more at once than there is', () => {
  test('five at once, each for 600 of 1000: one goes on', async () => {
    const answers = await Promise.all(Array.from({ length: 5 }, () => ask(600)));
    expect(statusesOf(answers)).toEqual([200, 429, 429, 429, 429]);
    const refused = answers.filter(({ status }) => status === 429);
    for (const { headers } of refused) expect(headers['x-earmark-limited-by']).toBe('capacity');
    expect(await counters()).toMatchObject({ available: 400, reserved: 600 });
  });

  test('the same through two gateways', async () => {
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_none, at) => ask(600, 'none', gateways[at % 2]!)),
    );
    expect(statusesOf(answers).filter((status) => status === 200)).toEqual([200]);
    expect(await counters()).toMatchObject({ available: 400, reserved: 600 });
  });

  test('fifty refusals leave what is there as it was', async () => {
    await ask(900);
    const answers = await Promise.all(Array.from({ length: 50 }, () => ask(200)));
    expect(new Set(statusesOf(answers))).toEqual(new Set([429]));
    expect(await counters()).toMatchObject({ available: 100, reserved: 900 });
    expect((await ask(100)).kind).toBe('ok');
  });

  test('a small cost after a large one', async () => {
    const statuses: number[] = [];
    for (const units of [80, 30, 20, 10]) statuses.push((await ask(units, 'small')).status);
    expect(statuses).toEqual([200, 429, 200, 429]);
  });

  test('two gateways reserve and settle at random: the sums hold at every look', async () => {
    let looked = 0;
    let going = true;
    const look = async (): Promise<void> => {
      while (going) {
        const now = await counters();
        if (now) {
          expect(now.available).toBeGreaterThanOrEqual(0);
          expect(now.reserved + now.spent).toBeLessThanOrEqual(
            now.opening + now.minted + now.overdraftIssued,
          );
          looked++;
        }
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    };
    const work = async (through: Gateway): Promise<void> => {
      for (let times = 0; times < 30; times++) {
        const answer = await ask(50, 'none', through);
        if (answer.kind === 'ok') await settle(answer, times % 9 === 0 ? 5 : 0, through);
      }
    };
    const looking = look();
    await Promise.all(Array.from({ length: 8 }, (_none, at) => work(gateways[at % 2]!)));
    going = false;
    await looking;
    expect(looked).toBeGreaterThan(0);
    const line = (await dump())!;
    const spent = line.receipts.reduce((sum, { actual }) => sum + (actual?.[0] ?? 0), 0);
    expect(await counters()).toMatchObject({ reserved: 0, spent, available: 1000 - spent });
  });
});

describe('refill', () => {
  test('a wait is a whole number, never negative, and true', async () => {
    await ask(1000, 'refilled');
    const refused = await ask(350, 'refilled');
    const ms = Number(refused.headers['retry-after-ms']);
    expect([ms, refused.headers['retry-after']]).toEqual([3500, '4']);
    clock += ms - 1;
    const early = await ask(350, 'refilled');
    expect([early.status, early.headers['retry-after-ms']]).toEqual([429, '1']);
    expect(early.headers['retry-after']).toBe('1');
    clock += 1;
    const admitted = await ask(350, 'refilled');
    expect(admitted.kind).toBe('ok');
    expect(admitted.responseHeaders).toMatchObject({
      'x-ratelimit-remaining-tokens': '0',
      'x-ratelimit-reset-tokens': '10',
    });
  });

  test('refusals do not put it off: first success at the promised time', async () => {
    await ask(1000, 'refilled');
    const from = clock;
    const promised = Number((await ask(1000, 'refilled')).headers['retry-after-ms']);
    let answer: Answer | undefined;
    while (answer?.kind !== 'ok') {
      clock += 100;
      answer = await ask(1000, 'refilled');
      expect(clock - from).toBeLessThanOrEqual(10_000);
    }
    expect(clock - from).toBe(promised);
  });

  test('settlements do not move a window: a grant at each boundary, and never above the burst', async () => {
    clock = Date.UTC(2027, 2, 9, 13, 0, 30);
    const grants: number[] = [];
    let before = 0;
    for (let seconds = 0; seconds < 180; seconds += 5) {
      const answer = await ask(10, 'window');
      if (answer.kind === 'ok') await settle(answer, 10);
      const { minted, available } = (await counters('window'))!;
      expect(available).toBeLessThanOrEqual(100);
      if (minted > before) grants.push((clock / 1000) % 60);
      before = minted;
      clock += 5000;
    }
    expect(grants).toEqual([0, 0, 0]);
  });

  test('two refunds into a full bucket lapse', async () => {
    const held = [await ask(400, 'refilled'), await ask(400, 'refilled')];
    clock += 60_000;
    await ask(10, 'refilled').then((answer) => settle(answer, 0));
    const before = (await counters('refilled'))!.lapsed;
    for (const answer of held) await settle(answer, 0);
    const { available, lapsed, reserved } = (await counters('refilled'))!;
    expect([available, reserved]).toEqual([1000, 0]);
    expect(lapsed - before).toBe(800);
    expect((await ask(1000, 'refilled')).kind).toBe('ok');
  });

  test('what was spent does not come back because nobody came for long', async () => {
    await settle(await ask(1000), 1000);
    clock += 400 * 86_400_000;
    const tag = lineTag(tenant, 'none');
    for (let times = 0; times < 3; times++) await gateway.ledger.sweep(tag, 100);
    expect((await dump())!.receipts).toEqual([]);
    expect((await ask(10)).status).toBe(429);
    expect((await counters())!.available).toBe(0);
  });
});

describe('names and bodies', () => {
  test('Acme is not acme, in any place', async () => {
    tenant = 'Acme';
    await ask(900);
    tenant = 'acme';
    expect((await ask(900)).kind).toBe('ok');
    expect(lineTag('Acme', 'none')).not.toBe(lineTag('acme', 'none'));
  });

  test('a default completion above the whole limit does not refuse the first request', async () => {
    const headers = { 'x-tenant': tenant, 'x-request-id': `r${++requests}` };
    const body = '{"messages":[{"role":"user","content":"hi"}]}';
    const http = { method: 'POST', path: '/v1/chat/completions', headers, body };
    const answer = await gateway.check(http, { context: { route: 'limited' } });
    expect([answer.kind, answer.metadata.units]).toEqual(['ok', 400]);
  });

  test.each([
    ['prediction', { prediction: { type: 'content', content: 'x'.repeat(400) } }],
    ['tools', { tools: [{ function: { parameters: { description: 'x'.repeat(400) } } }] }],
    ['instructions', { instructions: 'x'.repeat(400) }],
    ['system', { system: 'x'.repeat(400) }],
    ['a stored prompt without input', { prompt: { id: 'p', variables: { a: 'x'.repeat(400) } } }],
  ])('%s counts by its bytes', async (_what, more) => {
    const headers = { 'x-tenant': tenant, 'x-request-id': `r${++requests}` };
    const body = JSON.stringify({ max_tokens: 1, ...more });
    const http = { method: 'POST', path: '/v1/responses', headers, body };
    const answer = await gateway.check(http, { context: { route: 'none' } });
    expect(answer.metadata.units).toBe(Math.ceil(body.length / 4) + 1);
  });
});

const LOGS = '/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs';

/** The end of a request that used 3. */
function entryOf(ours: Json): Buffer {
  const entry = {
    common_properties: {
      ...{ access_log_type: 'DownstreamEnd', upstream_wire_bytes_sent: '300' },
      ...{ time_to_last_upstream_rx_byte: '0.01s', upstream_request_attempt_count: 1 },
      metadata: { filter_metadata: { 'envoy.filters.http.ext_authz': ours } },
    },
    response: { response_code: 200, response_headers: { 'x-usage-total-tokens': '3' } },
  };
  const http_logs = { log_entry: [entry] };
  return envoyBytes('envoy.service.accesslog.v3.StreamAccessLogsMessage', { http_logs });
}

describe('what must not stay', () => {
  test('a Check given up at any point: its entry frees what it made', async () => {
    const ids = Array.from({ length: 50 }, () => `given-up-${++requests}`);
    let late = 0;
    await Promise.all(
      ids.map(async (id, at) => {
        const headers = { 'x-tenant': tenant, 'x-request-id': id, 'content-type': 'text/plain' };
        const http = { method: 'POST', path: '/v1/chat', headers };
        const options = { context: { route: 'refilled' }, deadlineMs: 1 + (at % 25) };
        await gateway.check(http, options).catch(() => late++);
      }),
    );
    expect(late).toBeGreaterThan(0);
    await gateway.log(
      ...ids.map((request_id) => ({
        common_properties: { access_log_type: 'DownstreamEnd' },
        request: { request_method: 'POST', path: '/v1/chat', request_id },
        response: { response_code: 0, response_code_details: 'downstream_remote_disconnect' },
      })),
    );
    await until(async () => ((await counters('refilled'))?.reserved ?? 0) === 0, 'all is freed');
    const states = new Set((await dump('refilled'))?.receipts.map(({ state }) => state));
    expect([...states].filter((state) => state !== 'SETTLED')).toEqual([]);
  });

  test('a log whose stream breaks again and again: settled and unknown are what was admitted', async () => {
    const answers = await Promise.all(Array.from({ length: 60 }, () => ask(10)));
    const client = new Client(gateway.address, credentials.createInsecure());
    const same = (value: Buffer): Buffer => value;
    const open = () => {
      const stream = client.makeClientStreamRequest(LOGS, same, same, () => undefined);
      stream.on('error', () => undefined);
      return stream;
    };
    let stream = open();
    for (const [at, { metadata }] of answers.entries()) {
      stream.write(entryOf(metadata));
      if (at % 20 !== 19) continue;
      stream.cancel();
      stream = open();
    }
    // A new stream, on which a last entry comes through: what was not read by then never will be.
    const last = await ask(10);
    stream.end(entryOf(last.metadata));
    const own = last.metadata.reservation;
    await until(async () => {
      const all = (await dump())!.receipts;
      return all.find(({ reservation }) => reservation === own)!.state === 'SETTLED';
    });
    await gateway.settler.idle();
    client.close();
    clock += 600_000;
    await gateway.ledger.sweep(lineTag(tenant, 'none'), 100);
    const states = (await dump())!.receipts.map(({ state }) => state);
    const of = (one: string) => states.filter((state) => state === one).length;
    expect(of('SETTLED') + of('USAGE_UNKNOWN')).toBe(61);
    expect(await counters()).toMatchObject({
      spent: 3 * of('SETTLED'),
      reserved: 10 * of('USAGE_UNKNOWN'),
    });
  });

  test('all that is not an account goes by itself', async () => {
    await ask(600);
    const keys = await gateway.ledger.redis.keys('*');
    const ttls = await Promise.all(
      keys.map(async (key) => [key, await gateway.ledger.redis.pttl(key)] as const),
    );
    const forever = ttls.filter(([, ttl]) => ttl === -1).map(([key]) => key);
    // Lines with their two indexes, the index of lines that are due, what is signed with, and the form of it all.
    const accounts = /\}:(l|due|done)$|^earmark:.*(due|mac|schema|form)/;
    expect(forever.filter((key) => !accounts.test(key))).toEqual([]);
    expect(ttls.some(([, ttl]) => ttl > 0)).toBe(true);
  });
});
