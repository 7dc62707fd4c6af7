/** Any number of sweepers, some of which die: each hold comes back once, and no line is forgotten. */
import { afterEach, expect, it } from 'vitest';
import { auditLine } from '../../src/ledger/audit.js';
import { DUE_SHARDS } from '../../src/ledger/keys.js';
import { Ledger } from '../../src/ledger/ledger.js';
import { loadScript } from '../../src/ledger/scripts.js';
import { Sweeper } from '../../src/ledger/sweeper.js';
import { type Line, onEachServer, ready, termsOf, told } from '../support/ledger.js';
import { keep } from '../support/quiet.js';
import { until } from '../support/until.js';

onEachServer('sweepers', (bench) => {
  const ledgers: Ledger[] = [];
  const sweepers: Sweeper[] = [];
  afterEach(async () => {
    for (const sweeper of sweepers.splice(0)) await sweeper.stop();
    for (const ledger of ledgers.splice(0)) await ledger.stop();
    bench.ledger = first ?? bench.ledger;
  });
  let first: Ledger | undefined;

  /** Sweepers live by the server's own clock, so here lines do too. */
  async function atRealTime(): Promise<void> {
    first ??= bench.ledger;
    bench.ledger = await another();
    await bench.redis.flushall();
  }

  async function another(): Promise<Ledger> {
    const redis = { path: bench.server.socket };
    const ledger = new Ledger({ redis, prefix: 'sweep:', timeoutMs: 5000 });
    ledgers.push(ledger);
    await ready(ledger);
    return ledger;
  }

  async function sweeper(everyMs = 5, leaseMs = 30_000): Promise<Sweeper> {
    const kept = keep();
    const ledger = await another();
    const made = new Sweeper({ ledger, everyMs, leaseMs, log: kept, meter: kept });
    sweepers.push(made);
    return made;
  }

  const brief = termsOf({ holdTtlMs: 20, usageDeadlineMs: 60_000 });

  /** All indexes of lines that want a sweep, with the times. */
  async function index(): Promise<Map<string, number>> {
    const found = new Map<string, number>();
    for (let shard = 0; shard < DUE_SHARDS; shard++) {
      const key = bench.ledger.keys.dueLines(shard);
      const list = (await bench.redis.call('ZRANGE', key, '0', '-1', 'WITHSCORES')) as unknown[];
      const flat = list.flat().map(String);
      for (let i = 0; i < flat.length; i += 2) found.set(flat[i]!, Number(flat[i + 1]));
    }
    return found;
  }

  async function available(line: Line): Promise<number> {
    return (await line.open()).available;
  }

  it('four at once return each of 500 holds once', async () => {
    await atRealTime();
    const lines = Array.from({ length: 500 }, () => bench.line(brief));
    await Promise.all(lines.map((line) => bench.ledger.reserve(line.request('a', 600))));
    for (let i = 0; i < 4; i++) (await sweeper()).start();
    await until(async () => (await available(lines.at(-1)!)) === 1000, 'the last hold');
    await until(async () => {
      const all = await Promise.all(lines.map(available));
      return all.every((units) => units === 1000);
    }, 'every hold');
    for (const running of sweepers) await running.stop();
    for (const line of lines) {
      const dump = await line.dump();
      // reserve, EXPIRING, EXPIRED: one write each.
      expect(dump.seq).toBe(3);
      expect(auditLine(dump, false).problems).toEqual([]);
      expect(dump.receipts).toMatchObject([{ state: 'EXPIRED' }]);
    }
  });

  it('one that dies between claim and finish is followed by another after the lease', async () => {
    await atRealTime();
    const line = bench.line(brief);
    await bench.ledger.reserve(line.request('a', 600));
    await new Promise((resolve) => setTimeout(resolve, 30));
    const shard = bench.ledger.keys.shardOf(line.tag);
    const claim = loadScript('claim');
    const claimed = (await bench.redis.eval(
      ...[claim.source, 1, bench.ledger.keys.dueLines(shard)],
      ...['claim', '16', '300'],
    )) as string[][];
    expect(claimed[0]?.slice(1)).toEqual([line.tag]);
    const next = await sweeper();
    expect(await next.pass()).toBe(0);
    expect((await line.receipt('a')).state).toBe('RESERVED');
    await until(async () => (await next.pass()) === 1, 'the lease');
    expect(await available(line)).toBe(1000);
  });

  it.each([
    ['before the lease ends', 60_000],
    ['after the lease ends', 1],
  ])('what is announced between sweep and finish, due %s, is not lost', async (_when, lease) => {
    await atRealTime();
    const line = bench.line(brief);
    await bench.ledger.reserve(line.request('a', 600));
    await new Promise((resolve) => setTimeout(resolve, 30));
    const next = await sweeper();
    const claim = loadScript('claim');
    const key = bench.ledger.keys.dueLines(bench.ledger.keys.shardOf(line.tag));
    const claimed = (await bench.redis.eval(
      ...[claim.source, 1, key],
      ...['claim', '16', String(lease)],
    )) as string[][];
    await bench.ledger.sweep(line.tag, 10);
    const swept = await bench.ledger.sweep(line.tag, 10);
    await bench.ledger.reserve(line.request('b', 600));
    await bench.redis.eval(
      ...[claim.source, 1, key],
      ...['finish', line.tag, claimed[0]![0]!, String(swept.nextDue)],
    );
    await until(async () => {
      await next.pass();
      return (await line.receipt('b')).state === 'EXPIRED';
    }, 'the visit for the second hold');
  });

  it('a line is in the index as long as time will change it, and no longer', async () => {
    await atRealTime();
    const kept = termsOf({ holdTtlMs: 20, retentionMs: 100 });
    const line = bench.line(kept);
    await bench.ledger.reserve(line.request('a', 600));
    expect(await index()).toEqual(new Map([[line.tag, expect.any(Number)]]));
    const next = await sweeper();
    await until(async () => {
      await next.pass();
      return (await index()).size === 0;
    }, 'the end of all times');
    expect(await line.dump()).toMatchObject({ receipts: [], pages: [{ kept: 0 }] });
  });

  it('the usage deadline is kept though the hold of an admit is shorter', async () => {
    await atRealTime();
    const line = bench.line(termsOf({ holdTtlMs: 20, usageDeadlineMs: 100 }));
    await bench.ledger.admit({ ...line.request('a', 600), operation: 'a' });
    const next = await sweeper();
    await until(async () => {
      await next.pass();
      return (await line.receipt('a')).state === 'USAGE_UNKNOWN';
    }, 'the usage deadline');
  });

  it('what ends USAGE_UNKNOWN late is folded, and a debt it made is repaid', async () => {
    await atRealTime();
    const refill = { units: 100, everyMs: 1 };
    const line = bench.line(
      termsOf({ holdTtlMs: 20, usageDeadlineMs: 40, retentionMs: 50, limit: { refill } }),
    );
    await bench.ledger.admit({ ...line.request('a', 600), operation: 'a' });
    const next = await sweeper();
    await until(async () => {
      await next.pass();
      return (await line.receipt('a')).state === 'USAGE_UNKNOWN' && (await index()).size === 0;
    }, 'the usage deadline');
    expect(told(await line.settle('a', 5000))).toBe('moved SETTLED_WITH_DEBT');
    await until(async () => {
      await next.pass();
      const { receipts } = await line.dump();
      const { overdraftIssued, overdraftRepaid } = await line.open();
      return receipts.length === 0 && overdraftIssued === overdraftRepaid;
    }, 'the fold');
  });

  it('more steps than one run may take are done in one visit', async () => {
    await atRealTime();
    const line = bench.line(brief);
    const keys = Array.from({ length: 250 }, (_, i) => `k${i}`);
    await Promise.all(keys.map((key) => bench.ledger.reserve(line.request(key, 4))));
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(await (await sweeper()).pass()).toBe(1);
    expect(await available(line)).toBe(1000);
  });

  it('a line that cannot be swept does not stop the others', async () => {
    await atRealTime();
    const [broken, ...others] = Array.from({ length: 20 }, () => bench.line(brief));
    for (const line of [broken!, ...others]) await bench.ledger.reserve(line.request('a', 600));
    await bench.redis.set(bench.ledger.keys.line(broken!.tag), 'text');
    bench.lines = others;
    (await sweeper()).start();
    await until(async () => {
      const all = await Promise.all(others.map(available));
      return all.every((units) => units === 1000);
    }, 'the others');
  });
});
