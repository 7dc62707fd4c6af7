/**
 * Operations that are asked for at once travel in one script run, each with its own reply and failure. One run is in
 * flight, and everything that came meanwhile goes in the next: no timer, no waiting when there is nothing to wait for.
 */
import type { Redis } from 'ioredis';
import type { Keys } from './keys.js';
import { reasonOf } from './reason.js';
import type { Script } from './scripts.js';
import { pack, unpack } from './stored.js';
import { LedgerUnavailable } from './types.js';
import { type Operation, type SharedBudget, Stored } from './wire.js';

/** Bounds a run of the script to about 2 ms of Redis. */
const OPERATIONS_A_RUN = 128;
/** More waiting than this cannot be answered in any deadline. */
const WAITING_MAX = 20_000;

/** A reply, and the line and receipt that it shows. */
export interface Replied {
  readonly reply: readonly unknown[];
  readonly stored: Stored;
}

interface Waiting {
  readonly operation: Operation;
  readonly now: number;
  readonly since: number;
  resolve(reply: Replied): void;
  reject(error: LedgerUnavailable): void;
}

/** By its SHA-1, and by its text where the server does not know it (restart, SCRIPT FLUSH). */
async function bySha(byHash: () => Promise<unknown>, byText: () => Promise<unknown>) {
  try {
    return await byHash();
  } catch (error) {
    if (!(error instanceof Error) || !error.message.startsWith('NOSCRIPT')) throw error;
    return byText();
  }
}

/** Runs a script that takes and answers plain texts and numbers. */
export async function run(
  redis: Redis,
  script: Script,
  keys: readonly string[],
  args: readonly string[],
): Promise<unknown> {
  return bySha(
    () => redis.evalsha(script.sha, keys.length, ...keys, ...args),
    () => redis.eval(script.source, keys.length, ...keys, ...args),
  );
}

/** Runs a script that answers bytes. */
export async function runToBytes(
  redis: Redis,
  script: Script,
  keys: readonly string[],
  ...args: readonly (string | Buffer)[]
): Promise<unknown> {
  return bySha(
    () => redis.callBuffer('EVALSHA', script.sha, keys.length, ...keys, ...args),
    () => redis.callBuffer('EVAL', script.source, keys.length, ...keys, ...args),
  );
}

/** Runs a script that takes msgpack blobs, and answers bytes. */
export async function runPacked(
  redis: Redis,
  script: Script,
  keys: readonly string[],
  ...values: readonly unknown[]
): Promise<unknown> {
  return runToBytes(redis, script, keys, ...values.map(pack));
}

/** From 1, as Lua counts. */
function placeOf(budgets: SharedBudget[], budget: SharedBudget): number {
  const found = budgets.indexOf(budget);
  return found === -1 ? budgets.push(budget) : found + 1;
}

export interface BatcherOptions {
  readonly redis: Redis;
  readonly script: Script;
  readonly keys: Keys;
  readonly timeoutMs: number;
  /** Called with each run's operations just before it is sent, on the same connection. */
  readonly ahead?: (operations: readonly Operation[]) => void;
  readonly onRun?: (operations: number) => void;
}

export class Batcher {
  readonly #options: BatcherOptions;
  #waiting: Waiting[] = [];
  #busy = false;

  constructor(options: BatcherOptions) {
    this.#options = options;
  }

  submit(operation: Operation, now: number): Promise<Replied> {
    return new Promise((resolve, reject) => {
      if (this.#waiting.length >= WAITING_MAX) {
        reject(new LedgerUnavailable(`${WAITING_MAX} operations are waiting for the ledger`));
        return;
      }
      this.#waiting.push({ operation, now, since: performance.now(), resolve, reject });
      if (!this.#busy) {
        this.#busy = true;
        setImmediate(() => this.#next());
      }
    });
  }

  #next(): void {
    const batch = this.#takeFresh();
    if (batch.length === 0) {
      this.#busy = false;
      return;
    }
    this.#options.onRun?.(batch.length);
    this.#options.ahead?.(batch.map(({ operation }) => operation));
    const { timeoutMs } = this.#options;
    let open = true;
    const end = (finish: (item: Waiting, index: number) => void): void => {
      if (!open) return;
      open = false;
      clearTimeout(timer);
      batch.forEach(finish);
      this.#next();
    };
    const fail = (message: string): void =>
      end((item) => item.reject(new LedgerUnavailable(message)));
    // Each asker waits for so long from when it asked; the run is given up with its last asker.
    let gone = 0;
    const giveUp = (): void => {
      const message = `no answer from the ledger in ${timeoutMs} ms`;
      for (; gone < batch.length && left(batch[gone]!) <= 0; gone++) {
        batch[gone]!.reject(new LedgerUnavailable(message));
      }
      if (gone === batch.length) end(() => undefined);
      else timer = setTimeout(giveUp, left(batch[gone]!));
    };
    const left = ({ since }: Waiting): number => since + timeoutMs - performance.now();
    let timer = setTimeout(giveUp, left(batch[0]!));
    this.#send(batch).then(
      (replies) => end((item, index) => item.resolve(replies[index]!)),
      (error: unknown) => fail(reasonOf(this.#options.redis, error)),
    );
  }

  /** What waited longer than an answer may take is given up first: its asker has gone on. */
  #takeFresh(): Waiting[] {
    const oldest = performance.now() - this.#options.timeoutMs;
    const stale = this.#waiting.findIndex((item) => item.since >= oldest);
    const expired = this.#waiting.splice(0, stale === -1 ? this.#waiting.length : stale);
    for (const item of expired) item.reject(new LedgerUnavailable('the ledger is too slow'));
    return this.#waiting.splice(0, OPERATIONS_A_RUN);
  }

  async #send(batch: readonly Waiting[]): Promise<readonly Replied[]> {
    const { redis, script, keys } = this.#options;
    const names: string[] = [];
    const budgets: SharedBudget[] = [];
    const packed = batch.map(({ operation, now }) => {
      const { name, tag, args, budget } = operation;
      names.push(keys.line(tag), keys.due(tag), keys.done(tag));
      const place = budget === undefined ? undefined : placeOf(budgets, budget);
      const given = (argument: string): unknown => {
        if (argument === 'now') return now;
        return argument === 'budget' ? (place ?? args['budget']) : args[argument];
      };
      const values: unknown[] = [name];
      for (const argument of script.operations.get(name)!) {
        const value = given(argument);
        if (value === undefined) throw new TypeError(`${name}: ${argument} is missing`);
        values.push(value);
      }
      return values;
    });
    const sent = runPacked(redis, script, names, packed, budgets);
    const [replies, shown] = (await sent) as [Buffer, Buffer];
    let at = 0;
    return (unpack(replies) as [unknown[], number][]).map(([reply, length]) => {
      at += length;
      return { reply, stored: new Stored(shown.subarray(at - length, at)) };
    });
  }
}
