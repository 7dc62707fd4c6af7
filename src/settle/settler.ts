/** From an access-log entry to a booking: bound to an operation, asked of the ledger, kept until it is taken. */
import { setTimeout as sleep } from 'node:timers/promises';
import { parseReservation } from '../core/ids.js';
import type { LedgerApi } from '../ledger/api.js';
import { type EvidenceRef, LedgerUnavailable, type Outcome } from '../ledger/types.js';
import { type Budget, type Policy, PolicyEvaluationError } from '../policy/types.js';
import type { Log, Meter } from '../telemetry/meter.js';
import { type Bound, bind, withBudget } from './binding.js';
import { classifySent, classifyUnsent } from './classify.js';
import type { DiskSpool } from './disk-spool.js';
import { MacKey } from './mac-key.js';
import { Overflow } from './overflow.js';
import type { Finding, LogEntry } from './types.js';
import { readUsage } from './usage.js';
import { type Item, type Reason, WAITING_MAX, Waiting } from './waiting.js';

/** For evidence of which not even the budget is known. */
const USAGE_DEADLINE_MS = 600_000;
const SPOOL_POLL_MS = 10_000;
const SPOOL_TAKE = 200;
/** Many entries share a wake-up. */
const WAKE_MS_MIN = 50;
/** Of STOP_MS_MAX; the rest is for what comes before and after. */
const STOP_MS = 5_000;
const STOP_PAUSE_MS = 100;

/** Where a process that must stop leaves what it could not deliver, for another to take. */
export interface EvidenceSpool {
  put(items: readonly string[]): Promise<void>;
  /** Removes what it gives; at most `count`. */
  take(count: number): Promise<readonly string[]>;
}

export interface SettlerDeps {
  readonly ledger: Pick<LedgerApi, 'settle' | 'unknown' | 'findCheck' | 'get' | 'macKey'>;
  /** A generation of any age, from the ledger where it isn't here. */
  readonly loadPolicy: (generation: number) => Promise<Policy | undefined>;
  /** A breach stops every line of the route; tries until it is done. `until` is the line's. */
  readonly freezeRoute: (route: string, tag: string, until: number) => Promise<void>;
  readonly spool: EvidenceSpool;
  /** For what memory should not hold; without one it is dropped. */
  readonly disk?: DiskSpool | undefined;
  readonly meter: Meter;
  readonly log: Log;
}

/** The budget under which an operation was reserved. */
interface Rules {
  readonly policy: Policy;
  readonly budget: Budget;
}

/** A finding, and what it comes to in each limit: the use, or the least of it. */
interface Priced {
  readonly finding: Finding;
  readonly units: readonly number[];
}

type Moved = Extract<Outcome, { kind: 'moved' }>;
type Refused = Extract<Outcome, { kind: 'refused' }>;

/** `keep`: to be tried again. `done`: what became of it. */
type Result = { readonly keep: Reason } | { readonly done: string };

const SEARCH: Result = { keep: 'search' };

export class Settler {
  readonly #deps: SettlerDeps;
  readonly #macKey: MacKey;
  readonly #waiting = new Waiting();
  readonly #overflow: Overflow;
  readonly #active = new Set<Promise<void>>();
  readonly #polling: NodeJS.Timeout;
  #timer: NodeJS.Timeout | undefined;
  /** When the timer goes off. */
  #wakesAt = 0;
  #stopped = false;

  constructor(deps: SettlerDeps) {
    this.#deps = deps;
    this.#macKey = new MacKey(() => deps.ledger.macKey());
    this.#overflow = new Overflow(deps, this.#waiting, (item) => this.#attempt(item));
    this.#polling = setInterval(() => this.#track(this.#takeSpooled()), SPOOL_POLL_MS);
    this.#polling.unref();
    this.#track(this.#takeSpooled());
  }

  /** Entries that the ledger has not taken yet. */
  get waiting(): number {
    return this.#waiting.size;
  }

  /** Never throws, never waits: an access log has nobody to answer to. */
  accept(entry: LogEntry): void {
    this.#start({ entry, since: Date.now(), tries: 0 });
  }

