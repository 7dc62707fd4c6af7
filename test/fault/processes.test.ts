/** Earmarks that are killed, stopped and started again; clocks that are wrong; two versions. */
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { describe, expect, onTestFinished, test } from 'vitest';
import { run } from '../../src/cli/run.js';
import { Documents } from '../../src/ledger/documents.js';
import { Ledger } from '../../src/ledger/ledger.js';
import { SCHEMA, SchemaUnknown } from '../../src/ledger/schema.js';
import { Spool } from '../../src/ledger/spool.js';
import type { Running } from '../support/earmark.js';
import { budgetOf, Line, ready, termsOf } from '../support/ledger.js';
import { startRedis } from '../support/redis.js';
import { until } from '../support/until.js';
import { type Client, isReady, missing, World } from './world.js';

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

function newWorld(): World {
  const world = new World();
  onTestFinished(() => world.end());
  return world;
}

/** Numbers that are the same for the same seed. */
function drawn(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    return Math.floor((state / 2_147_483_648) * below);
  };
}

describe('earmarks under load', () => {
  test('killed, stopped and started again at random: every use is booked once', async () => {
    const world = newWorld();
    const server = await world.redis('server');
    const ledger = { url: `unix:${server.socket}` };
    const seed = Date.now() % 100_000;
    const draw = drawn(seed);
    const start = async (name: string): Promise<Client> => {
      const earmark = await world.serve(ledger, {}, `${name}.yaml`);
      return world.client(earmark);
    };
    const clients = [await start('one'), await start('two')];
    await Promise.all(clients.map(({ earmark }) => isReady(earmark)));
    const loads = clients.map((_client, n) => world.load(`load${n}`, () => clients[n]!, 2));
    for (const load of loads) await load.passes(5);
    for (let step = 0; step < 6; step++) {
      const n = draw(2);
      const { earmark } = clients[n]!;
      const what = draw(3);
      if (what === 0) {
        earmark.process.kill('SIGSTOP');
        await pause(200 + draw(1000));
        earmark.process.kill('SIGCONT');
      } else {
        earmark.process.kill(what === 1 ? 'SIGKILL' : 'SIGTERM');
        await earmark.ended;
        clients[n] = await start(`again-${step}`);
      }
      await pause(draw(300));
    }
    for (const load of loads) await load.passes(5, 60_000);
    for (const load of loads) await load.stop();
    // Log entries that were under way to a process that was killed are lost, as Envoy loses them.
    const straight = await world.ledger(server);
    for (const load of loads) await load.isTrue(straight, `seed ${seed}`);
  }, 180_000);

  test('killed while the ledger is away: what was on disk is booked by the next', async () => {
    const world = newWorld();
    const server = await world.redis('server');
    const ledger = { url: `unix:${server.socket}` };
    const first = await world.serve(ledger);
    await isReady(first);
    const client = world.client(first);
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, n) => client.check('acme', `r${n}`)),
    );
    const through = answers.filter(({ status }) => status === 0);
    expect(through.length).toBeGreaterThan(0);
    await server.stop();
    for (const answer of through) client.log(answer, 'any');
    const disk = join(world.folder, 'spool');
    await until(() => readdirSync(disk).length > 0, 'it is on disk');
    await pause(500);
    first.process.kill('SIGKILL');
    await first.ended;
    const again = await world.redis('server');
    await world.serve(ledger, {}, 'next.yaml');
    const straight = await world.ledger(again);
    await until(async () => {
      const { spent, reserved } = await world.sums(straight, 'acme');
      return spent === 50 * through.length && reserved === 0;
    }, 'it is booked');
    await until(() => readdirSync(disk).length === 0, 'the disk is empty');
  }, 60_000);
});

