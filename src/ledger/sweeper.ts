/** What time alone does to lines: asks which are due, sweeps them. Any number of sweepers may run. */
import type { Log, Meter } from '../telemetry/meter.js';
import { run } from './batcher.js';
import { DUE_SHARDS } from './keys.js';
import type { Ledger } from './ledger.js';
import { reasonOf } from './reason.js';
import { loadScript } from './scripts.js';

/** Steps of one line in one run: bounds the time that Redis is kept from others. */
const STEPS_A_RUN = 100;
/** Lines claimed of each shard at once. */
const LINES_A_CLAIM = 16;
/** Much longer than a visit, much shorter than anybody waits for a hold. */
const LEASE_MS = 30_000;

export interface SweeperOptions {
  readonly ledger: Ledger;
  readonly everyMs: number;
  /** How long a claimed line is nobody else's; a sweeper that dies gives it up then. */
  readonly leaseMs?: number;
  readonly log: Log;
  readonly meter: Meter;
}

export class Sweeper {
  readonly #options: SweeperOptions;
  readonly #claim = loadScript('claim');
  #timer: NodeJS.Timeout | undefined;
  #stopped = false;
  /** What was said of the sweep that failed last; empty while they go well. */
  #trouble = '';
  #pass: Promise<void> = Promise.resolve();

  constructor(options: SweeperOptions) {
    this.#options = options;
  }

  start(): void {
    if (this.#stopped) return;
    this.#pass = this.pass().then(
      () => this.#say(''),
      (error: unknown) => this.#say(reasonOf(this.#options.ledger.redis, error)),
    );
    void this.#pass.then(() => {
      if (!this.#stopped) this.#timer = setTimeout(() => this.start(), this.#options.everyMs);
    });
  }

  /** Once for each reason, and once when it is over: there are ten sweeps a second. */
  #say(trouble: string): void {
    if (trouble === this.#trouble) return;
    this.#trouble = trouble;
    const { log } = this.#options;
    if (trouble === '') log.info({}, 'sweeps go well again');
    else log.warn({ error: trouble }, 'sweep failed');
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#pass;
  }

  /** One round over all shards; answers how many lines were visited. */
  async pass(): Promise<number> {
    const { ledger, leaseMs = LEASE_MS } = this.#options;
    ledger.ensureOpen();
    const indexes = Array.from({ length: DUE_SHARDS }, (_, shard) => ledger.keys.dueLines(shard));
    const args = ['claim', String(LINES_A_CLAIM), String(leaseMs)];
    const claimed = (await run(ledger.redis, this.#claim, indexes, args)) as string[][];
    const visits = claimed.flatMap(([lease, ...tags], shard) =>
      tags.map((tag) => this.#visit(indexes[shard]!, tag, lease!)),
    );
    await Promise.all(visits);
    return visits.length;
  }

  async #visit(index: string, tag: string, lease: string): Promise<void> {
    const { ledger, meter } = this.#options;
    let reply = await ledger.sweep(tag, STEPS_A_RUN);
    // What is due at once (EXPIRING follows RESERVED) is done in the same visit.
    for (let runs = 1; runs < 10 && reply.nextDue > 0 && reply.nextDue <= reply.now; runs++) {
      this.#count(reply, meter);
      reply = await ledger.sweep(tag, STEPS_A_RUN);
    }
    this.#count(reply, meter);
    await run(ledger.redis, this.#claim, [index], ['finish', tag, lease, String(reply.nextDue)]);
  }

  #count(reply: { expired: number; unknown: number; folded: number }, meter: Meter): void {
    for (const step of ['expired', 'unknown', 'folded'] as const) {
      if (reply[step] > 0) meter.count('earmark_sweeps_total', { transition: step }, reply[step]);
    }
  }
}
