/** What goes from memory to disk while the ledger is away, and comes back from there when it is back. */
import type { Log, Meter } from '../telemetry/meter.js';
import type { DiskSpool } from './disk-spool.js';
import { type Item, type Reason, WAITING_MAX, type Waiting } from './waiting.js';

/** A process that is killed loses what it had in memory: so much at most. */
const IN_MEMORY_MS_MAX = 3_000;
const REPLAY_EVERY_MS = 1_000;
/** Asked for at once, so that Checks still get their turn. */
const AT_ONCE = 100;

interface Deps {
  readonly disk?: DiskSpool | undefined;
  readonly meter: Meter;
  readonly log: Log;
}

export class Overflow {
  readonly #deps: Deps;
  readonly #waiting: Waiting;
  readonly #attempt: (item: Item) => Promise<Reason | undefined>;
  readonly #timer: NodeJS.Timeout | undefined;
  #replaying = false;
  #stopped = false;

  constructor(deps: Deps, waiting: Waiting, attempt: (item: Item) => Promise<Reason | undefined>) {
    this.#deps = deps;
    this.#waiting = waiting;
    this.#attempt = attempt;
    if (deps.disk === undefined) return;
    this.#timer = setInterval(() => void this.#replay(), REPLAY_EVERY_MS);
    this.#timer.unref();
    void this.#replay();
  }

  stop(): void {
    this.#stopped = true;
    clearInterval(this.#timer);
  }

  /** Takes out of memory what the ledger was not there for, if some of it has waited for too long, or all is full. */
  relieve(): void {
    if (this.#deps.disk === undefined) return;
    const age = this.#waiting.size < WAITING_MAX ? IN_MEMORY_MS_MAX : 0;
    this.spill(this.#waiting.takeOld(Date.now() - age));
  }

  /** To disk; what cannot be written there is lost, counted and said. */
  spill(items: readonly Item[]): void {
    if (items.length === 0) return;
    const { disk, meter, log } = this.#deps;
    try {
      if (disk === undefined) throw new Error('no folder is set for it (spool)');
      disk.put(items);
      meter.observe('earmark_evidence_spool_bytes', {}, disk.size);
    } catch (error) {
      meter.count('earmark_evidence_total', { route: '', outcome: 'overflow' }, items.length);
      log.error({ err: error, entries: items.length }, 'evidence lost: replay the file access log');
    }
  }

  /** File by file, the oldest first; one that the ledger did not take as a whole stays and is tried again. */
  async #replay(): Promise<void> {
    if (this.#replaying) return;
    this.#replaying = true;
    const { disk, meter, log } = this.#deps;
    try {
      for (const name of disk!.files()) {
        if (!(await this.#replayFile(name))) break;
        disk!.remove(name);
        meter.observe('earmark_evidence_spool_bytes', {}, disk!.size);
      }
    } catch (error) {
      log.error({ err: error }, 'the spool on disk cannot be read');
    } finally {
      this.#replaying = false;
    }
  }

  async #replayFile(name: string): Promise<boolean> {
    const { disk, log } = this.#deps;
    const { items, broken } = disk!.read(name);
    if (broken > 0) log.error({ name, lines: broken }, 'lines of the spool cannot be read');
    for (let at = 0; at < items.length; at += AT_ONCE) {
      if (this.#stopped) return false;
      const some = items.slice(at, at + AT_ONCE).map((kept) => ({ ...kept, tries: 0 }));
      const reasons = await Promise.all(some.map((item) => this.#attempt(item)));
      if (reasons.includes('ledger')) return false;
      // What finds nothing is looked for again from memory, as it would have been without the disk.
      some.forEach((item, n) => {
        if (reasons[n] === 'search') this.#waiting.add(item, 'search', Date.now());
      });
    }
    log.info({ name, entries: items.length }, 'evidence from disk is booked');
    return true;
  }
}
