/** A server that hangs, is not there, or goes away in the middle: every call ends in time, its outcome unknown. */
import { mkdirSync } from 'node:fs';
import { createServer, connect as dial, type Socket } from 'node:net';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.js';
import { Sweeper } from '../../src/ledger/sweeper.js';
import type { Outcome } from '../../src/ledger/types.js';
import { LedgerUnavailable } from '../../src/ledger/types.js';
import { type Line, onEachServer, ready, told } from '../support/ledger.js';
import { keep } from '../support/quiet.js';
import { startRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const TIMEOUT = 500;
/** What a loaded machine may add. */
const MARGIN = 350;

onEachServer('a server that is away', (bench) => {
  const open: { stop(): unknown }[] = [];
  afterEach(async () => {
    bench.server.process.kill('SIGCONT');
    for (const each of open.splice(0)) await each.stop();
  });

  function ledgerAt(path: string): Ledger {
    const ledger = new Ledger({ redis: { path }, prefix: 'earmark:', timeoutMs: TIMEOUT });
    open.push(ledger);
    return ledger;
  }

  async function quick(): Promise<Ledger> {
    const ledger = ledgerAt(bench.server.socket);
    await ready(ledger);
    return ledger;
  }

  interface Ended {
    readonly outcome: Outcome | undefined;
    readonly message: string;
    readonly ms: number;
  }

  async function timed(call: () => Promise<Outcome>): Promise<Ended> {
    const from = performance.now();
    const ms = () => performance.now() - from;
    return call().then(
      (outcome) => ({ outcome, message: '', ms: ms() }),
      (error: Error) => {
        expect(error).toBeInstanceOf(LedgerUnavailable);
        return { outcome: undefined, message: error.message, ms: ms() };
      },
    );
  }

  const asks = (ledger: Ledger, line: Line, key: string) =>
    timed(() => ledger.admit({ ...line.request(key, 1), operation: key }));
  const books = (ledger: Ledger, line: Line, key: string) =>
    timed(() =>
      ledger.settle({
        ...{ reservation: line.id(key), operation: key, actual: [1], grade: 'reported' },
      }),
    );

  describe('that hangs', () => {
    it('is given up in time by whoever asked, whenever that was', async () => {
      const ledger = await quick();
      const line = bench.line();
      await line.reserve('a', 1);
      bench.server.process.kill('SIGSTOP');
      const asked: Promise<Ended>[] = [];
      for (let i = 0; i < 12; i++) {
        asked.push(asks(ledger, line, `k${i}`), books(ledger, line, 'a'));
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      for (const { outcome, message, ms } of await Promise.all(asked)) {
        expect(outcome).toBeUndefined();
        expect(message).toMatch(/500 ms|too slow/);
        expect(ms).toBeGreaterThan(TIMEOUT - 5);
        expect(ms).toBeLessThan(TIMEOUT + MARGIN);
      }
      bench.server.process.kill('SIGCONT');
      await until(async () => (await books(ledger, line, 'a')).outcome !== undefined);
      // Asked again it is the same answer, whether the first one ran or not.
      const again = await asks(ledger, line, 'k0');
      expect(again.outcome?.kind).toMatch(/moved|same/);
      const { reserved, spent } = await line.open();
      expect(reserved + spent).toBeLessThanOrEqual(13);
    });

    it('does not pile up questions without end', async () => {
      const ledger = await quick();
      const line = bench.line();
      bench.server.process.kill('SIGSTOP');
      const asked = Array.from({ length: 25_000 }, (_, i) => asks(ledger, line, `k${i}`));
      const ended = await Promise.all(asked);
      const refused = ended.filter(({ message }) => message.includes('are waiting'));
      expect(refused.length).toBeGreaterThan(4_000);
      expect(ended.every(({ outcome }) => outcome === undefined)).toBe(true);
      bench.server.process.kill('SIGCONT');
      await until(async () => (await asks(ledger, line, 'later')).outcome !== undefined);
    });

    it('ends what is read from it, too', async () => {
      const ledger = await quick();
      const line = bench.line();
      await line.reserve('a', 1);
      bench.server.process.kill('SIGSTOP');
      const reads = [ledger.get(line.id('a')), ledger.dump(line.tag), ledger.macKey()];
      for (const read of reads) await expect(read).rejects.toBeInstanceOf(LedgerUnavailable);
      bench.server.process.kill('SIGCONT');
      await until(async () => (await ledger.get(line.id('a'))) !== undefined);
    });
  });

  it('that is not there at the start is used as soon as it is', async () => {
    const path = join(bench.server.folder, 'later');
    const ledger = ledgerAt(join(path, 's'));
    const line = bench.line();
    bench.lines = [];
    const first = await asks(ledger, line, 'a');
    expect(first.outcome).toBeUndefined();
    expect(first.ms).toBeLessThan(TIMEOUT + MARGIN);
    mkdirSync(path);
    const server = await startRedis({ folder: path });
    open.push(server);
    await until(async () => (await asks(ledger, line, 'a')).outcome?.kind === 'moved');
  });

  it('is told once by the sweeper, in words of ours, and so is that it is back', async () => {
    const path = join(bench.server.folder, 'swept');
    const ledger = ledgerAt(join(path, 's'));
    const kept = keep();
    const sweeper = new Sweeper({ ledger, everyMs: 5, log: kept, meter: kept });
    open.push(sweeper);
    sweeper.start();
    await until(() => kept.lines.length > 0);
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(kept.lines).toEqual(['warn sweep failed']);
    expect(kept.fields).toEqual([
      { error: `there is no connection to the ledger at ${join(path, 's')}` },
    ]);
    const line = bench.line();
    bench.lines = [];
    expect((await asks(ledger, line, 'a')).message).toMatch(
      /^there is no connection to the ledger at /,
    );
    await expect(ledger.get(line.id('a'))).rejects.toThrow(
      /^there is no connection to the ledger at /,
    );
    mkdirSync(path);
    open.push(await startRedis({ folder: path }));
    await until(() => kept.lines.at(-1) === 'info sweeps go well again');
  });

  it('that goes away in the middle ends every call; nothing is sent twice', async () => {
    const path = join(bench.server.folder, 'between');
    const pairs: [Socket, Socket][] = [];
    let chunks = 0;
    const between = createServer((near) => {
      const far = dial(bench.server.socket);
      pairs.push([near, far]);
      near.on('data', (data) => {
        chunks++;
        far.write(data);
      });
      // The answer of every seventh run is lost with its connection.
      let answers = 0;
      far.on('data', (data) => (++answers % 7 === 0 ? near.destroy() : near.write(data)));
      near.on('error', () => undefined).on('close', () => far.destroy());
      far.on('error', () => undefined).on('close', () => near.destroy());
    });
    await new Promise<void>((resolve) => between.listen(path, resolve));
    open.push({
      stop: () => {
        for (const pair of pairs) for (const socket of pair) socket.destroy();
        between.close();
      },
    });
    const ledger = ledgerAt(path);
    await ready(ledger);
    const line = bench.line();
    let lost = 0;
    for (let i = 0; i < 60; i++) {
      let ended = await asks(ledger, line, `k${i}`);
      while (ended.outcome === undefined) {
        lost++;
        expect(ended.ms).toBeLessThan(TIMEOUT + MARGIN);
        await new Promise((resolve) => setTimeout(resolve, 10));
        ended = await asks(ledger, line, `k${i}`);
      }
      expect(told(ended.outcome)).toMatch(/^(moved|same) STARTED$/);
    }
    expect(lost).toBeGreaterThan(3);
    expect(chunks).toBeGreaterThan(60);
    // Each was asked for until it was known, and counts once.
    expect(await line.open()).toMatchObject({ reserved: 60, available: 940 });
    expect((await line.dump()).seq).toBe(60);
  });

  it('that is stopped for good leaves no call hanging', async () => {
    const server = await startRedis();
    const ledger = ledgerAt(server.socket);
    await ready(ledger);
    const line = bench.line();
    bench.lines = [];
    const asked = Array.from({ length: 500 }, (_, i) => asks(ledger, line, `k${i}`));
    await new Promise((resolve) => setImmediate(resolve));
    await server.stop();
    for (const { ms } of await Promise.all(asked)) expect(ms).toBeLessThan(TIMEOUT + MARGIN);
    const after = await asks(ledger, line, 'x');
    expect(after.outcome).toBeUndefined();
    await ledger.stop();
    expect((await asks(ledger, line, 'y')).outcome).toBeUndefined();
  });
});
