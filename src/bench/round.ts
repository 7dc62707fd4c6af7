/** One round: a fresh earmark and a fresh ledger, everything measured once. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { BenchEarmark } from './earmark.js';
import type { Done, Work } from './load.js';

const LOAD = fileURLToPath(new URL('./load.js', import.meta.url));
const LINES = 10_000;
/** Requests under way at once, for the memory of earmark. */
const UNDER_WAY = 1000;
/** Long enough to look at what waits, and well within a Check's deadline. */
const PAUSE_MS = 700;

export interface Shape {
  readonly connections: number;
  readonly streams: number;
  readonly lines: number;
}

/** Everything of one run, each for one request where it isn't said otherwise. */
export interface Speed {
  readonly nodeUs: number;
  readonly redisUs: number;
  readonly requestsASecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly loadUs: number;
  /** Of one core, 0 to 1. */
  readonly nodeBusy: number;
  readonly loadBusy: number;
  /** Of all cores, 0 to 1: what had nothing to do with the bench. */
  readonly othersBusy: number;
}

export interface Memory {
  readonly receiptHot: number;
  readonly receiptSpread: number;
  readonly record: number;
  readonly residentAdmitted: number;
  readonly residentWaiting: number;
}

export interface Round {
  readonly speeds: readonly Speed[];
  readonly memory: Memory;
  readonly ledger: string;
}

export const SHAPES: readonly Shape[] = [1, LINES].flatMap((lines) =>
  [
    [1, 1],
    [1, 32],
    [4, 32],
  ].map(([connections, streams]) => ({ connections: connections!, streams: streams!, lines })),
);

type Answer = { readonly done: Done } | { readonly failed: string };

/** The load's process, and the earmark that it is sent to. */
export class Bench {
  readonly earmark: BenchEarmark;
  readonly #load: ChildProcess;
  readonly #gone: Promise<readonly [Answer]>;
  readonly #folder: string;
  #sent = 0;

  private constructor(earmark: BenchEarmark, load: ChildProcess, folder: string) {
    this.earmark = earmark;
    this.#load = load;
    this.#gone = once(load, 'exit').then(() => [{ failed: 'its process ended' }]);
    this.#folder = folder;
  }

  static async start(nodeArgs: readonly string[] = []): Promise<Bench> {
    const folder = mkdtempSync(join(tmpdir(), 'earmark-bench-'));
    const earmark = await BenchEarmark.start(folder, nodeArgs);
    return new Bench(earmark, fork(LOAD, { detached: true }), folder);
  }

