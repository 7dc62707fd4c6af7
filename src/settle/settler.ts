/** From an access-log entry to a booking: binds it to an operation, asks the ledger, and keeps at it until it is taken. */
import { methodPath } from '../core/digest.js';
import { parseReservation } from '../core/ids.js';
import type { LedgerApi } from '../ledger/api.js';
import { type EvidenceRef, LedgerUnavailable, type Outcome } from '../ledger/types.js';
import type { Budget, PolicyView } from '../policy/types.js';
import type { Log, Meter } from '../telemetry/meter.js';
import { classifySent, classifyUnsent } from './classify.js';
import { OWN_NAMESPACE, readMetadata } from './metadata.js';
import type { Finding, LogEntry, OwnMetadata } from './types.js';
import { readUsage } from './usage.js';
import { type Item, type Reason, Waiting } from './waiting.js';

/** For evidence of which not even the budget is known. */
const USAGE_DEADLINE_MS = 600_000;
const SPOOL_POLL_MS = 10_000;
const SPOOL_TAKE = 200;
/** Of STOP_MS_MAX; the rest is for what comes after. */
const STOP_MS = 5_000;

/** Where a process that must stop leaves what it could not deliver, for another to take. */
export interface EvidenceSpool {
  put(items: readonly string[]): Promise<void>;
  /** Removes what it gives; at most `count`. */
  take(count: number): Promise<readonly string[]>;
}

export interface SettlerDeps {
  readonly ledger: Pick<LedgerApi, 'settle' | 'unknown' | 'findCheck' | 'get' | 'macKey'>;
  readonly policy: () => PolicyView;
  /** Reads policies from the ledger again. */
  readonly reload: () => Promise<void>;
  /** A breach freezes every line of the route; `until` as in the receipt's line, -1: until an operator ends it. */
  readonly freezeRoute: (route: string, tag: string, until: number) => void;
  readonly spool: EvidenceSpool;
  readonly meter: Meter;
  readonly log: Log;
}

/** What an entry is about: our signed metadata, or a Check that its request ID found. */
interface Subject {
  readonly ref: EvidenceRef;
  readonly generation: number;
  readonly route: string;
  readonly unreserved: boolean;
}

/** `keep`: to be tried again. */
type Result = { readonly keep: Reason } | 'done';

const KEEP: Result = { keep: 'ledger' };
const SEARCH: Result = { keep: 'search' };

export class Settler {
  readonly #deps: SettlerDeps;
  readonly #waiting = new Waiting();
  readonly #active = new Set<Promise<void>>();
  readonly #polling: NodeJS.Timeout;
  #timer: NodeJS.Timeout | undefined;
  #reloading: Promise<void> | undefined;
  #stopped = false;

  constructor(deps: SettlerDeps) {
    this.#deps = deps;
    this.#polling = setInterval(() => void this.#takeSpooled(), SPOOL_POLL_MS);
    this.#polling.unref();
    void this.#takeSpooled();
  }

  /** Entries that the ledger has not taken yet. */
  get waiting(): number {
    return this.#waiting.size;
  }

  /** Never throws, never waits: an access log has nobody to answer to. */
  accept(entry: LogEntry): void {
    this.#start({ entry, since: Date.now(), tries: 0 });
  }

