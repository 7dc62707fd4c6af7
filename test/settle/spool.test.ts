/** The spool in a real ledger: each entry is taken once, the oldest first. */
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Spool } from '../../src/ledger/spool.js';
import { LedgerUnavailable } from '../../src/ledger/types.js';
import { startRedis, type TestRedis } from '../support/redis.js';

let server: TestRedis;
let redis: Redis;

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis({ path: server.socket, replyMapping: 'legacy', maxRetriesPerRequest: 0 });
});
afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

test('what was put is taken once, in order, in pieces', async () => {
  const spool = new Spool(redis, 'a:');
  expect(await spool.take(10)).toEqual([]);
  await spool.put(['1', '2', '{"ü":3}']);
  expect(await spool.take(2)).toEqual(['1', '2']);
  expect(await spool.take(2)).toEqual(['{"ü":3}']);
  expect(await spool.take(2)).toEqual([]);
});

test('two takers at once never get the same', async () => {
  const items = Array.from({ length: 100 }, (_, n) => String(n));
  await new Spool(redis, 'b:').put(items);
  const taken = await Promise.all(Array.from({ length: 20 }, () => new Spool(redis, 'b:').take(7)));
  const sorted = taken.flat().sort((a, b) => Number(a) - Number(b));
  expect(sorted).toEqual(items);
});

test('another prefix is another ledger', async () => {
  await new Spool(redis, 'c:').put(['1']);
  expect(await new Spool(redis, 'd:').take(1)).toEqual([]);
});

test('a server that is away is LedgerUnavailable', async () => {
  const away = new Redis({
    ...{ path: `${server.socket}-none`, lazyConnect: true, enableOfflineQueue: false },
    retryStrategy: () => null,
  });
  away.on('error', () => undefined);
  await expect(new Spool(away, 'a:').take(1)).rejects.toThrow(LedgerUnavailable);
  await expect(new Spool(away, 'a:').put(['1'])).rejects.toThrow(LedgerUnavailable);
});
