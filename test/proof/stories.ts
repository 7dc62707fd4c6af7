/**
 * Random stories of one line, told by the model as they are made: most of what is asked hits something that lives, and
 * amounts and instants lie at, just below and just above every boundary. Each story draws its own terms and weights.
 */
import type { BudgetRef, Grade, LimitTerms, Refill } from '../../src/ledger/types.js';
import { debtOf, openPage } from '../model/account.js';
import { type Reply, step } from '../model/model.js';
import { type Asked, budgetOf, digestOf, Line, limitTerms, operationOf } from '../model/samples.js';
import { type Event, type Kept, type LineState, twinOf } from '../model/state.js';
import { lastInstant } from '../model/world.js';
import { Random } from './random.js';

export interface Story {
  readonly seed: number;
  readonly first: LineState;
  readonly events: readonly Event[];
  /** What the model answered. */
  readonly replies: readonly Reply[];
  /** The line after each event: the very state from before where nothing was written. */
  readonly after: readonly LineState[];
}

const MAX = Number.MAX_SAFE_INTEGER;
const DAY = 86_400_000;

/** Where calendars turn: a leap day, the end of a month, of a year, of a century, of a week; and the epoch's start. */
const ORIGINS = [
  ...[Date.UTC(2024, 0, 15), Date.UTC(2024, 1, 28, 23, 59), Date.UTC(2023, 1, 28, 23, 59, 59, 990)],
  ...[Date.UTC(2024, 11, 31, 23, 59, 59, 990), Date.UTC(2100, 1, 28, 12), Date.UTC(2026, 7, 2, 22)],
  ...[Date.UTC(2000, 1, 29, 23, 59, 59, 990), Date.UTC(2400, 1, 29, 23, 59, 59, 990)],
  ...[Date.UTC(2025, 3, 30, 23, 59, 59), 0, 1000],
];
const WINDOWS = ['minute', 'hour', 'day', 'week', 'month'] as const;
const GRADES: readonly Grade[] = ['reported', 'neverSent', 'refused', 'presumed', 'operator'];
const KEYS = ['a', 'b', 'c'] as const;
const OPERATIONS = ['x', 'y'] as const;

/** The seed's story; `length` events and then, with `ending`, the time in which everything falls due. */
export function storyOf(seed: number, length = 14): Story {
  return new Teller(seed).tell(length);
}

type Ask = 'reserve' | 'start' | 'release' | 'settle' | 'unknown' | 'sweep' | 'operator' | 'again';
const ASKS: readonly Ask[] = [
  ...(['reserve', 'start', 'release', 'settle', 'unknown', 'sweep', 'operator', 'again'] as const),
];

class Teller {
  readonly #random: Random;
  readonly #line: Line;
  readonly #budgets: readonly BudgetRef[];
  readonly #weights: ReadonlyMap<Ask, number>;
  readonly #seed: number;
  readonly #shadows: number;
  /** About amounts that no double holds a sum of: on one page, which never folds. */
  readonly #huge: boolean;
  #state: LineState;
  #now: number;
  readonly #events: Event[] = [];
  readonly #replies: Reply[] = [];
  readonly #after: LineState[] = [];

  constructor(seed: number) {
    this.#seed = seed;
    this.#random = new Random(seed);
    this.#line = new Line(`story ${seed}`);
    this.#state = this.#line.empty();
    this.#now = this.#random.of(ORIGINS) + this.#random.below(7);
    this.#huge = this.#random.chance(0.08);
    this.#budgets = this.#drawBudgets();
    const usual: Record<Ask, readonly number[]> = {
      ...{ reserve: [4, 8], start: [1, 3], release: [1, 2], settle: [3, 8], unknown: [0, 1, 3] },
      ...{ sweep: [0, 1, 3], operator: [0, 0, 1], again: [0, 1, 3] },
    };
    this.#weights = new Map(ASKS.map((ask) => [ask, this.#random.of(usual[ask])]));
    this.#shadows = this.#random.of([0, 0, 0.3]);
  }

  tell(length: number): Story {
    for (let i = 0; i < length; i++) {
      this.#pass();
      this.#ask(this.#draw());
    }
    this.#end();
    const first = this.#line.empty();
    return {
      seed: this.#seed,
      first,
      events: this.#events,
      replies: this.#replies,
      after: this.#after,
    };
  }

