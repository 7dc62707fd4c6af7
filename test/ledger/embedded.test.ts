import { lstatSync, mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { Redis } from 'ioredis';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { EmbeddedLedger, findServer } from '../../src/ledger/embedded.js';
import { anyServer } from '../support/binaries.js';
import { type Kept, keep } from '../support/quiet.js';
import { until } from '../support/until.js';

let folder = '';
let kept: Kept;
const running: EmbeddedLedger[] = [];

beforeEach(() => {
  process.env.EARMARK_REDIS_SERVER = anyServer();
  folder = realpathSync(mkdtempSync(join(tmpdir(), 'earmark-embedded-')));
  kept = keep();
});

afterEach(async () => {
  for (const embedded of running.splice(0)) await embedded.stop().catch(() => {});
  delete process.env.EARMARK_REDIS_SERVER;
  rmSync(folder, { recursive: true });
});

async function start(data = folder): Promise<EmbeddedLedger> {
  const embedded = await EmbeddedLedger.start({ data, log: kept, meter: kept });
  running.push(embedded);
  return embedded;
}

async function ask<T>(socket: string, question: (redis: Redis) => Promise<T>): Promise<T> {
  const redis = new Redis({ path: socket });
  redis.on('error', () => {});
  try {
    return await question(redis);
  } finally {
    redis.disconnect();
  }
}

const pidOf = (socket: string): Promise<number> =>
  ask(socket, async (redis) => Number(/process_id:(\d+)/.exec(await redis.info('server'))?.[1]));

it('keeps what was written over an orderly stop', async () => {
  const first = await start();
  await ask(first.socket, (redis) => redis.set('k', 'v'));
  await first.stop();
  const second = await start();
  expect(await ask(second.socket, (redis) => redis.get('k'))).toBe('v');
  expect(await ask(second.socket, (redis) => redis.info())).toMatch(
    /maxmemory_policy:noeviction[\s\S]*aof_enabled:1/,
  );
});

it('starts the server again when it dies, with everything acknowledged', async () => {
  const embedded = await start();
  await ask(embedded.socket, (redis) => redis.set('k', 'v'));
  const pid = await pidOf(embedded.socket);
  process.kill(pid, 'SIGKILL');
  await until(async () => (await pidOf(embedded.socket)) !== pid);
  expect(await ask(embedded.socket, (redis) => redis.get('k'))).toBe('v');
  expect(kept.metrics.get('earmark_embedded_restarts_total')).toBe(1);
});

it('has one owner, which the other is told', async () => {
  const embedded = await start();
  await expect(start()).rejects.toThrow(`belongs to the earmark with pid ${process.pid}`);
  await embedded.stop();
  await start();
});

it('works in a folder whose path is too long for a socket, with spaces in it', async () => {
  const long = join(folder, 'a long name '.repeat(10), 'and one more');
  const embedded = await start(long);
  expect(Buffer.byteLength(embedded.socket)).toBeLessThanOrEqual(100);
  expect(await ask(embedded.socket, (redis) => redis.ping())).toBe('PONG');
  const link = dirname(embedded.socket);
  expect(lstatSync(link).isSymbolicLink()).toBe(true);
  await embedded.stop();
  expect(() => lstatSync(link)).toThrow();
});

it('says what the server said when it does not start', async () => {
  mkdirSync(join(folder, 'appendonlydir/appendonly.aof.manifest'), { recursive: true });
  await expect(start()).rejects.toThrow(/ended at its start:\n.*append/s);
});

it('names the remedy where no server is new enough', () => {
  expect(findServer({ EARMARK_REDIS_SERVER: anyServer() })).toBe(anyServer());
  expect(() => findServer({ EARMARK_REDIS_SERVER: '/bin/true' })).toThrow(
    'EARMARK_REDIS_SERVER=/bin/true is no server that runs: install Redis 7',
  );
});
