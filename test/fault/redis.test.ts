/** What goes wrong with a server: clients get 503 or the truth, in time; what was used is booked; it recovers alone. */
import { rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import type { Running } from '../support/earmark.js';
import type { TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';
import { FaultProxy } from './proxy.js';
import { isReady, type Load, missing, World } from './world.js';

/** A world that ends with its test, whatever becomes of that. */
function newWorld(): World {
  const world = new World();
  onTestFinished(() => world.end());
  return world;
}

interface Stage {
  readonly world: World;
  readonly server: TestRedis;
  readonly earmark: Running;
  readonly load: Load;
}

/** A server, an earmark before it, and clients. */
async function stage(args: readonly string[] = []): Promise<Stage> {
  const world = newWorld();
  const server = await world.redis('server', args);
  const earmark = await world.serve({ url: `unix:${server.socket}` });
  await isReady(earmark);
  const client = world.client(earmark);
  const load = world.load('tenant', () => client, 2);
  await load.passes(10);
  return { world, server, earmark, load };
}

/** Everybody was told 0 or 503 in time; what was let through is booked, and nothing else. */
async function ends({ world, load, earmark }: Stage, server: TestRedis): Promise<void> {
  await load.stop();
  expect(Object.keys(load.counts).filter((status) => !['0', '503'].includes(status))).toEqual([]);
  // Envoy would have waited in vain for these: on a machine that has other things to do there may be some.
  const late = load.answers.filter((answer) => answer.late).length;
  expect(late).toBeLessThanOrEqual(load.answers.length / 2);
  await load.settles(await world.ledger(server));
  expect(earmark.process.exitCode).toBeNull();
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

describe('a server', () => {
  test('killed and started again, three times', async () => {
    const all = await stage();
    let { server } = all;
    for (let times = 0; times < 3; times++) {
      await server.stop();
      await pause(times === 0 ? 1500 : 300);
      server = await all.world.redis('server');
      await all.load.passes(10);
    }
    expect(all.load.counts[503]).toBeGreaterThan(0);
    await ends(all, server);
  }, 120_000);

  test('forgets its scripts, again and again: nobody notices', async () => {
    const all = await stage();
    const admin = all.world.admin(all.server);
    const before = all.load.answers.length;
    for (let times = 0; times < 50; times++) {
      await admin.script('FLUSH');
      await pause(20);
    }
    await all.load.passes(10);
    const refused = all.load.answers.slice(before).filter(({ status }) => status !== 0);
    // A run that is late on a busy machine is asked for again; that is not what this is about.
    expect(refused.length).toBeLessThanOrEqual(2);
    await ends(all, all.server);
  }, 120_000);

  test('takes nothing new when it is full, and books what runs', async () => {
    const all = await stage();
    const admin = all.world.admin(all.server);
    await all.load.stop();
    // One more that was let through, and whose end comes when there is no room left.
    const client = all.world.client(all.earmark);
    const open = await client.pass('open');
    await admin.config('SET', 'maxmemory', 1);
    expect((await client.check('open', 'full')).status).toBe(503);
    // Also by an earmark that starts only now.
    const second = await all.world.serve({ url: `unix:${all.server.socket}` }, {}, 'second.yaml');
    all.world.client(second).log(open.answer, open.request);
    const ledger = await all.world.ledger(all.server);
    await until(async () => {
      const [line] = await ledger.dump(lineTag('open', 'chat'));
      return line!.pages[0]!.books[0]!.counters.spent === 50;
    }, 'it is booked');
    await admin.config('SET', 'maxmemory', 0);
    await client.pass('again');
    await ends(all, all.server);
  }, 120_000);

  test('wants replicas that it does not have', async () => {
    const all = await stage();
    const admin = all.world.admin(all.server);
    await admin.config('SET', 'min-replicas-to-write', 1);
    const refused = all.load.counts[503] ?? 0;
    await until(() => (all.load.counts[503] ?? 0) > refused + 5, 'it is refused');
    expect(await missing(all.earmark)).toMatch(/NOREPLICAS/);
    await admin.config('SET', 'min-replicas-to-write', 0);
    await all.load.passes(10);
    await ends(all, all.server);
  }, 120_000);

  test('is still loading its file', async () => {
    const all = await stage();
    await all.load.passes(200);
    await all.server.stop();
    // Half a second for each key, or so.
    const slow = all.world.redis('server', ['--key-load-delay', '5000']);
    const server = await slow;
    await all.load.passes(10, 60_000);
    await ends(all, server);
  }, 120_000);

  test('is busy with a script of somebody else', async () => {
    const all = await stage(['--busy-reply-threshold', '100']);
    const killer = all.world.admin(all.server);
    await killer.ping();
    const busy = all.world.admin(all.server).eval('while true do end', 0);
    busy.catch(() => undefined);
    const refused = all.load.counts[503] ?? 0;
    await until(() => (all.load.counts[503] ?? 0) > refused + 5, 'it is refused');
    await until(async () => /BUSY/.test(await missing(all.earmark)), 'and named');
    await killer.script('KILL');
    await all.load.passes(10);
    await ends(all, all.server);
  }, 120_000);

  test('asks for another password', async () => {
    const world = newWorld();
    const server = await world.redis('server');
    const admin = world.admin(server);
    await admin.config('SET', 'requirepass', 'right');
    const file = join(world.folder, 'password');
    writeFileSync(file, 'wrong');
    const settings = { url: `unix:${server.socket}`, passwordFile: file };
    const earmark = await world.serve(settings);
    const client = world.client(earmark);
    expect((await client.check('a', 'r1')).status).toBe(503);
    const words = /connection to the ledger failed/;
    await until(() => earmark.log.some(({ msg }) => words.test(msg)), 'it is said');
    expect(JSON.stringify(earmark.log)).toContain('WRONGPASS');
    expect(JSON.stringify(earmark.log)).not.toMatch(/"wrong"|"right"/);
    await admin.config('SET', 'requirepass', 'wrong');
    await isReady(earmark);
    await client.pass('a');
  }, 60_000);

  test('is too old', async () => {
    const world = newWorld();
    const server = await world.redis('server');
    const proxy = await FaultProxy.listen(join(world.folder, 'proxy'), server.socket);
    onTestFinished(() => proxy.stop());
    // What INFO of a version 6 would say.
    proxy.rewrite = (answer) =>
      Buffer.from(
        answer
          .toString('latin1')
          .replace(/(redis_version|valkey_version):\d/g, (_all, name) => `${name}:6`),
        'latin1',
      );
    const earmark = await world.serve({ url: `unix:${proxy.path}` });
    await until(async () => /needs Redis 7 or Valkey 8/.test(await missing(earmark)), 'it is said');
    expect((await world.client(earmark).check('a', 'r1')).status).toBe(503);
  }, 60_000);

  test('is another one behind the same name', async () => {
    const all = await stage();
    const { world } = all;
    const name = join(world.folder, 'name');
    symlinkSync(join(world.folder, 'server'), name);
    const earmark = await world.serve({ url: `unix:${name}/s` }, {}, 'named.yaml');
    await isReady(earmark);
    const client = world.client(earmark);
    const load = world.load('named', () => client, 1);
    await load.passes(10);
    await all.load.stop();
    await load.stop();
    await load.settles(await world.ledger(all.server));
    // The new primary has what the old one had, and the old one follows from now on.
    const fresh = await world.redis('fresh');
    const old = world.admin(all.server);
    await copy(old, world.admin(fresh));
    await old.call('REPLICAOF', '127.0.0.1', '1');
    await until(async () => /role is slave/.test(await missing(earmark)), 'it is seen', 20_000);
    const again = world.load('again', () => client, 1);
    await until(() => (again.counts[503] ?? 0) > 0, 'it is refused');
    rmSync(name);
    symlinkSync(join(world.folder, 'fresh'), name);
    await again.passes(10);
    await again.stop();
    await again.settles(await world.ledger(fresh));
  }, 120_000);
});

describe('a server, for a while,', () => {
  test('stands still for five seconds', async () => {
    const all = await stage();
    const before = await memory(all.earmark);
    all.server.process.kill('SIGSTOP');
    await pause(5000);
    const during = await memory(all.earmark);
    const told = await missing(all.earmark);
    all.server.process.kill('SIGCONT');
    expect(told).toMatch(/ledger/);
    expect(during - before).toBeLessThan(60_000_000);
    await all.load.passes(10);
    const clients = await all.world.admin(all.server).client('LIST');
    expect(String(clients).trim().split('\n').length).toBeLessThanOrEqual(6);
    await ends(all, all.server);
  }, 120_000);

  test('becomes a replica, and a primary again', async () => {
    const all = await stage();
    const admin = all.world.admin(all.server);
    await admin.call('REPLICAOF', '127.0.0.1', '1');
    const refused = all.load.counts[503] ?? 0;
    await until(() => (all.load.counts[503] ?? 0) > refused + 5, 'it is refused');
    await until(async () => /role is slave/.test(await missing(all.earmark)), 'and named', 20_000);
    await admin.call('REPLICAOF', 'NO', 'ONE');
    await all.load.passes(10, 60_000);
    await ends(all, all.server);
  }, 120_000);

  test('evicts from now on', async () => {
    const all = await stage();
    const admin = all.world.admin(all.server);
    await admin.config('SET', 'maxmemory-policy', 'allkeys-lru');
    await until(async () => /set it to noeviction/.test(await missing(all.earmark)), '', 20_000);
    const passed = all.load.counts[0];
    await pause(500);
    expect(all.load.counts[0]! - passed!).toBeLessThanOrEqual(4);
    await admin.config('SET', 'maxmemory-policy', 'noeviction');
    await all.load.passes(10, 60_000);
    await ends(all, all.server);
  }, 120_000);
});

describe('a key of another type', () => {
  test.each([
    ['the line', (tag: string) => `earmark:{${tag}}:l`],
    ['its index of what is due', (tag: string) => `earmark:{${tag}}:due`],
  ])(
    '%s: that tenant gets 503, the others do not, and the log says why',
    async (_name, keyOf) => {
      const all = await stage();
      const admin = all.world.admin(all.server);
      const key = keyOf(lineTag('broken', 'chat'));
      await admin.set(key, 'something else');
      const client = all.world.client(all.earmark);
      expect((await client.check('broken', 'r1')).status).toBe(503);
      await client.pass('whole');
      await admin.del(key);
      await client.pass('broken');
      expect(await admin.exists(key)).toBe(1);
      await ends(all, all.server);
    },
    60_000,
  );

  test('the record of a request, and the index of lines: nobody notices', async () => {
    const all = await stage();
    const admin = all.world.admin(all.server);
    const keys = await admin.keys('earmark:due:*');
    for (const key of keys) await admin.set(key, 'something else');
    await all.load.passes(20);
    for (const key of keys) await admin.del(key);
    await all.load.passes(20);
    await ends(all, all.server);
  }, 60_000);
});

/** Every key as it is, from one server to another. */
async function copy(from: ReturnType<World['admin']>, to: ReturnType<World['admin']>) {
  for (const key of await from.keys('*')) {
    const dump = await from.dumpBuffer(key);
    await to.restore(key, 0, dump, 'REPLACE');
  }
}

/** Resident bytes of the process. */
async function memory({ admin }: Running): Promise<number> {
  const text = await (await fetch(`http://${admin}/metrics`)).text();
  return Number(/^earmark_process_resident_memory_bytes (\S+)/m.exec(text)?.[1]);
}