describe('clocks', () => {
  const preload = fileURLToPath(new URL('./clock.mjs', import.meta.url));

  test.each([3_600_000, -3_600_000])(
    'an earmark whose clock is %i ms off',
    async (shift) => {
      const world = newWorld();
      const server = await world.redis('server');
      const environment = {
        NODE_OPTIONS: `--import ${preload}`,
        EARMARK_TEST_CLOCK_MS: String(shift),
      };
      const ledger = { url: `unix:${server.socket}` };
      const wrong = await world.serve(ledger, {}, 'wrong.yaml', environment);
      const right = await world.serve(ledger, {}, 'right.yaml');
      const said = Date.parse(String((wrong.log[0] as unknown as { time: string }).time));
      expect(Math.abs(said - shift - Date.now())).toBeLessThan(60_000);
      await Promise.all([wrong, right].map((earmark) => isReady(earmark)));
      const clients = [wrong, right].map((earmark) => world.client(earmark));
      // Checks here, their log entries there.
      const answer = await clients[0]!.check('both', 'r1');
      expect(answer.status).toBe(0);
      clients[1]!.log(answer, 'r1');
      const load = world.load('tenant', () => clients[0]!, 2);
      await load.passes(20);
      await load.stop();
      const straight = await world.ledger(server);
      await load.settles(straight);
      await until(async () => (await world.sums(straight, 'both')).spent === 50);
      // What was answered while the ledger was away is booked too, though its time is only a guess.
      server.process.kill('SIGSTOP');
      const lost = await clients[0]!.check('lost', 'r2');
      expect(lost.status).toBe(503);
      server.process.kill('SIGCONT');
      clients[1]!.log(lost, 'r2');
      await until(async () => (await world.sums(straight, 'lost')).reserved === 0);
      expect((await world.sums(straight, 'lost')).spent).toBe(0);
    },
    60_000,
  );

  test('a ledger whose clock jumps an hour, forth and back: nothing opens early, nothing runs backwards', async () => {
    const server = await startRedis();
    onTestFinished(() => server.stop());
    let now = Date.now();
    const clock = () => now;
    const redis = { path: server.socket };
    const ledger = new Ledger({ redis, prefix: 'earmark:', timeoutMs: 5000, clock });
    await ready(ledger);
    onTestFinished(() => ledger.stop());
    const refill = { units: 10, everyMs: 1000 };
    const terms = termsOf({ limit: { burst: 1000, refill }, holdTtlMs: 30_000 });
    const line = new Line({ ledger } as never, 'subject', 'route', budgetOf(terms));
    await line.admit('spends', 1000);
    await line.settle('spends', 1000);
    now += 1000;
    const held = await line.reserve('held', 10);
    expect(held).toMatchObject({ kind: 'moved' });
    // Back an hour: no refill, no admission, and what is held stays held.
    now -= 3_600_000;
    expect(await line.reserve('early', 10)).toMatchObject({ kind: 'limited', waitMs: 1000 });
    await line.sweep();
    expect(await line.start('held')).toMatchObject({ kind: 'moved' });
    await line.settle('held', 10);
    // It stands where it was until the time is as far again.
    now += 3_600_000;
    expect(await line.reserve('still early', 10)).toMatchObject({ kind: 'limited' });
    now += 1000;
    expect(await line.reserve('in time', 10)).toMatchObject({ kind: 'moved' });
    // Forth an hour: no more than the burst, and a hold that time ended is returned once.
    now += 3_600_000;
    await line.settleDown();
    const { receipt, line: view } = (await ledger.get(line.id('in time')))!;
    expect(receipt.state).toBe('EXPIRED');
    expect(view.limits[0]!.counters).toMatchObject({ available: 1000, reserved: 0 });
  });
});

