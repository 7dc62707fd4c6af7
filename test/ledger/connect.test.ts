import { rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import type { LedgerConfig } from '../../src/config/types.js';
import { judgeServer, openRedis, redisOptions, ServerWatch } from '../../src/ledger/connect.js';
import { redis7Server, redis8Server, valkeyServer } from '../support/binaries.js';
import { keep } from '../support/quiet.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

function options(url: string, password?: string) {
  const ledger: LedgerConfig = { url, data: undefined, password, prefix: '', timeoutMs: 1 };
  return redisOptions(ledger);
}

describe('the way to the server', () => {
  it.each([
    ['redis://a', { host: 'a', port: 6379 }],
    ['redis://[::1]:7/3', { host: '::1', port: 7, db: 3 }],
    ['redis://u%40:p%3A@a', { host: 'a', port: 6379, username: 'u@', password: 'p:' }],
    ['rediss://a:1', { host: 'a', port: 1, tls: { servername: 'a' } }],
    ['unix:/run/r.sock', { path: '/run/r.sock' }],
    ['unix:///run/r.sock', { path: '/run/r.sock' }],
  ])('%s', (url, expected) => {
    expect(options(url)).toEqual(expected);
  });

  it('takes the password from its file', () => {
    expect(options('redis://u@a', 'x')).toMatchObject({ username: 'u', password: 'x' });
    expect(options('unix:/r.sock', 'x')).toMatchObject({ path: '/r.sock', password: 'x' });
  });
});

describe('the server', () => {
  const servers: TestRedis[] = [];
  afterEach(async () => {
    for (const server of servers.splice(0)) await server.stop();
  });

  async function watch(args: readonly string[], binary = valkeyServer()) {
    const server = await startRedis({ binary, args });
    servers.push(server);
    const kept = keep();
    const redis = openRedis({ path: server.socket }, kept);
    const watching = new ServerWatch(redis, 'earmark:', kept, kept);
    await until(() => kept.metrics.has('earmark_ledger_usable'));
    return {
      kept,
      redis,
      watching,
      end: () => {
        watching.stop();
        redis.disconnect();
      },
    };
  }

  const binaries = [valkeyServer(), redis8Server(), redis7Server()].filter((b) => b !== undefined);
  it.each(binaries)('%s may hold a ledger; without a file it is warned about', async (binary) => {
    const bare = await watch([], binary);
    expect(bare.watching.refused).toBeUndefined();
    expect(bare.kept.lines).toEqual(['warn about the ledger']);
    bare.end();
    const kept = await watch(['--appendonly', 'yes'], binary);
    expect(kept.watching.refused).toBeUndefined();
    expect(kept.kept.lines).toEqual([]);
    kept.end();
  });

  it('that is gone is not usable, until it is there again', async () => {
    const at = await watch([]);
    expect(at.kept.metrics.get('earmark_ledger_usable')).toBe(1);
    at.redis.disconnect(true);
    await until(() => at.kept.metrics.get('earmark_ledger_usable') === 0);
    await until(() => at.kept.metrics.get('earmark_ledger_usable') === 1);
    await servers[0]!.stop();
    await until(() => at.kept.metrics.get('earmark_ledger_usable') === 0);
    at.end();
  });

  it('that evicts is refused, also when it begins to at run time', async () => {
    const at = await watch(['--maxmemory-policy', 'allkeys-lru']);
    expect(at.watching.refused).toMatch('maxmemory-policy is allkeys-lru');
    await at.redis.config('SET', 'maxmemory-policy', 'noeviction');
    await at.watching.check();
    expect(at.watching.refused).toBeUndefined();
    await at.redis.config('SET', 'maxmemory-policy', 'volatile-ttl');
    await at.watching.check();
    expect(at.watching.refused).toMatch('set it to noeviction');
    expect(at.kept.metrics.get('earmark_ledger_usable')).toBe(0);
    at.end();
  });

  it('that forbids INFO is refused with the remedy', async () => {
    const at = await watch([]);
    await at.redis.call('ACL', 'SETUSER', 'default', '-info');
    await at.watching.check();
    expect(at.watching.refused).toMatch('let this user run INFO');
    at.end();
  });

  it('that became a replica is left for what its name leads to, without anybody asking', async () => {
    const [old, fresh] = [await startRedis(), await startRedis()];
    servers.push(old, fresh);
    const name = join(old.folder, 'name');
    symlinkSync(old.folder, name);
    const redis = openRedis({ path: join(name, 's') }, keep());
    const watching = new ServerWatch(redis, 'earmark:', keep(), keep());
    await until(() => watching.refused === undefined);
    await redis.call('REPLICAOF', '127.0.0.1', '1');
    await watching.check();
    expect(watching.refused).toMatch('name the primary');
    rmSync(name);
    symlinkSync(fresh.folder, name);
    await until(() => watching.refused === undefined, 'the new one is found');
    watching.stop();
    redis.disconnect();
  });

  it('is refused before it was reached', () => {
    const redis = openRedis({ path: '/nowhere/s', lazyConnect: true }, keep());
    const watching = new ServerWatch(redis, 'earmark:', keep(), keep());
    expect(watching.refused).toMatch('not reached');
    watching.stop();
    redis.disconnect();
  });

  const good = 'redis_version:7.0.0\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n';
  it.each([
    ['an old Redis', good.replace('7.0.0', '6.2.1'), 'version 6.2.1'],
    ['an old Valkey', `${good}valkey_version:7.2.5\r\n`, 'version 7.2.5'],
    ['a cluster', `${good}redis_mode:cluster\r\n`, 'runs as cluster'],
    ['a sentinel', `${good}redis_mode:sentinel\r\n`, 'runs as sentinel'],
    ['a replica', good.replace('master', 'slave'), 'name the primary'],
    ['nothing', '', 'let this user run INFO'],
  ])('%s is refused', (_what, info, why) => {
    expect(judgeServer(good).refused).toBeUndefined();
    expect(judgeServer(info).refused).toMatch(why);
  });
});
