/**
 * Random cases: operations on a line of their own, drawn with the model at hand so that most of them hit something
 * alive, at and around every boundary. A case that the scripts answer otherwise is made as short as it can be.
 */
import type { BudgetRef, Grade, LimitTerms } from '../../src/ledger/types.js';
import { dumpDifferences, replyDifferences } from './compare.js';
import { step } from './model.js';
import type { Real } from './real.js';
import { budgetOf, digestOf, Line, limitTerms, T0 } from './samples.js';
import { dumpLine, type Event, type Kept, type LineState } from './state.js';
import { tell } from './story.js';

export interface Case {
  readonly seed: number;
  readonly line: Line;
  readonly events: readonly Event[];
}

/** Marsaglia's xorshift, started from a mixed seed: a case is drawn again from its number alone. */
class Dice {
  #state: number;

  constructor(seed: number) {
    this.#state = Math.imul(seed ^ 0x9e3779b9, 0x85ebca6b) || 1;
  }

  below(sides: number): number {
    this.#state ^= this.#state << 13;
    this.#state ^= this.#state >>> 17;
    this.#state ^= this.#state << 5;
    return (this.#state >>> 0) % sides;
  }

  one<T>(of: readonly T[]): T {
    return of[this.below(of.length)]!;
  }

  chance(percent: number): boolean {
    return this.below(100) < percent;
  }
}

const OPERATIONS = 14;
const GRADES: readonly Grade[] = ['reported', 'reported', 'neverSent', 'presumed', 'operator'];

export function drawCase(seed: number): Case {
  const line = new Line(`case ${seed}`);
  const writer = new Writer(line, new Dice(seed));
  for (let i = 0; i < OPERATIONS; i++) writer.add();
  if (seed % 4 === 0) writer.end();
  return { seed, line, events: writer.events };
}

/** Draws event after event, and asks the model what came of them. */
class Writer {
  readonly events: Event[] = [];
  readonly #line: Line;
  readonly #dice: Dice;
  readonly #budgets: readonly BudgetRef[];
  /** Each case weighs the operations anew, so that some cases are all about one of them. */
  readonly #weights: readonly number[];
  #state: LineState;
  #now = T0;

  constructor(line: Line, dice: Dice) {
    this.#line = line;
    this.#dice = dice;
    this.#state = line.empty();
    this.#budgets = budgets(dice);
    this.#weights = Array.from({ length: 8 }, () => 1 + dice.below(6));
  }

  add(): void {
    this.#now = Math.max(this.#now + this.#leap(), 0);
    this.#tell(this.#draw());
  }

  /** Everything falls due, ends, and folds. */
  end(): void {
    const { usageDeadlineMs, retentionMs } = this.#budgets[0]!.terms;
    for (const length of [usageDeadlineMs, 0, retentionMs]) {
      this.#now += length;
      this.#tell({ op: 'sweep', now: this.#now, limit: 100 });
    }
  }

  #tell(event: Event): void {
    this.events.push(event);
    this.#state = step(this.#state, event).state;
  }

  /** Mostly none; else to, just before or just after what time changes, and at times back. */
  #leap(): number {
    const dice = this.#dice;
    if (dice.chance(50)) return 0;
    if (dice.chance(5)) return -dice.below(30);
    const { holdTtlMs, usageDeadlineMs, retentionMs, epochMs } = this.#budgets[0]!.terms;
    const toEpoch = epochMs - (this.#now % epochMs);
    const length = dice.one([1, 3, holdTtlMs, usageDeadlineMs, retentionMs, toEpoch]);
    return Math.max(0, length + dice.one([-1, 0, 0, 1]));
  }