  /** Everything falls due, is swept, and folds; then somebody comes again. */
  #end(): void {
    this.#now = Math.max(this.#now, lastInstant(this.#state));
    const { holdTtlMs, usageDeadlineMs, retentionMs } = this.#budgets.at(-1)!.terms;
    for (const ms of [0, Math.max(holdTtlMs, usageDeadlineMs), 0, retentionMs]) {
      this.#now += ms;
      this.#ask({ op: 'sweep', now: this.#now, limit: 100 });
    }
    this.#ask(this.#reserve());
  }

  #ask(event: Event): void {
    const { state, reply } = step(this.#state, event);
    this.#state = state;
    this.#events.push(event);
    this.#replies.push(reply);
    this.#after.push(state);
  }

  #drawBudgets(): BudgetRef[] {
    const random = this.#random;
    const count = random.of([1, 1, 1, 2, 3]);
    const names = count === 1 ? [''] : ['p', 'q', 'r'].slice(0, count);
    const terms = {
      epochMs: this.#huge ? 1e15 : random.of([7, 40, 60_000, DAY, 100 * DAY]),
      holdTtlMs: random.of([1, 5, 20]),
      usageDeadlineMs: random.of([1, 6, 30]),
      retentionMs: random.of([1, 10, 60, DAY]),
      onBreach: random.of(['freezeLine', 'freezeRoute', 'mark'] as const),
      freezeForMs: random.of([0, 5, 25]),
    };
    const first = names.map((name) => this.#drawLimit(name));
    const second = random.shuffled([
      ...first.filter(() => random.chance(0.6)),
      ...(random.chance(0.4) ? [this.#drawLimit('s')] : []),
    ]);
    const factors = [1, 1, 1, 2].map((d) => ({
      numerator: random.of([1, 1, 3, 5]),
      denominator: d,
    }));
    const plain = { numerator: 1, denominator: 1 };
    const moved = { ...terms, epochMs: random.of([terms.epochMs, 10]), generation: 2 };
    // A plan that scales a burst beyond what a number holds is refused before it gets here.
    const scales = !this.#huge && random.chance(0.3);
    const planned = scales ? random.of(factors) : plain;
    return [
      ...[plain, planned].map((factor) => budgetOf(first, { ...terms, factor })),
      ...(!this.#huge && random.chance(0.6)
        ? [budgetOf(second.length > 0 ? second : first, { ...moved, factor: planned })]
        : []),
    ];
  }

  #drawLimit(name: string): LimitTerms {
    const random = this.#random;
    const burst = this.#huge
      ? random.of([10 ** 14 + 3, MAX])
      : random.of([1, 5, 10, 10, 100, 100, 1000]);
    const maxReservation = random.of([burst, burst, Math.ceil(burst / 2), Math.ceil(burst / 3)]);
    const cap = Math.min(MAX, maxReservation + random.of([0, 2, burst]));
    return limitTerms({
      ...{ name, burst, maxReservation, refill: this.#huge ? null : this.#drawRefill(burst) },
      maxOverdraft: random.of([null, 0, Math.ceil(burst / 4), 3]),
      executionHardCap: random.of([null, null, cap]),
      ownCost: name !== '' && random.chance(0.4),
    });
  }

  #drawRefill(burst: number): Refill | null {
    const random = this.#random;
    const units = Math.min(burst, random.of([1, 2, 3, 7, burst]));
    if (random.chance(0.25)) return { units, window: random.of(WINDOWS) };
    const everyMs = random.of([1, 3, 7, 10, 1000]);
    return units > MAX / everyMs || random.chance(0.4) ? null : { units, everyMs };
  }

  /** Time stands still, passes, or lands at, just before or just after what falls due. */
  #pass(): void {
    const random = this.#random;
    if (random.chance(0.45)) return;
    if (random.chance(0.03)) {
      this.#now = Math.max(0, this.#now - random.between(1, 10));
      return;
    }
    const { holdTtlMs, usageDeadlineMs, retentionMs, epochMs } = random.of(this.#budgets).terms;
    const near = (ms: number): number => Math.max(0, ms + random.of([-1, 0, 0, 1]));
    const toEpoch = this.#huge ? 0 : epochMs - (this.#now % epochMs);
    const due = [...this.#state.receipts.values()].map(
      ({ due, keepUntil }) => Math.max(due, keepUntil) - this.#now,
    );
    const leaps = [60_000, 3_600_000, DAY, 7 * DAY, 31 * DAY];
    this.#now += random.of([
      ...[1, random.below(10), random.below(100), near(holdTtlMs), near(usageDeadlineMs)],
      ...[near(random.of([retentionMs, toEpoch])), near(random.of([0, ...due]))],
      near(random.chance(0.3) ? random.of(leaps) : 0),
    ]);
  }

  #draw(): Event {
    const total = [...this.#weights.values()].reduce((sum, weight) => sum + weight, 0);
    let drawn = this.#random.below(total);
    for (const [ask, weight] of this.#weights) {
      drawn -= weight;
      if (drawn < 0) return this.#make(ask);
    }
    return this.#reserve();
  }

  #make(ask: Ask): Event {
    const random = this.#random;
    const { key, attempt, operation, kept } = this.#target();
    if (kept === undefined && ask !== 'sweep' && random.chance(0.6)) return this.#reserve();
    switch (ask) {
      case 'reserve':
        return this.#reserve();
      case 'start':
        return this.#line.start(this.#now, key, operation, attempt);
      case 'release':
        return this.#line.release(this.#now, key, attempt);
      case 'settle':
      case 'unknown':
        return this.#evidence(ask, key, attempt, operation);
      case 'sweep':
        return { op: 'sweep', now: this.#now, limit: random.of([0, 1, 2, 100, 100]) };
      case 'operator':
        return this.#operator();
      case 'again': {
        const before = random.of([...this.#events, undefined]);
        return before === undefined ? this.#reserve() : { ...before, now: this.#now };
      }
    }
  }

  /** Mostly one that is kept, by the operation that is bound to it. */
  #target(): { key: string; attempt: number; operation: string; kept: Kept | undefined } {
    const random = this.#random;
    const kept = random.of([...this.#state.receipts.values(), undefined]);
    const key = KEYS.find((name) =>
      [1, 2, 3].some((n) => kept !== undefined && this.#line.id(name, n) === kept.id),
    );
    const bound = OPERATIONS.find((name) => operationOf(name) === kept?.operation);
    const drawn = random.of(OPERATIONS);
    const operation = bound !== undefined && random.chance(0.8) ? bound : drawn;
    const attempt = kept?.attempt ?? random.of([1, 1, 2]);
    return { key: key ?? random.of(KEYS), attempt, operation, kept };
  }

  #reserve(): Event {
    const random = this.#random;
    const key = random.of(KEYS);
    const first = this.#state.receipts.get(this.#line.id(key));
    const newest = this.#state.receipts.get(this.#line.id(key, first?.latest));
    const over = newest !== undefined && newest.keepUntil > 0;
    const attempt = Math.max(
      1,
      (first?.latest ?? 1) + random.of(over ? [0, 1, 1] : [0, 0, 0, 1, -1]),
    );
    const budget = this.#budgets[random.chance(0.6) ? 0 : random.below(this.#budgets.length)]!;
    const shadow = random.chance(this.#shadows);
    const twin = twinOf(this.#state, shadow);
    const units = budget.terms.limits.map(({ name, maxReservation }) => {
      const open = twin === undefined ? undefined : openPage(twin);
      const at = open?.terms.limits.findIndex((limit) => limit.name === name) ?? -1;
      const available = at === -1 ? maxReservation : open!.books[at]!.available;
      const around = random.of([available, available + 1, maxReservation, maxReservation + 1]);
      const some = random.of([0, 1, Math.ceil(maxReservation / 2), Math.ceil(maxReservation / 3)]);
      return clip(random.chance(0.4) ? around : some);
    });
    const some: Asked = {
      ...{ attempt, budget, shadow, again: random.chance(0.2), closed: random.chance(0.02) },
      ...(random.chance(0.05) ? { digest: digestOf('b') } : {}),
      ...(random.chance(0.6) ? { operation: random.of(OPERATIONS) } : {}),
      ...(random.chance(0.03)
        ? { routeFrozenUntil: random.of([-1, this.#now, this.#now + 1]) }
        : {}),
      ...(random.chance(0.02) ? { budget: { ...budget, content: 'other' } } : {}),
    };
    const broken = random.chance(0.02) ? random.of([[-1], [0.5], [2 ** 53], [1, 1, 1, 1]]) : units;
    return this.#line.reserve(this.#now, key, broken, some);
  }

  #evidence(op: 'settle' | 'unknown', key: string, attempt: number, operation: string): Event {
    const random = this.#random;
    const kept = this.#state.receipts.get(this.#line.id(key, attempt));
    const shadow = kept?.shadow ?? random.chance(this.#shadows);
    const twin = twinOf(this.#state, shadow);
    const budget = random.of(this.#budgets);
    const told = random.chance(kept === undefined ? 0.7 : 0.2);
    const reservedAt = random.of([
      ...[this.#now, kept?.reservedAt ?? this.#now, (kept?.reservedAt ?? this.#now) - 1],
      ...[twin?.foldedTo ?? 0, (twin?.foldedTo ?? 0) + 1],
    ]);
    const some = {
      attempt,
      ...(told ? { reservedAt: Math.max(0, reservedAt), shadow } : {}),
      ...(told && random.chance(0.3) ? { unreserved: true } : {}),
      ...(random.chance(0.7) ? { budget } : {}),
    };
    const amounts = this.#amounts(kept, shadow, budget);
    const now = this.#now;
    if (op === 'unknown') {
      const least = random.chance(0.3) ? [] : amounts;
      return this.#line.unknown(now, key, operation, least, some);
    }
    const grade = random.chance(0.6) ? 'reported' : random.of(GRADES);
    return this.#line.settle(now, key, operation, amounts, { ...some, grade });
  }

  #amounts(kept: Kept | undefined, shadow: boolean, budget: BudgetRef): number[] {
    const random = this.#random;
    const twin = twinOf(this.#state, shadow);
    const limits = (twin === undefined ? budget : openPage(twin)).terms.limits;
    const all = (kept?.units.length ?? limits.length) > 1 && random.chance(0.3);
    const page = twin?.pages.find(
      (some) => some.generation === kept?.generation && some.epoch === kept.epoch,
    );
    const of = page?.terms.limits ?? limits;
    if (random.chance(0.2)) return all ? [0] : of.map(() => 0);
    const list = of.map((limit, i) => {
      const units = kept?.units[i] ?? random.of([1, 5]);
      const book = twin === undefined ? undefined : openPage(twin).books[i];
      const room = units + (book?.available ?? 0);
      const deep = room + (limit.maxOverdraft ?? 1) - (twin ? debtOf(twin, limit.name) : 0);
      const known = kept?.actual?.[i] ?? kept?.least?.[i] ?? units;
      const cap = limit.executionHardCap ?? units;
      const choice = random.of([
        ...[1, units - 1, units, units + 1, Math.ceil(units / 2), room, room + 1, deep, deep + 1],
        ...[known, known, known + 1, cap, cap + 1, this.#huge && random.chance(0.2) ? MAX : units],
      ]);
      return clip(choice);
    });
    if (random.chance(0.01)) return [-1];
    return all ? list.slice(0, 1) : list;
  }

  #operator(): Event {
    const random = this.#random;
    const shadow = random.chance(this.#shadows);
    const now = this.#now;
    const twin = twinOf(this.#state, shadow);
    const name = random.of([...this.#budgets[0]!.terms.limits.map((limit) => limit.name), 's']);
    const debt = twin === undefined ? 0 : debtOf(twin, name);
    const units = random.of([1, 3, debt, debt + 1, 50]);
    return random.of<Event>([
      { op: 'freeze', now, shadow, until: random.of([-1, -1, 0, now - 1, now, now + 1, now + 10]) },
      { op: 'unfreeze', now, shadow },
      { op: 'credit', now, shadow, limit: name, units: clip(units) },
      { op: 'credit', now, shadow, limit: name, units: clip(units) },
    ]);
  }
}

function clip(amount: number): number {
  return Math.min(MAX, Math.max(0, amount));
}