  /** Resolves once every entry is booked or waits for its next try. */
  async idle(ms = STOP_MS): Promise<void> {
    const end = Date.now() + ms;
    while (this.#active.size > 0 && Date.now() < end) {
      await Promise.race([Promise.all(this.#active), sleep(20)]);
    }
  }

  /** Delivers what it can; what is left goes to the spool. A ledger that is away may come back meanwhile. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#polling);
    clearTimeout(this.#timer);
    this.#overflow.stop();
    const end = Date.now() + STOP_MS;
    await this.idle(STOP_MS);
    for (;;) {
      // What is still under way when time is up must end before anybody can say what is left.
      if (Date.now() < end) for (const item of this.#waiting.takeAll()) this.#start(item);
      await this.idle(Math.max(STOP_PAUSE_MS, end - Date.now()));
      if (this.#waiting.size === 0 || (await this.#spooled(Date.now() >= end))) return;
      await sleep(STOP_PAUSE_MS);
    }
  }

  /** Whether all that waits is in the spool of the ledger or on disk, or, at the `last` try, given up. */
  async #spooled(last: boolean): Promise<boolean> {
    const { spool, disk, log } = this.#deps;
    const left = this.#waiting.takeAll();
    try {
      await spool.put(left.map(({ entry, since }) => JSON.stringify({ entry, since })));
      log.info({ entries: left.length }, 'evidence left in the ledger for another');
    } catch {
      if (!last && disk === undefined) {
        for (const item of left) this.#waiting.add(item, 'ledger', Date.now());
        return false;
      }
      this.#overflow.spill(left);
    }
    return true;
  }

  #track(work: Promise<void>): void {
    const tracked = work.finally(() => this.#active.delete(tracked));
    this.#active.add(tracked);
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
    this.#track(this.#run(item));
  }

  async #run(item: Item): Promise<void> {
    const reason = await this.#attempt(item);
    if (reason === undefined) return;
    if (this.#waiting.size >= WAITING_MAX) this.#overflow.relieve();
    const dropped = this.#waiting.add(item, reason, Date.now());
    if (dropped !== undefined) this.#count('', 'overflow');
    this.#schedule();
  }

  /** Undefined: it is done with; else why it must be tried again. */
  async #attempt(item: Item): Promise<Reason | undefined> {
    const labels = { route: '' };
    let result: Result;
    try {
      result = await this.#handle(item, labels);
    } catch (error) {
      if (error instanceof LedgerUnavailable) return 'ledger';
      this.#deps.log.error({ err: error }, 'an access-log entry could not be booked');
      result = { done: 'failed' };
    }
    if ('keep' in result) return result.keep;
    this.#count(labels.route, result.done);
    return undefined;
  }

  #schedule(): void {
    this.#deps.meter.observe('earmark_evidence_waiting', {}, this.#waiting.size);
    const due = this.#waiting.nextDue;
    if (this.#stopped || due === undefined) return;
    const at = Math.max(Date.now() + WAKE_MS_MIN, due);
    // What is tried seldom must not keep waiting what is to be tried soon.
    if (this.#timer !== undefined && this.#wakesAt <= at) return;
    clearTimeout(this.#timer);
    this.#wakesAt = at;
    this.#timer = setTimeout(() => this.#wake(), at - Date.now());
    this.#timer.unref();
  }

  #wake(): void {
    this.#timer = undefined;
    this.#overflow.relieve();
    for (const item of this.#waiting.takeDue(Date.now())) this.#start(item);
    this.#schedule();
  }

  async #handle({ entry, since }: Item, labels: { route: string }): Promise<Result> {
    const unsent = classifyUnsent(entry);
    if (unsent?.kind === 'nothing') return { done: unsent.cause };
    const bound = await bind(this.#deps.ledger, this.#macKey, entry, unsent !== undefined);
    if (bound.kind === 'none') return this.#unbound(bound.cause);
    if (bound.kind === 'search') return inTime(SEARCH, since, undefined);
    const rules = await this.#rulesOf(bound);
    labels.route = bound.route;
    const deadlineMs = rules?.budget.terms.usageDeadlineMs;
    // A request that was never sent costs nothing under any policy.
    if (rules === undefined && unsent === undefined) return inTime(SEARCH, since, deadlineMs);
    const { finding, units } = unsent
      ? { finding: unsent, units: [0] }
      : this.#read(entry, rules!.budget);
    const outcome = await this.#book(bound, finding, units, rules);
    if ('receipt' in outcome && outcome.receipt) labels.route = outcome.receipt.route;
    return inTime(this.#judge(bound, finding, outcome, since), since, deadlineMs);
  }

  #unbound(cause: string): Result {
    if (cause === 'forged') this.#deps.meter.count('earmark_evidence_forged_total', {});
    return { done: cause };
  }

  async #rulesOf({ generation, route }: Bound): Promise<Rules | undefined> {
    if (generation === 0) return undefined;
    const policy = await this.#deps.loadPolicy(generation);
    const budget = policy?.budgets.find((one) => one.route === route);
    return policy && budget && { policy, budget };
  }

  #read(entry: LogEntry, budget: Budget): Priced {
    const reading = readUsage(entry, budget.usage);
    if (reading.invalid.length > 0) this.#count(budget.route, 'invalid report');
    return priced(classifySent(entry, budget.usage, reading), budget);
  }

  #book(
    bound: Bound,
    finding: Finding,
    units: readonly number[],
    rules: Rules | undefined,
  ): Promise<Outcome> {
    const { ledger } = this.#deps;
    const ref: EvidenceRef = rules ? withBudget(bound.ref, rules.policy, rules.budget) : bound.ref;
    return finding.kind === 'settle'
      ? ledger.settle({ actual: units, grade: finding.grade, ...ref })
      : ledger.unknown({ least: units, ...ref });
  }

