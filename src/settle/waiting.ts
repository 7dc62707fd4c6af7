/** Evidence that the ledger has not taken yet: bounded in number and time, tried again with growing pauses. */
import type { LogEntry } from './types.js';

/** One entry on its way to the ledger. */
export interface Item {
  readonly entry: LogEntry;
  /** When it arrived, ms since 1970; the usage deadline runs from there. */
  readonly since: number;
  tries: number;
}

/**
 * `ledger`: it could not be asked. `search`: nothing is found that the entry could be about; most such entries are
 * about none, so these are tried seldom and make room for others first.
 */
export type Reason = 'ledger' | 'search';

interface Waiter {
  readonly item: Item;
  readonly reason: Reason;
  readonly due: number;
}

/** At about 2 KB an entry, 20 MB. */
export const WAITING_MAX = 10_000;
/** So that a ledger that comes back is not met by all of it at once. */
const BURST = 500;

const PAUSES = {
  ledger: { first: 100, factor: 2, most: 5_000 },
  search: { first: 500, factor: 4, most: 300_000 },
} as const;

/** ms until the next try; `jitter` is 0 to 1. */
export function pauseOf(reason: Reason, tries: number, jitter: number): number {
  const { first, factor, most } = PAUSES[reason];
  return Math.min(first * factor ** tries, most) * (0.75 + jitter / 2);
}

export class Waiting {
  #waiters: Waiter[] = [];
  /** No waiter is due before it. */
  #nextDue = Number.POSITIVE_INFINITY;

  get size(): number {
    return this.#waiters.length;
  }

  /** ms since 1970 of the next try; undefined: nothing waits. */
  get nextDue(): number | undefined {
    return this.#waiters.length === 0 ? undefined : this.#nextDue;
  }

  /** What had to make room for it, if anything: it may be the item itself. */
  add(item: Item, reason: Reason, now: number): Item | undefined {
    item.tries++;
    const due = now + pauseOf(reason, item.tries - 1, Math.random());
    if (this.#waiters.length < WAITING_MAX) {
      this.#waiters.push({ item, reason, due });
      this.#nextDue = Math.min(this.#nextDue, due);
      return undefined;
    }
    const searching = this.#waiters.findIndex((waiter) => waiter.reason === 'search');
    if (searching < 0) return item;
    const [evicted] = this.#waiters.splice(searching, 1, { item, reason, due });
    this.#nextDue = Math.min(this.#nextDue, due);
    return evicted!.item;
  }

  /** Removes and gives those whose time has come, a burst at most. */
  takeDue(now: number): Item[] {
    const due: Item[] = [];
    this.#nextDue = Number.POSITIVE_INFINITY;
    this.#waiters = this.#waiters.filter((waiter) => {
      if (waiter.due > now || due.length === BURST) {
        this.#nextDue = Math.min(this.#nextDue, waiter.due);
        return true;
      }
      due.push(waiter.item);
      return false;
    });
    return due;
  }

  /** Removes and gives what the ledger could not be asked about, if any of it arrived before `since`. */
  takeOld(since: number): Item[] {
    const mine = ({ reason }: Waiter): boolean => reason === 'ledger';
    if (!this.#waiters.some((waiter) => mine(waiter) && waiter.item.since <= since)) return [];
    const taken = this.#waiters.filter(mine).map(({ item }) => item);
    this.#waiters = this.#waiters.filter((waiter) => !mine(waiter));
    return taken;
  }

  takeAll(): Item[] {
    const all = this.#waiters.map(({ item }) => item);
    this.#waiters = [];
    return all;
  }
}
