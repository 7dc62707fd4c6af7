/** `earmark serve` from outside: what a user, Envoy and an orchestrator see of it. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect as connectHttp2 } from 'node:http2';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { run } from '../../src/cli/run.js';
import { embeddedSocket } from '../../src/ledger/embedded.js';
import { anyServer } from '../support/binaries.js';
import {
  accessLogs,
  checks,
  type client,
  configure,
  ledgers,
  logMessage,
  question,
  type Running,
  startEarmark,
  statusOf,
} from '../support/earmark.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const POLICY = `schema: admissionBudget.v1
generation: 1
unmatched: refuse
budgets:
  - route: chat
    subject: request.headers["x-tenant"]
    burst: 100000
    maxReservation: 1000
`;
const ROLLOUT = `schema: rollout.v1
generation: 1
default: { mode: enforce }
`;

let folder = '';
const running: Running[] = [];
const servers: TestRedis[] = [];
const closers: (() => void)[] = [];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'earmark-serve-'));
  writeFileSync(join(folder, 'policy.yaml'), POLICY);
  writeFileSync(join(folder, 'rollout.yaml'), ROLLOUT);
});

afterEach(async () => {
  for (const close of closers.splice(0)) close();
  for (const { process: child, ended } of running.splice(0)) {
    child.kill('SIGKILL');
    await ended;
  }
  // A ledger outlives an earmark that was killed.
  const data = join(folder, 'data');
  const orphan = existsSync(data) ? await serverPid(embeddedSocket(data)).catch(() => 0) : 0;
  if (orphan > 0) process.kill(orphan, 'SIGKILL');
  for (const server of servers.splice(0)) await server.stop();
  rmSync(folder, { recursive: true });
});

async function redis(args: readonly string[] = [], at?: string): Promise<TestRedis> {
  const server = await startRedis({ args, ...(at === undefined ? {} : { folder: at }) });
  servers.push(server);
  return server;
}

async function serve(ledger: object, more: object = {}, name?: string): Promise<Running> {
  const settings = { ledger, policy: './policy.yaml', rollout: './rollout.yaml', ...more };
  const earmark = await startEarmark(configure(folder, settings, name));
  running.push(earmark);
  return earmark;
}

function asking(address: string) {
  const { call, close } = checks(address);
  closers.push(close);
  return call('Check');
}

async function readiness({ admin }: Running): Promise<{ status: number; missing: string[] }> {
  const answer = await fetch(`http://${admin}/readyz`);
  const { missing } = (await answer.json()) as { missing: string[] };
  return { status: answer.status, missing };
}

async function metrics({ admin }: Running): Promise<string> {
  return (await fetch(`http://${admin}/metrics`)).text();
}

const ready = (earmark: Running) =>
  until(async () => (await readiness(earmark)).status === 200, 'earmark is ready');

it('starts and lives without a ledger, and recovers by itself', async () => {
  const late = join(folder, 'late');
  const earmark = await serve({ url: `unix:${late}/s` });
  const check = asking(earmark.envoy);
  const { missing } = await readiness(earmark);
  expect(missing.join()).toMatch(/not reached yet/);
  expect(missing).toContain(`there is no connection to the ledger at ${late}/s`);
  const closed = await check(question('a', 'r1'));
  expect(statusOf(closed)).toBe(503);
  expect(JSON.stringify([closed, missing, earmark.log])).not.toMatch(/Offline|writeable|ioredis/);
  expect(await metrics(earmark)).toMatch(/^earmark_ledger_usable 0$/m);
  // However long it is away, each part of earmark says it once.
  await new Promise((resolve) => setTimeout(resolve, 500));
  expect(earmark.log.filter(({ msg }) => msg === 'sweep failed')).toHaveLength(1);

  rmSync(late, { recursive: true, force: true });
  mkdirSync(late);
  const server = await redis(['--appendonly', 'yes'], late);
  await ready(earmark);
  expect(statusOf(await check(question('a', 'r2')))).toBe(0);
  expect(await metrics(earmark)).toMatch(/^earmark_ledger_usable 1$/m);

  await server.stop();
  servers.length = 0;
  await until(async () => (await readiness(earmark)).status === 503, 'it is not ready');
  expect(await metrics(earmark)).toMatch(/^earmark_ledger_usable 0$/m);
  expect(statusOf(await check(question('a', 'r3')))).toBe(503);
  await redis(['--appendonly', 'yes'], late);
  await ready(earmark);
  expect(earmark.process.exitCode).toBeNull();
});

it('answers every Check under way before it ends', async () => {
  const server = await redis();
  const earmark = await serve({ url: `unix:${server.socket}` });
  const check = asking(earmark.envoy);
  await ready(earmark);
  expect(statusOf(await check(question('a', 'first')))).toBe(0);

  server.process.kill('SIGSTOP');
  const deadline = Date.now() + 3000;
  const pending = Array.from({ length: 50 }, (_, at) =>
    check(question('a', `r${at}`), { deadline }).then(statusOf),
  );
  // Seen by earmark, not only sent: the metrics count what it has begun.
  await new Promise((resolve) => setTimeout(resolve, 300));
  earmark.process.kill('SIGTERM');
  await until(() => earmark.log.some(({ msg }) => msg === 'earmark is told to end'));
  // Longer than what streams are given: it is the Checks that are waited for.
  await new Promise((resolve) => setTimeout(resolve, 800));
  server.process.kill('SIGCONT');
  const answers = await Promise.all(pending);
  expect(answers.every((status) => status === 0 || status === 503)).toBe(true);
  expect(answers).toContain(0);
  expect(await earmark.ended).toBe(0);
});

it('loses no evidence when it ends while its ledger is away', async () => {
  const at = join(folder, 'ledger');
  mkdirSync(at);
  const server = await redis(['--appendonly', 'yes'], at);
  const earmark = await serve({ url: `unix:${server.socket}` });
  const check = asking(earmark.envoy);
  await ready(earmark);
  const answers = await Promise.all([1, 2, 3].map((key) => check(question('a', `r${key}`))));
  const logs = accessLogs(earmark.envoy);
  closers.push(logs.close);
  const stream = logs.stream('StreamAccessLogs');

  // Its ledger is away when the entries come, and when it is told to end.
  await servers.pop()!.stop();
  for (const answer of answers) stream.write(logMessage(answer, 10, 20));
  const waiting = async () => (await metrics(earmark)).includes('earmark_evidence_waiting 3');
  await until(waiting, 'the evidence waits');
  earmark.process.kill('SIGTERM');
  await until(() => earmark.log.some(({ msg }) => msg === 'earmark is told to end'));
  // Longer than what streams are given.
  await new Promise((resolve) => setTimeout(resolve, 800));
  await redis(['--appendonly', 'yes'], at);
  expect(await earmark.ended).toBe(0);
  // By itself, or by the next that finds it in the ledger.
  await serve({ url: `unix:${server.socket}` });
  const environment = { EARMARK_LEDGER_URL: `unix:${server.socket}` };
  await until(async () => {
    const { lines } = JSON.parse(await audit(environment)) as { lines: object[] };
    expect(lines[0]).toMatchObject({
      books: [{ spent: 90, reserved: 0 }],
      reservations: { SETTLED: 3 },
    });
    return true;
  }, 'all of it is booked');
});

it('says NOT_SERVING while it ends', async () => {
  const server = await redis();
  const earmark = await serve({ url: `unix:${server.socket}` });
  const { loadPackageDefinition, credentials } = await import('@grpc/grpc-js');
  const { loadSync } = await import('@grpc/proto-loader');
  const { protoPath } = await import('grpc-health-check');
  // biome-ignore lint/suspicious/noExplicitAny: a client of a package loaded at run time
  const health = loadPackageDefinition(loadSync(protoPath, { enums: String })) as any;
  const stub = new health.grpc.health.v1.Health(earmark.envoy, credentials.createInsecure());
  const seen: string[] = [];
  const watching = stub.watch({ service: '' });
  watching.on('data', ({ status }: { status: string }) => seen.push(status));
  watching.on('error', () => {});
  await until(() => seen.length === 1);
  earmark.process.kill('SIGTERM');
  expect(await earmark.ended).toBe(0);
  stub.close();
  expect(seen).toEqual(['SERVING', 'NOT_SERVING']);
});

it('has the same balances after kill -9 of everything', async () => {
  const data = join(folder, 'data');
  const first = await serve({ data }, {}, 'first.yaml');
  await ready(first);
  const check = asking(first.envoy);
  const tenants = ['a', 'b', 'c'];
  await Promise.all(
    tenants.flatMap((tenant) => [1, 2, 3].map((at) => check(question(tenant, `r${at}`)))),
  );
  const stub = ledgers(first.api);
  closers.push(stub.close);
  const settled = await reserveAndSettle(stub.call);
  const before = await pages(embeddedSocket(data));
  expect(before.length).toBe(4);

  const pid = await serverPid(embeddedSocket(data));
  first.process.kill('SIGKILL');
  process.kill(pid, 'SIGKILL');
  await first.ended;
  const second = await serve({ data }, {}, 'second.yaml');
  await ready(second);
  expect(await pages(embeddedSocket(data))).toEqual(before);
  const again = ledgers(second.api);
  closers.push(again.close);
  expect(await again.call('GetReservation')({ reservation: settled })).toMatchObject({
    state: 'SETTLED',
    actualUnits: '7',
  });
});

it('takes over the server that a killed earmark left behind', async () => {
  const data = join(folder, 'data');
  const first = await serve({ data }, {}, 'first.yaml');
  const orphan = await serverPid(embeddedSocket(data));
  first.process.kill('SIGKILL');
  await first.ended;
  const second = await serve({ data }, {}, 'second.yaml');
  await ready(second);
  expect(await serverPid(embeddedSocket(data))).not.toBe(orphan);
  await until(() => !isAlive(orphan), 'the orphan is gone');

  // And an orderly end leaves none.
  const owned = await serverPid(embeddedSocket(data));
  second.process.kill('SIGTERM');
  expect(await second.ended).toBe(0);
  expect(isAlive(owned)).toBe(false);
});

it('ends its ledger last, also when a terminal tells both to end', async () => {
  const config = configure(folder, { ledger: { data: join(folder, 'data') } });
  const earmark = await startEarmark(config, true);
  running.push(earmark);
  process.kill(-earmark.process.pid!, 'SIGINT');
  expect(await earmark.ended).toBe(0);
  expect(earmark.log.filter(({ level }) => level !== 'info')).toEqual([]);
});

it('ends its ledger also when it ends by an error', async () => {
  const data = join(folder, 'data');
  const embedded = new URL('../../dist/ledger/embedded.js', import.meta.url);
  const script = `import { EmbeddedLedger } from ${JSON.stringify(embedded.href)};
    const nothing = () => {};
    const log = { debug: nothing, info: nothing, warn: nothing, error: nothing };
    await EmbeddedLedger.start({ data: ${JSON.stringify(data)}, log, meter: {} });
    process.stdout.write('started');
    process.stdin.once('data', () => process.exit(1));`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    env: { ...process.env, EARMARK_REDIS_SERVER: anyServer() },
  });
  await once(child.stdout, 'data');
  const pid = await serverPid(embeddedSocket(data));
  child.stdin.write('end');
  await once(child, 'close');
  await until(() => !isAlive(pid), 'the server is gone');
});

it('shares a data folder with nobody, and says who has it', async () => {
  const data = join(folder, 'data');
  const first = await serve({ data }, {}, 'first.yaml');
  const second = await serve({ data }, {}, 'second.yaml');
  expect(await second.ended).toBe(1);
  expect(second.said.join()).toContain(`belongs to the earmark with pid ${first.process.pid}`);
});

it('rereads the override at SIGHUP', async () => {
  const earmark = await serve({ url: `unix:${folder}/nobody` });
  const check = asking(earmark.envoy);
  expect(statusOf(await check(question('a', 'r1')))).toBe(503);
  configure(folder, { ledger: { url: `unix:${folder}/nobody` }, override: 'off' });
  earmark.process.kill('SIGHUP');
  await until(() => earmark.log.some(({ msg }) => msg === 'override changed'));
  expect(statusOf(await check(question('a', 'r2')))).toBe(0);
  expect(await readiness(earmark)).toEqual({ status: 200, missing: [] });
  // A file that became wrong changes nothing.
  writeFileSync(earmark.config, 'override: maybe');
  earmark.process.kill('SIGHUP');
  const told = () => earmark.log.find(({ msg }) => msg.includes('cannot be read again'));
  await until(() => told() !== undefined);
  expect(JSON.stringify(told())).toMatch(/override: .*is not one of none, off/);
  expect(JSON.stringify(told())).not.toContain(' at ');
  expect(statusOf(await check(question('a', 'r3')))).toBe(0);
});

it('admits nothing on a server that evicts', async () => {
  const server = await redis(['--maxmemory-policy', 'allkeys-lru']);
  const earmark = await serve({ url: `unix:${server.socket}` });
  const check = asking(earmark.envoy);
  expect(statusOf(await check(question('a', 'r1')))).toBe(503);
  expect((await readiness(earmark)).missing.join()).toContain('set it to noeviction');
  expect(await pages(server.socket)).toEqual([]);
});

it('takes the place of a socket that a killed process left', async () => {
  const server = await redis();
  const listen = { envoy: `unix:${folder}/envoy.sock`, admin: '127.0.0.1:0' };
  const first = await serve({ url: `unix:${server.socket}` }, { listen });
  const second = await serve({ url: `unix:${server.socket}` }, { listen }, 'second.yaml');
  expect(await second.ended).toBe(1);
  expect(second.said.join()).toMatch(/listen.envoy .*another process listens/);
  first.process.kill('SIGKILL');
  await first.ended;
  const third = await serve({ url: `unix:${server.socket}` }, { listen });
  await ready(third);
  expect(statusOf(await asking(listen.envoy)(question('a', 'r1')))).toBe(0);
});

it('ends with every error of its settings, and with those of its policy', async () => {
  const wrong = await serve({ url: 'redis+cluster://a' }, { override: 'maybe' });
  expect(await wrong.ended).toBe(1);
  expect(wrong.said).toEqual([
    expect.stringContaining('redis+cluster:// is not built yet'),
    expect.stringContaining('override: "maybe" is not one of none, off'),
  ]);
  writeFileSync(join(folder, 'policy.yaml'), POLICY.replace('burst: 100000', 'burst: many'));
  const policy = await serve({ url: `unix:${folder}/nobody` });
  expect(await policy.ended).toBe(1);
  expect(policy.said.join()).toContain('budgets[0].burst');
});

it('bears a ping every few milliseconds', async () => {
  const server = await redis();
  const { envoy } = await serve({ url: `unix:${server.socket}` });
  const session = connectHttp2(`http://${envoy}`);
  await once(session, 'connect');
  closers.push(() => session.destroy());
  let refused = '';
  session.on('goaway', (code) => {
    refused = `GOAWAY ${code}`;
  });
  session.on('error', (error) => {
    refused = error.message;
  });
  for (let pings = 0; pings < 200; pings++) {
    await new Promise((resolve, reject) => {
      session.ping((error) => (error ? reject(error) : resolve(undefined)));
    });
  }
  expect(refused).toBe('');
});

it('shows its services by reflection', async () => {
  const server = await redis();
  const { envoy, api } = await serve({ url: `unix:${server.socket}` });
  expect(await services(envoy)).toEqual([
    'envoy.service.accesslog.v3.AccessLogService',
    'envoy.service.auth.v3.Authorization',
    'envoy.service.ratelimit.v3.RateLimitService',
    'grpc.health.v1.Health',
  ]);
  expect(await services(api)).toEqual(['earmark.v1.Ledger', 'grpc.health.v1.Health']);
});

async function services(address: string): Promise<string[]> {
  const { loadPackageDefinition, credentials } = await import('@grpc/grpc-js');
  const { loadSync } = await import('@grpc/proto-loader');
  const proto = join(
    'node_modules/@grpc/reflection/build/proto/grpc/reflection/v1/reflection.proto',
  );
  // biome-ignore lint/suspicious/noExplicitAny: a client of a package loaded at run time
  const loaded = loadPackageDefinition(loadSync(proto)) as any;
  const stub = new loaded.grpc.reflection.v1.ServerReflection(
    address,
    credentials.createInsecure(),
  );
  closers.push(() => stub.close());
  const call = stub.ServerReflectionInfo();
  const listed = new Promise<string[]>((resolve, reject) => {
    call.on('error', reject);
    call.on('data', (data: { listServicesResponse: { service: { name: string }[] } }) =>
      resolve(data.listServicesResponse.service.map(({ name }) => name).sort()),
    );
  });
  call.write({ listServices: '' });
  const names = await listed;
  call.end();
  return names;
}

async function reserveAndSettle(call: ReturnType<typeof client>['call']): Promise<string> {
  const { reservation } = await call('ReserveCapacity')({
    subject: 'd',
    route: 'chat',
    idempotencyKey: 'k',
    requestDigest: `sha256:${'0'.repeat(64)}`,
    units: 10,
  });
  await call('StartOperation')({ reservation, operation: 'op' });
  await call('SettleUsage')({ reservation, operation: 'op', actualUnits: 7 });
  return reservation!;
}

async function audit(environment: Record<string, string>): Promise<string> {
  const said: string[] = [];
  const streams = { out: (text: string) => void said.push(text), err: () => {} };
  await run(['audit', '--json'], environment, streams);
  return said.join('');
}

/** The lines as Redis holds them, byte for byte. */
async function pages(socket: string): Promise<[string, Record<string, string>][]> {
  const redis = new Redis({ path: socket });
  try {
    const keys = (await redis.keys('earmark:{*}:l')).sort();
    return await Promise.all(
      keys.map(
        async (key): Promise<[string, Record<string, string>]> => [key, await redis.hgetall(key)],
      ),
    );
  } finally {
    redis.disconnect();
  }
}

async function serverPid(socket: string): Promise<number> {
  const redis = new Redis({ path: socket, retryStrategy: () => null });
  redis.on('error', () => {});
  try {
    return Number(/process_id:(\d+)/.exec(await redis.info('server'))?.[1]);
  } finally {
    redis.disconnect();
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
