/** What was used while the ledger was away: first in memory, then on disk, then booked. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import { auditLine } from '../../src/ledger/audit.js';
import { DiskSpool, type Kept } from '../../src/settle/disk-spool.js';
import { WAITING_MAX } from '../../src/settle/waiting.js';
import { type Answer, type Gateway, type Json, startGateway } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const policy = `
schema: admissionBudget.v1
generation: 5
unmatched: refuse
budgets:
  - { route: chat, subject: 'request.headers["x-tenant"]', burst: 100000000, estimate: { fixed: 600 } }
`;
const rollout = '{ schema: rollout.v1, generation: 5, default: { mode: enforce } }';
const AOF = ['--appendonly', 'yes'];
const path = '/v1/chat';

let folder = '';
let disk = '';
let redis: TestRedis;
const gateways: Gateway[] = [];

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'earmark-spool-'));
  disk = join(folder, 'spool');
  redis = await startRedis({ folder, args: AOF });
});
afterEach(async () => {
  for (const gateway of gateways.splice(0)) await gateway.stop();
  await redis.stop();
  rmSync(folder, { recursive: true });
});

async function start(spool = disk): Promise<Gateway> {
  const some = spool === '' ? {} : { disk: spool };
  const { socket } = redis;
  const gateway = await startGateway({ socket, folder, policy, rollout, timeoutMs: 500, ...some });
  gateways.push(gateway);
  return gateway;
}

async function leave(gateway: Gateway): Promise<void> {
  gateways.splice(gateways.indexOf(gateway), 1);
  await gateway.stop();
}

async function back(): Promise<void> {
  redis = await startRedis({ folder, args: AOF });
}

let requests = 0;
const ask = (gateway: Gateway): Promise<Answer> => {
  const headers = { 'x-tenant': 'acme', 'x-request-id': `request-${++requests}` };
  return gateway.check({ method: 'POST', path, headers }, { deadlineMs: 10_000 });
};

function used(answer: Answer, total: number): Json {
  const ours = { 'envoy.filters.http.ext_authz': answer.metadata };
  return {
    common_properties: {
      metadata: { filter_metadata: { ...ours, 'llm.usage': { total_tokens: total } } },
      access_log_type: 'DownstreamEnd',
      upstream_wire_bytes_sent: '300',
      time_to_last_upstream_rx_byte: '0.1s',
      upstream_request_attempt_count: 1,
    },
    request: { request_method: 'POST', path, request_id: 'any' },
    response: { response_code: 200, response_code_details: 'via_upstream' },
  };
}

async function spent(gateway: Gateway): Promise<number | undefined> {
  const [line] = await gateway.ledger.dump(lineTag('acme', 'chat'));
  expect(auditLine(line!, false).problems).toEqual([]);
  return line!.pages.at(-1)!.books[0]!.counters.spent;
}

test('after three seconds it is on disk, and booked from there when the ledger is back', async () => {
  const gateway = await start();
  const answers = await Promise.all(Array.from({ length: 50 }, () => ask(gateway)));
  await redis.stop();
  await gateway.log(...answers.map((answer) => used(answer, 7)));
  expect(gateway.settler.waiting).toBe(50);
  await until(() => readdirSync(disk).length > 0, 'it is on disk');
  await until(() => gateway.settler.waiting === 0, 'and no longer in memory');
  await back();
  await until(() => readdirSync(disk).length === 0, 'the disk is empty again');
  expect(await spent(gateway)).toBe(350);
});

test('what a process had on disk, another books; twice the same is once', async () => {
  const first = await start();
  const answers = await Promise.all([ask(first), ask(first)]);
  await redis.stop();
  await first.log(...answers.map((answer) => used(answer, 9)));
  await leave(first);
  const [name] = readdirSync(disk);
  expect(readdirSync(disk).length).toBe(1);
  const text = readFileSync(join(disk, name!));
  await back();
  const second = await start();
  await until(() => readdirSync(disk).length === 0, 'the other has booked it');
  expect(await spent(second)).toBe(18);
  writeFileSync(join(disk, name!), text);
  await until(() => readdirSync(disk).length === 0, 'and looked at it again');
  expect(await spent(second)).toBe(18);
});

test('a line that cannot be read is told, and keeps nothing from the others', async () => {
  const first = await start();
  const answer = await ask(first);
  await redis.stop();
  await first.log(used(answer, 5));
  await leave(first);
  const file = join(disk, readdirSync(disk)[0]!);
  writeFileSync(file, `{"entry": \n${readFileSync(file, 'utf8')}not JSON\n`);
  await back();
  const second = await start();
  await until(() => readdirSync(disk).length === 0);
  expect(await spent(second)).toBe(5);
  expect(second.kept.lines).toContain('error lines of the spool cannot be read');
});

test('without a folder a stop loses it, and says so', async () => {
  const gateway = await start('');
  const answer = await ask(gateway);
  await redis.stop();
  await gateway.log(used(answer, 5));
  await leave(gateway);
  expect(gateway.kept.lines).toContain('error evidence lost: replay the file access log');
  expect(gateway.kept.metrics.get('earmark_evidence_total  overflow')).toBe(1);
  await back();
});

test('a full spool takes nothing more, and what it has stays whole', () => {
  const kept: Kept = { entry: { requestId: 'x'.repeat(100) } as never, since: 1 };
  const small = new DiskSpool(disk, 500);
  small.put([kept, kept]);
  expect(() => small.put([kept, kept])).toThrow('500 bytes at most');
  const files = small.files();
  expect(files.length).toBe(1);
  expect(small.read(files[0]!)).toEqual({ items: [kept, kept], broken: 0 });
  expect(readdirSync(disk)).toEqual(files);
});

test(`memory holds ${WAITING_MAX}; more goes to disk at once, and nothing is lost`, async () => {
  const gateway = await start();
  const answers = await Promise.all(Array.from({ length: 20 }, () => ask(gateway)));
  await redis.stop();
  const entries = answers.map((answer) => used(answer, 3));
  // The same twenty over and over: it is their number that counts here.
  const many = Array.from({ length: 100 }, () => entries).flat();
  for (let sent = 0; sent < WAITING_MAX + 4000; sent += many.length) {
    await gateway.log(...many);
    expect(gateway.settler.waiting).toBeLessThanOrEqual(WAITING_MAX);
  }
  await until(() => readdirSync(disk).length > 0);
  expect(gateway.kept.metrics.get('earmark_evidence_total  overflow')).toBeUndefined();
  await back();
  await until(() => readdirSync(disk).length === 0 && gateway.settler.waiting === 0, 'all', 30_000);
  expect(await spent(gateway)).toBe(60);
  const repeated = gateway.kept.metrics.get('earmark_evidence_total chat repeated') ?? 0;
  expect(repeated).toBeGreaterThanOrEqual(WAITING_MAX + 4000 - 20);
}, 60_000);