  #draw(): Event {
    const dice = this.#dice;
    const total = this.#weights.reduce((all, weight) => all + weight, 0);
    const drawn = dice.below(total);
    let sum = 0;
    const kind = this.#weights.findIndex((weight) => {
      sum += weight;
      return drawn < sum;
    });
    const known = [...this.#state.receipts.values()];
    const about = known.length > 0 && dice.chance(90) ? dice.one(known) : undefined;
    const attempt = about?.attempt ?? 1;
    const key = this.#keyOf(about) ?? dice.one(['a', 'b', 'c']);
    const bound = about?.operation.replace(/-+$/, '') ?? '';
    const operation = bound !== '' && dice.chance(70) ? bound : dice.one(['x', 'y']);
    switch (kind) {
      case 0:
      case 1:
        return this.#reserve();
      case 2:
        return this.#line.start(this.#now, key, operation, attempt);
      case 3:
        return this.#line.release(this.#now, key, attempt);
      case 4:
        return { op: 'sweep', now: this.#now, limit: 100 };
      case 5:
        return this.#line.unknown(
          this.#now,
          key,
          operation,
          dice.chance(30) ? [] : this.#amounts(about),
          this.#told(about, attempt),
        );
      case 6:
        return dice.chance(40) ? this.#operator() : this.#reserve();
      default:
        return this.#line.settle(this.#now, key, operation, this.#amounts(about), {
          ...this.#told(about, attempt),
          grade: dice.one(GRADES),
        });
    }
  }

  #keyOf(about: Kept | undefined): string | undefined {
    return ['a', 'b', 'c'].find((key) => about && this.#line.id(key, about.attempt) === about.id);
  }

  #reserve(): Event {
    const dice = this.#dice;
    const budget = dice.one(this.#budgets);
    const key = dice.one(['a', 'b', 'c']);
    const known = this.#state.receipts.get(this.#line.id(key));
    const attempt = known !== undefined && dice.chance(40) ? known.latest + dice.below(2) : 1;
    const units = budget.terms.limits.map(({ burst, maxReservation }) =>
      Math.max(
        0,
        dice.one([0, 1, maxReservation, maxReservation, burst >> 1, burst]) - dice.below(2),
      ),
    );
    return this.#line.reserve(this.#now, key, dice.chance(3) ? [...units, 1] : units, {
      ...{ budget: dice.chance(2) ? { ...budget, content: 'other' } : budget, attempt },
      ...(dice.chance(50) ? { operation: dice.one(['x', 'y']) } : {}),
      ...(dice.chance(5) ? { digest: digestOf('b') } : {}),
      ...{ shadow: dice.chance(15), closed: dice.chance(2), again: dice.chance(20) },
      routeFrozenUntil: dice.chance(2) ? this.#now + dice.below(2) : 0,
    });
  }

  #amounts(about: Kept | undefined): readonly number[] {
    const dice = this.#dice;
    const limits = this.#budgets[0]!.terms.limits;
    const amounts = (about?.units ?? limits.map(() => 0)).map((units, i) => {
      const { burst, maxOverdraft, executionHardCap } = limits[i] ?? limits[0]!;
      const known = [about?.actual?.[i] ?? 0, maxOverdraft ?? 1, executionHardCap ?? 2];
      const amount = dice.one([0, 0, 1, units >> 1, units, units, burst, units + burst, ...known]);
      return Math.max(0, amount + dice.one([-1, 0, 0, 0, 1]));
    });
    if (dice.chance(15)) return amounts.slice(0, 1);
    return dice.chance(5) ? [...amounts, dice.below(3)] : amounts;
  }

  /** Now and then with metadata: true, older than the receipt, or of what the ledger never knew. */
  #told(about: Kept | undefined, attempt: number) {
    const dice = this.#dice;
    if (about !== undefined && dice.chance(60)) return { attempt };
    const told = {
      ...{ attempt, shadow: about?.shadow ?? dice.chance(20), unreserved: dice.chance(20) },
      reservedAt: (about?.reservedAt ?? this.#now) - dice.one([0, 0, 0, 1, 10]),
    };
    return dice.chance(80) ? { ...told, budget: dice.one(this.#budgets) } : told;
  }

  #operator(): Event {
    const dice = this.#dice;
    const twin = { now: this.#now, shadow: dice.chance(15) };
    const limit = dice.one(this.#budgets[0]!.terms.limits);
    switch (dice.below(4)) {
      case 0:
        return { op: 'freeze', ...twin, until: dice.one([-1, this.#now, this.#now + 20]) };
      case 1:
        return { op: 'unfreeze', ...twin };
      default:
        return { op: 'credit', ...twin, limit: limit.name, units: dice.below(2 * limit.burst) };
    }
  }
}

/** A generation, the same under another plan, and the next one. */
function budgets(dice: Dice): readonly BudgetRef[] {
  const count = dice.one([1, 1, 1, 2, 3]);
  const names = count === 1 ? [''] : ['day', 'minute', 'calls'].slice(0, count);
  const terms = {
    epochMs: dice.one([50, 1000, 86_400_000]),
    holdTtlMs: dice.one([10, 30]),
    usageDeadlineMs: dice.one([20, 40]),
    retentionMs: dice.one([25, 300, 86_400_000]),
    onBreach: dice.one(['freezeLine', 'freezeRoute', 'mark'] as const),
    freezeForMs: dice.one([0, 15]),
  };
  const limits = names.map((name) => drawLimit(dice, name));
  const next = dice.chance(30) ? limits.slice(1) : limits.map(({ name }) => drawLimit(dice, name));
  const first = budgetOf(limits, terms);
  const factor = dice.one([
    { numerator: 1, denominator: 2 },
    { numerator: 7, denominator: 3 },
  ]);
  const second = budgetOf(next.length === 0 ? [drawLimit(dice, 'new')] : next, {
    ...terms,
    generation: 2,
  });
  return dice.one([[first], [first], [first, { ...first, factor }], [first, first, second]]);
}

function drawLimit(dice: Dice, name: string): LimitTerms {
  const burst = dice.one([10, 100, 1000, 1_000_000_007]);
  const everyMs = dice.one([1, 3, 7, 1000]);
  return limitTerms({
    ...{ name, burst, maxReservation: dice.one([burst, Math.ceil(burst / 2)]) },
    refill: dice.one([
      null,
      { units: 1 + dice.below(burst), everyMs },
      { units: 1 + dice.below(5), everyMs },
      { units: burst >> 1, window: dice.one(['minute', 'hour', 'day', 'week', 'month'] as const) },
    ]),
    maxOverdraft: dice.one([null, 0, 3, burst]),
    executionHardCap: dice.one([null, null, burst + 2]),
    ownCost: name === 'calls',
  });
}

/** Puts cases on the scripts side by side; answers the first that differs, and how. */
export async function firstDifference(
  cases: readonly Case[],
  real: Real,
): Promise<{ readonly case: Case; readonly found: readonly string[] } | undefined> {
  const places = cases.map(() => `case ${count++}`);
  const states = cases.map(({ line }) => line.empty());
  const steps = Math.max(...cases.map(({ events }) => events.length));
  for (let n = 0; n < steps; n++) {
    const asked = cases.map((one, i) => ({ one, i, event: one.events[n] }));
    const answers = await Promise.all(
      asked.map(({ i, event }) => event && real.ask({ at: places[i]!, line: states[i]!, event })),
    );
    for (const { one, i, event } of asked) {
      if (event === undefined) continue;
      const { state, reply } = step(states[i]!, event);
      states[i] = state;
      const found = replyDifferences(reply, answers[i]!);
      if (found.length > 0) return { case: { ...one, events: one.events.slice(0, n + 1) }, found };
    }
  }
  const dumps = await Promise.all(states.map((state, i) => real.dump(places[i]!, state.tag)));
  for (const [i, one] of cases.entries()) {
    const found = dumpDifferences(dumpLine(states[i]!), dumps[i]!);
    if (found.length > 0) return { case: one, found };
  }
  await real.forget(places);
  return undefined;
}

let count = 0;

/** Leaves out operations as long as a difference remains; tells what is left. */
export async function shortest(failing: Case, real: Real): Promise<string> {
  let least = failing;
  for (let i = least.events.length - 1; i >= 0; i--) {
    const fewer = { ...least, events: least.events.filter((_, k) => k !== i) };
    if (fewer.events.length === 0) break;
    const still = await firstDifference([fewer], real);
    if (still !== undefined) least = still.case;
    i = Math.min(i, least.events.length);
  }
  const last = await firstDifference([least], real);
  const way = least.events.map(tell).join('\n  ');
  return `seed ${failing.seed}:\n  ${way}\n${last?.found.join('\n') ?? 'does not happen again'}`;
}
