/** Evidence that a process could not deliver before it had to stop, in a capped stream for any other to take. */
import type { Redis } from 'ioredis';
import { type Closed, ensureOpen } from './schema.js';
import { LedgerUnavailable } from './types.js';

/** At about 2 KB each, 40 MB of Redis at most. */
const KEPT_MAX = 20_000;

/** Read and removed in one run: two takers never get the same, and what one took is not offered again. */
const TAKE = `#!lua flags=allow-oom
local taken = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', ARGV[1])) do
  redis.call('XDEL', KEYS[1], entry[1])
  taken[#taken + 1] = entry[2][2]
end
return taken`;

export class Spool {
  readonly #redis: Redis;
  readonly #key: string;
  readonly #closed: Closed | undefined;

  /** The connection is its owner's to close. */
  constructor(redis: Redis, prefix: string, closed?: Closed) {
    this.#redis = redis;
    this.#closed = closed;
    this.#key = `${prefix}evidence`;
  }

  async put(items: readonly string[]): Promise<void> {
    ensureOpen(this.#closed);
    const adding = items.map((item) =>
      this.#redis.xadd(this.#key, 'MAXLEN', '~', KEPT_MAX, '*', 'entry', item),
    );
    await known(Promise.all(adding));
  }

  /** Removes what it gives, the oldest first; at most `count`. */
  async take(count: number): Promise<readonly string[]> {
    ensureOpen(this.#closed);
    return (await known(this.#redis.eval(TAKE, 1, this.#key, count))) as string[];
  }
}

async function known<T>(reply: Promise<T>): Promise<T> {
  try {
    return await reply;
  } catch (error) {
    throw new LedgerUnavailable((error as Error).message);
  }
}