  #judge(bound: Bound, finding: Finding, outcome: Outcome, since: number): Result {
    if ('freezeRoute' in outcome && outcome.freezeRoute) {
      const { tag } = parseReservation(bound.ref.reservation)!;
      this.#track(this.#freeze(outcome.receipt!.route, tag, outcome.line.frozenUntil));
    }
    switch (outcome.kind) {
      case 'moved':
        return this.#moved(finding, outcome, since);
      case 'same':
        // The reserve whose answer was lost may still be on its way to the ledger.
        if (outcome.receipt === undefined && bound.unreserved) return SEARCH;
        return { done: 'repeated' };
      case 'refused':
        return this.#refused(bound, outcome);
      case 'limited':
        throw new Error('a settlement cannot be limited');
    }
  }

  #moved(finding: Finding, outcome: Moved, since: number): Result {
    const { meter } = this.#deps;
    const { receipt } = outcome;
    const { route } = receipt;
    meter.observe('earmark_settle_seconds', {}, (Date.now() - since) / 1000);
    if (receipt.breach) meter.count('earmark_breaches_total', { route });
    if (finding.kind !== 'unknown') return { done: finding.kind === 'settle' ? finding.grade : '' };
    meter.count('earmark_evidence_unknown_total', { route, cause: finding.cause });
    return { done: 'unknown' };
  }

  /** The line is frozen; the rest of its route must follow. */
  async #freeze(route: string, tag: string, until: number): Promise<void> {
    try {
      await this.#deps.freezeRoute(route, tag, until);
    } catch (error) {
      this.#deps.log.error({ err: error, route }, 'a route that must be frozen is not: freeze it');
    }
  }

  #refused(bound: Bound, { why, detail }: Refused): Result {
    const { meter, log } = this.#deps;
    const { reservation, operation } = bound.ref;
    if (why === 'not-found') return SEARCH;
    if (why === 'conflict') {
      meter.count('earmark_evidence_conflicts_total', { route: bound.route });
      log.warn({ reservation, operation, detail }, 'evidence contradicts a receipt');
    } else if (why !== 'too-late') {
      log.error({ reservation, operation, why, detail }, 'evidence refused');
    }
    return { done: why };
  }

  #count(route: string, outcome: string): void {
    this.#deps.meter.count('earmark_evidence_total', { route, outcome });
  }
}

/** Beyond the usage deadline the ledger has its own answer; what it could not be asked about is never given up. */
function inTime(result: Result, since: number, deadlineMs = USAGE_DEADLINE_MS): Result {
  if ('done' in result || result.keep === 'ledger' || Date.now() - since < deadlineMs)
    return result;
  return { done: 'nothing found' };
}

/** What a finding costs under its budget. A cost that no integer can hold is no report: it is never rounded. */
function priced(finding: Finding, budget: Budget): Priced {
  try {
    if (finding.kind === 'settle') {
      return { finding, units: finding.usage === undefined ? [0] : budget.cost(finding.usage) };
    }
    const least = finding.kind === 'unknown' ? finding.least : undefined;
    return { finding, units: least === undefined ? [] : budget.cost(least) };
  } catch (error) {
    if (!(error instanceof PolicyEvaluationError)) throw error;
    return { finding: { kind: 'unknown', least: undefined, cause: 'no cost' }, units: [] };
  }
}