  /** Delivers what it can; what is left goes to the spool. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#polling);
    clearTimeout(this.#timer);
    const end = Date.now() + STOP_MS;
    await this.#settled(end);
    for (const item of this.#waiting.takeAll()) this.#start(item);
    await this.#settled(end);
    const left = this.#waiting.takeAll();
    if (left.length === 0) return;
    try {
      await this.#deps.spool.put(left.map(({ entry, since }) => JSON.stringify({ entry, since })));
      this.#deps.log.info({ entries: left.length }, 'evidence left in the ledger for another');
    } catch (error) {
      const message = 'evidence lost: replay the file access log';
      this.#deps.log.error({ err: error, entries: left.length }, message);
    }
  }

  async #settled(end: number): Promise<void> {
    while (this.#active.size > 0 && Date.now() < end) {
      const pause = new Promise((resolve) => setTimeout(resolve, 20));
      await Promise.race([Promise.all(this.#active), pause]);
    }
  }

  async #takeSpooled(): Promise<void> {
    try {
      for (const text of await this.#deps.spool.take(SPOOL_TAKE)) {
        this.#start({ ...(JSON.parse(text) as Omit<Item, 'tries'>), tries: 0 });
      }
    } catch (error) {
      this.#deps.log.debug({ err: error }, 'no spooled evidence could be taken');
    }
  }

  #start(item: Item): void {
    const running = this.#run(item).finally(() => this.#active.delete(running));
    this.#active.add(running);
  }

  async #run(item: Item): Promise<void> {
    let result: Result;
    try {
      result = await this.#handle(item);
    } catch (error) {
      if (!(error instanceof LedgerUnavailable)) {
        this.#deps.log.error({ err: error }, 'an access-log entry could not be read');
        return this.#count('', 'failed');
      }
      result = KEEP;
    }
    if (result !== 'done') this.#keep(item, result.keep);
  }

  #keep(item: Item, reason: Reason): void {
    const dropped = this.#waiting.add(item, reason, Date.now());
    if (dropped !== undefined) this.#count('', 'overflow');
    this.#schedule();
  }

  #schedule(): void {
    const { meter } = this.#deps;
    meter.observe('earmark_evidence_waiting', {}, this.#waiting.size);
    const due = this.#waiting.nextDue;
    if (this.#stopped || this.#timer !== undefined || due === undefined) return;
    // A fixed smallest pause: many entries share a wake-up.
    this.#timer = setTimeout(() => this.#wake(), Math.max(50, due - Date.now()));
    this.#timer.unref();
  }

  #wake(): void {
    this.#timer = undefined;
    for (const item of this.#waiting.takeDue(Date.now())) this.#start(item);
    this.#schedule();
  }

  async #handle(item: Item): Promise<Result> {
    const { entry } = item;
    const unsent = classifyUnsent(entry);
    if (unsent?.kind === 'nothing') return this.#done('', unsent.cause);
    const about = await this.#subjectOf(entry, unsent !== undefined);
    if (about === 'done') return about;
    if ('keep' in about) return this.#again(item, about, USAGE_DEADLINE_MS, '');
    const budget = await this.#budget(about);
    // A request that was never sent costs nothing under any policy.
    if (budget === undefined && unsent === undefined) {
      return this.#again(item, KEEP, USAGE_DEADLINE_MS, about.route);
    }
    const finding = unsent ?? this.#read(entry, budget!);
    const outcome = await this.#book(about, finding, budget);
    const result = this.#judge(about, finding, outcome, item);
    return this.#again(
      item,
      result,
      budget?.terms.usageDeadlineMs ?? USAGE_DEADLINE_MS,
      about.route,
    );
  }

  /** Beyond the usage deadline the ledger has its own answer to evidence that never came. */
  #again(item: Item, result: Result, deadlineMs: number, route: string): Result {
    if (result === 'done' || Date.now() - item.since < deadlineMs) return result;
    return this.#done(route, result.keep === 'search' ? 'nothing found' : 'expired');
  }

  async #subjectOf(entry: LogEntry, unsent: boolean): Promise<Subject | Result> {
    const raw = entry.metadata[OWN_NAMESPACE];
    if (raw?.reservation === undefined) return this.#lookUp(entry, unsent);
    const own = readMetadata(await this.#deps.ledger.macKey(), raw);
    if (own === 'none') return this.#done('', 'no reservation');
    if (own !== 'forged') return subjectOf(own);
    this.#deps.meter.count('earmark_evidence_forged_total', { route: '' });
    return this.#done('', 'forged');
  }

  /** An answer that Envoy did not get leaves no metadata behind: only the request ID tells. */
  async #lookUp(entry: LogEntry, unsent: boolean): Promise<Subject | Result> {
    if (entry.requestId === '') return this.#done('', 'no request ID');
    const { ledger } = this.#deps;
    const ref = await ledger.findCheck(entry.requestId, methodPath(entry.method, entry.path));
    if (ref === undefined) return SEARCH;
    if (unsent) return { ref, generation: 0, route: '', unreserved: true };
    const found = await ledger.get(ref.reservation);
    if (found === undefined) return SEARCH;
    const { generation, route } = found.receipt;
    return { ref, generation, route, unreserved: true };
  }

  /** Of the policy under which it was reserved. */
  async #budget({ generation, route }: Subject): Promise<Budget | undefined> {
    if (generation === 0) return undefined;
    const find = () =>
      this.#deps
        .policy()
        .generation(generation)
        ?.budgets.find((budget) => budget.route === route);
    const budget = find();
    if (budget !== undefined) return budget;
    this.#reloading ??= this.#deps.reload().finally(() => {
      this.#reloading = undefined;
    });
    await this.#reloading;
    return find();
  }

  #read(entry: LogEntry, budget: Budget): Finding {
    const reading = readUsage(entry, budget.usage);
    if (reading.invalid.length > 0) this.#count(budget.route, 'invalid report');
    return classifySent(entry, budget.usage, reading);
  }

  #book(about: Subject, finding: Finding, budget: Budget | undefined): Promise<Outcome> {
    const { ledger, policy } = this.#deps;
    const content = policy().generation(about.generation)?.content;
    const ref = withBudget(about, budget, content);
    if (finding.kind === 'settle') {
      const actual = finding.usage === undefined ? [0] : budget!.cost(finding.usage);
      return ledger.settle({ ...ref, actual, grade: finding.grade });
    }
    const { least } = finding as Extract<Finding, { kind: 'unknown' }>;
    return ledger.unknown({ ...ref, least: least === undefined ? [] : budget!.cost(least) });
  }

  #judge(about: Subject, finding: Finding, outcome: Outcome, item: Item): Result {
    const { meter, log } = this.#deps;
    const { reservation } = about.ref;
    const route = about.route || (outcome.kind === 'limited' ? '' : (outcome.receipt?.route ?? ''));
    switch (outcome.kind) {
      case 'moved':
        meter.observe('earmark_settle_seconds', {}, (Date.now() - item.since) / 1000);
        if (outcome.receipt.breach) meter.count('earmark_breaches_total', { route });
        if (outcome.freezeRoute) {
          const tag = parseReservation(reservation)!.tag;
          this.#deps.freezeRoute(route, tag, outcome.line.frozenUntil);
        }
        if (finding.kind === 'unknown') {
          meter.count('earmark_evidence_unknown_total', { route, cause: finding.cause });
        }
        return this.#done(route, finding.kind === 'settle' ? finding.grade : 'unknown');
      case 'same':
        // The reserve whose answer was lost may still be on its way to the ledger.
        if (outcome.receipt === undefined && about.unreserved) return SEARCH;
        return this.#done(route, 'repeated');
      case 'refused':
        if (outcome.why === 'not-found') return SEARCH;
        if (outcome.why === 'conflict') {
          meter.count('earmark_evidence_conflicts_total', { route });
          const { operation } = about.ref;
          log.warn(
            { reservation, operation, detail: outcome.detail },
            'evidence contradicts a receipt',
          );
        } else if (outcome.why !== 'too-late') {
          log.error({ reservation, why: outcome.why, detail: outcome.detail }, 'evidence refused');
        }
        return this.#done(route, outcome.why);
      case 'limited':
        throw new Error('a settlement cannot be limited');
    }
  }

  #done(route: string, outcome: string): 'done' {
    this.#count(route, outcome);
    return 'done';
  }

  #count(route: string, outcome: string): void {
    this.#deps.meter.count('earmark_evidence_total', { route, outcome });
  }
}

function subjectOf(own: OwnMetadata): Subject {
  const { reservation, operation, subject, route, shadow, reservedAt, unreserved } = own;
  const metadata = { subject, route, shadow, reservedAt, unreserved };
  return {
    ref: { reservation, operation, metadata },
    generation: own.generation,
    route,
    unreserved,
  };
}

/** A line that the ledger forgot opens under the budget; the plan's factor is in no metadata, so it opens with 1. */
function withBudget(
  { ref, generation }: Subject,
  budget: Budget | undefined,
  content: string | undefined,
): EvidenceRef {
  if (ref.metadata === undefined || budget === undefined || content === undefined) return ref;
  const factor = { numerator: 1, denominator: 1 };
  const known = { generation, content, terms: budget.terms, factor };
  return { ...ref, metadata: { ...ref.metadata, budget: known } };
}