  /** Sends the requests and resolves when each one's log entry is booked. */
  async run(shape: Shape, requests: number): Promise<Done> {
    const done = await this.#ask({ ...shape, requests, log: 'at once' });
    await this.earmark.untilBooked(this.#sent);
    return done;
  }

  async speed(shape: Shape, requests: number): Promise<Speed> {
    const before = await this.earmark.cpu();
    const own = process.cpuUsage();
    const machine = machineCpu();
    const done = await this.run(shape, requests);
    const { busy, all } = machineCpu(machine);
    const { user, system } = process.cpuUsage(own);
    const after = await this.earmark.cpu();
    const node = after.node - before.node;
    const redis = after.redis - before.redis;
    return {
      nodeUs: node / requests,
      redisUs: redis / requests,
      requestsASecond: requests / done.seconds,
      p50Ms: done.p50Ms,
      p99Ms: done.p99Ms,
      loadUs: done.cpuUs / requests,
      nodeBusy: node / 1e6 / done.seconds,
      loadBusy: done.cpuUs / 1e6 / done.seconds,
      othersBusy: Math.max(0, busy - node - redis - done.cpuUs - user - system) / all,
    };
  }

  /** Bytes of one receipt, and of what is kept by one request ID: from `count` to twice as many. */
  async bytes(lines: number, count: number): Promise<{ receipt: number; record: number }> {
    const shape = { connections: 4, streams: 32, lines };
    await this.run(shape, count);
    const first = await this.earmark.ledgerBytes();
    await this.run(shape, count);
    const second = await this.earmark.ledgerBytes();
    return {
      receipt: (second.without - first.without) / count,
      record: (second.with - second.without) / count,
    };
  }

  /** Memory of earmark with requests that are admitted, and not settled. */
  async residentAdmitted(): Promise<number> {
    const shape = { connections: 4, streams: 250, lines: LINES };
    await this.#ask({ ...shape, requests: UNDER_WAY, log: 'later' });
    const bytes = await this.earmark.residentBytes();
    await this.run(shape, 0);
    return bytes;
  }

  /** Memory of earmark, at most, while a ledger that hangs lets all of them wait. */
  async residentWaiting(): Promise<number> {
    const shape = { connections: 4, streams: 250, lines: LINES };
    await this.earmark.redis.call('CLIENT', 'PAUSE', String(PAUSE_MS), 'ALL');
    let waiting = true;
    const answered = this.run(shape, UNDER_WAY).finally(() => {
      waiting = false;
    });
    let most = 0;
    while (waiting) {
      most = Math.max(most, await this.earmark.residentBytes());
      await Promise.race([sleep(50), answered]);
    }
    await answered;
    return most;
  }

  /** Each request that was ever sent is settled, and the ledger adds up. */
  audit(): Promise<void> {
    return this.earmark.audit(this.#sent);
  }

  async stop(): Promise<void> {
    if (this.#load.connected) this.#load.disconnect();
    await this.earmark.stop();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async #ask(work: Omit<Work, 'address'>): Promise<Done> {
    this.#load.send({ ...work, address: this.earmark.address } satisfies Work);
    this.#sent += work.requests;
    const answered = once(this.#load, 'message') as Promise<[Answer]>;
    const [answer] = await Promise.race([answered, this.#gone]);
    if ('failed' in answer) throw new Error(`the load failed: ${answer.failed}`);
    return answer.done;
  }
}

/** CPU time of all cores in µs, since an earlier look where one is given. */
function machineCpu(since = { busy: 0, all: 0 }): { busy: number; all: number } {
  let busy = -since.busy;
  let all = -since.all;
  for (const { times } of cpus()) {
    const working = times.user + times.nice + times.sys + times.irq;
    busy += working * 1000;
    all += (working + times.idle) * 1000;
  }
  return { busy, all };
}

/** `requests`: of each run at full speed. What is sent for the memory warms everything up, too. */
export async function measureRound(requests: number, say: (text: string) => void): Promise<Round> {
  const bench = await Bench.start();
  try {
    say('memory of the ledger');
    const hot = await bench.bytes(1, requests);
    const spread = await bench.bytes(LINES, requests);
    const speeds: Speed[] = [];
    for (const shape of SHAPES) {
      say(`${shape.connections} × ${shape.streams}, ${shape.lines} lines`);
      // One at a time takes longer for each.
      const share = shape.streams === 1 ? 4 : 1;
      speeds.push(await bench.speed(shape, Math.ceil(requests / share)));
    }
    say('memory of earmark');
    const residentAdmitted = await bench.residentAdmitted();
    const residentWaiting = await bench.residentWaiting();
    say('audit');
    await bench.audit();
    const info = await bench.earmark.redis.info('everything');
    const text = (name: string): string => new RegExp(`^${name}:(.*)\r`, 'm').exec(info)?.[1] ?? '';
    const memory = {
      receiptHot: hot.receipt,
      receiptSpread: spread.receipt,
      record: spread.record,
      residentAdmitted,
      residentWaiting,
    };
    const ledger = `${text('server_name') || 'redis'} ${text('redis_version')} (${text('mem_allocator')})`;
    return { speeds, memory, ledger };
  } finally {
    await bench.stop();
  }
}