describe('two versions on one ledger', () => {
  test('one that knows the form of the ledger works; the form is in it', async () => {
    const world = newWorld();
    const server = await world.redis('server');
    const earmark = await world.serve({ url: `unix:${server.socket}` });
    await isReady(earmark);
    expect(await world.admin(server).get('earmark:schema')).toBe(SCHEMA);
  });

  test('one that does not is refused at its start, and its commands too, with the schema named', async () => {
    const world = newWorld();
    const server = await world.redis('server');
    const admin = world.admin(server);
    await admin.set('earmark:schema', '99');
    const keys = await admin.keys('*');
    const url = `unix:${server.socket}`;
    const earmark = await world.serve({ url });
    expect(await earmark.ended).toBe(1);
    const words = /the ledger has schema 99, and this earmark knows schema 2/;
    expect(earmark.said.join()).toMatch(words);
    writeFileSync(join(world.folder, 'p.yaml'), 'schema: admissionBudget.v1\n');
    for (const args of [['audit'], ['policy', 'show'], ['rollout', 'show']]) {
      const { code, err } = await command(args, url);
      expect([code, err.join()]).toEqual([1, expect.stringMatching(words)]);
    }
    expect(await admin.keys('*')).toEqual(keys);
    // With a prefix of its own it is another ledger.
    const other = await world.serve({ url, prefix: 'mine:' }, {}, 'other.yaml');
    await isReady(other);
  }, 60_000);

  test('a ledger that becomes newer under a running earmark: nothing is written any more', async () => {
    const world = newWorld();
    const server = await world.redis('server');
    const earmark: Running = await world.serve({ url: `unix:${server.socket}` });
    await isReady(earmark);
    const client = world.client(earmark);
    const { answer, request } = await client.pass('acme');
    const admin = world.admin(server);
    await admin.set('earmark:schema', '99');
    await until(async () => /schema 99/.test(await missing(earmark)), 'it is seen', 15_000);
    const straight = await world.ledger(server);
    const before = await straight.dump((await tags(straight))[0]!);
    expect((await client.check('acme', 'r2')).status).toBe(503);
    expect(JSON.stringify(earmark.log)).toContain('the ledger has schema 99');
    client.log(answer, request);
    // A line that is due, and evidence that somebody left: neither is for this one any more.
    await admin.zadd('earmark:due:0', 1, 'a-line');
    await admin.xadd('earmark:evidence', '1-1', 'entry', '{}');
    await pause(1000);
    expect(await straight.dump((await tags(straight))[0]!)).toEqual(before);
    expect(await admin.zscore('earmark:due:0', 'a-line')).toBe('1');
    expect(await admin.xlen('earmark:evidence')).toBe(1);
    // And goes on where it was, once the ledger is what it was.
    await admin.zrem('earmark:due:0', 'a-line');
    await admin.del('earmark:evidence');
    await admin.set('earmark:schema', SCHEMA);
    await until(async () => (await world.sums(straight, 'acme')).spent === 50, 'it is booked');
  }, 60_000);

  test('told to end while the ledger is newer: evidence goes to the disk, not to the ledger', async () => {
    const world = newWorld();
    const server = await world.redis('server');
    const earmark = await world.serve({ url: `unix:${server.socket}` });
    await isReady(earmark);
    const client = world.client(earmark);
    const { answer, request } = await client.pass('acme');
    const admin = world.admin(server);
    await admin.set('earmark:schema', '99');
    await until(async () => /schema 99/.test(await missing(earmark)), 'it is seen', 15_000);
    client.log(answer, request);
    await pause(500);
    earmark.process.kill('SIGTERM');
    await earmark.ended;
    expect(await admin.exists('earmark:evidence')).toBe(0);
    expect(readdirSync(join(world.folder, 'spool')).length).toBe(1);
  }, 60_000);

  test('a closed ledger: no freeze of a route, no document, no evidence', async () => {
    const server = await startRedis();
    onTestFinished(() => server.stop());
    const redis = new Redis({ path: server.socket });
    onTestFinished(() => redis.disconnect());
    const why = new SchemaUnknown('99');
    const closed = () => why;
    const documents = new Documents(redis, 'earmark:', closed);
    await expect(documents.freezeRoute('chat', -1)).rejects.toBe(why);
    await expect(documents.unfreezeRoute('chat')).rejects.toBe(why);
    await expect(documents.version()).rejects.toBe(why);
    const spool = new Spool(redis, 'earmark:', closed);
    await expect(spool.put(['1'])).rejects.toBe(why);
    await expect(spool.take(1)).rejects.toBe(why);
    expect(await redis.keys('*')).toEqual([]);
  }, 60_000);
});

async function tags(ledger: Ledger): Promise<string[]> {
  const found: string[] = [];
  for await (const page of ledger.lines()) found.push(...page);
  return found;
}

async function command(args: string[], url: string): Promise<{ code: number; err: string[] }> {
  const err: string[] = [];
  const streams = { out: () => undefined, err: (text: string) => void err.push(text) };
  const code = await run(args, { EARMARK_LEDGER_URL: url }, streams as never);
  return { code, err };
}
