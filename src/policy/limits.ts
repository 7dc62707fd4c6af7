/** The limits of a budget: amounts, refill, and the rules that publishing checks of them (docs/policy.md). */
import { type Decimal, formatDecimal } from '../core/decimal.js';
import { UNITS_MAX } from '../core/limits.js';
import { scaleUnits } from '../estimate/estimate.js';
import type { Factor, LimitTerms, Refill } from '../ledger/types.js';
import type { Json } from './canonical.js';
import { COST_PARTS, type Prices } from './cost.js';
import { formatDuration } from './duration.js';
import { LIMIT_KEYS, LIMITS_MAX, WINDOWS } from './schema.js';
import type { Cursor } from './source.js';

/** The shortest that each window can be. */
const WINDOW_MS = {
  minute: 60_000,
  hour: 3_600_000,
  day: 86_400_000,
  week: 7 * 86_400_000,
  month: 28 * 86_400_000,
} as const;

type Field = (key: string) => Cursor;
type Form = { readonly [key: string]: Json };

/** A limit as read: what the ledger needs, what it costs, and its canonical form. */
export interface ReadLimit {
  readonly terms: LimitTerms;
  /** Undefined: the budget's. */
  readonly prices: Prices | undefined;
  readonly canonical: Form;
  /** Where its amounts stand, for the rules that only hold or fail with a plan's factor. */
  readonly field: Field;
}

/** What the budget says for every limit without a cost of its own. */
interface Caps {
  readonly maxReservation: number | undefined;
  readonly maxOverdraft: number | null;
  readonly executionHardCap: number | null;
}

/** A number or `none`, which is what stands there by default. */
function amountOrNone(at: Cursor, min: number): number | null {
  return !at.present || at.is('none') ? null : at.integer(min, undefined, 'none or ');
}

function readRefill(at: Cursor): { refill: Refill | null; canonical: Json } {
  const nothing = { refill: null, canonical: 'none' };
  if (!at.present || at.is('none')) return nothing;
  if (!at.isMapping) {
    at.fail('must be none, { units: 100, every: 1s } or { units: 60000, window: 1m }');
    return nothing;
  }
  const field = at.mapping(['units', 'every', 'window']);
  const units = field('units').integer(1);
  if (field('every').present && field('window').present) {
    at.fail('has both every and window: keep one');
    return nothing;
  }
  if (field('window').present) {
    const window = field('window').choice(Object.keys(WINDOWS) as (keyof typeof WINDOWS)[]);
    return { refill: { units, window: WINDOWS[window] }, canonical: { units, window } };
  }
  if (!field('every').present) {
    at.fail('needs every (continuous, such as 1s) or window (1m, 1h, 1d, 1w or month)');
    return nothing;
  }
  const everyMs = field('every').duration();
  return { refill: { units, everyMs }, canonical: { units, every: formatDuration(everyMs) } };
}

export function readPrices(at: Cursor): { prices: Prices; canonical: Json } {
  const field = at.mapping(COST_PARTS);
  const given = COST_PARTS.filter((part) => field(part).present);
  const prices = Object.fromEntries(given.map((part) => [part, field(part).decimal()])) as Record<
    string,
    Decimal
  >;
  if (at.isMapping && given.every((part) => prices[part]!.digits === 0n)) {
    at.fail(
      'costs nothing at all: give at least one part a price, such as { input: 1, output: 1 }',
    );
  }
  const canonical = Object.fromEntries(given.map((part) => [part, formatDecimal(prices[part]!)]));
  return { prices, canonical };
}

function readOne(field: Field, name: string, caps: Caps): ReadLimit {
  const burst = field('burst').integer(1);
  const { refill, canonical } = readRefill(field('refill'));
  const own = name !== '' && field('cost').present ? readPrices(field('cost')) : undefined;
  const terms: LimitTerms = {
    name,
    burst,
    refill,
    maxReservation: own ? burst : (caps.maxReservation ?? burst),
    maxOverdraft: own ? null : caps.maxOverdraft,
    executionHardCap: own ? null : caps.executionHardCap,
    ownCost: own !== undefined,
  };
  const form = { burst, refill: canonical };
  return {
    terms,
    prices: own?.prices,
    canonical: own ? { ...form, cost: own.canonical } : form,
    field,
  };
}

function readList(list: Cursor, caps: Caps): readonly ReadLimit[] {
  const items = list.items();
  if (items.length > LIMITS_MAX)
    list.fail(`has ${items.length} limits: at most ${LIMITS_MAX} may be`);
  const names = new Set<string>();
  return items.map((item) => {
    const field = item.mapping(LIMIT_KEYS);
    const name = field('name').text(undefined);
    if (field('name').present && !/^[A-Za-z0-9][\w.-]{0,63}$/.test(name)) {
      field('name').fail('must be 1 to 64 letters, digits, dots, dashes or underscores');
    }
    if (names.has(name)) field('name').fail(`is the name of an earlier limit: give it another`);
    names.add(name);
    const limit = readOne(field, name || '?', caps);
    return { ...limit, canonical: { name, ...limit.canonical } };
  });
}

/**
 * `burst` and `refill`, or `limits`; with the budget's caps in each limit that they speak of. `sound`: every amount is
 * what was written; where it is not, comparing it would complain of what nobody wrote.
 */
export function readLimits(
  at: Cursor,
  field: Field,
): { limits: readonly ReadLimit[]; canonical: Form; sound: boolean } {
  const before = at.problems;
  const most = field('maxReservation');
  const caps: Caps = {
    maxReservation: most.present ? most.integer(1) : undefined,
    maxOverdraft: amountOrNone(field('maxOverdraft'), 0),
    executionHardCap: amountOrNone(field('executionHardCap'), 1),
  };
  const several = field('limits').present && !field('limits').isEmptyList;
  if (!several && !field('burst').present) {
    at.fail('needs burst, the most that may be available, or limits with a burst each');
    return { limits: [], canonical: {}, sound: false };
  }
  if (several) {
    for (const key of ['burst', 'refill']) {
      if (field(key).present) field(key).fail('stands beside limits: move it into one of them');
    }
  }
  const limits = several ? readList(field('limits'), caps) : [readOne(field, '', caps)];
  const sound = at.problems === before;
  if (sound) checkCaps(field, limits, caps);
  return { limits, canonical: formOf(limits, caps), sound };
}

function formOf(limits: readonly ReadLimit[], caps: Caps): Form {
  const canonical = {
    maxOverdraft: caps.maxOverdraft ?? 'none',
    executionHardCap: caps.executionHardCap ?? 'none',
  };
  const [first] = limits;
  if (first !== undefined && first.terms.name === '') {
    return { ...first.canonical, ...canonical, maxReservation: first.terms.maxReservation };
  }
  const list = { ...canonical, limits: limits.map((limit) => limit.canonical) };
  // Left out, it is each limit's own burst, which one number could not say.
  return caps.maxReservation === undefined
    ? list
    : { ...list, maxReservation: caps.maxReservation };
}

function checkCaps(field: Field, limits: readonly ReadLimit[], caps: Caps): void {
  const spoken = limits.filter((limit) => !limit.terms.ownCost).map((limit) => limit.terms);
  for (const key of ['maxReservation', 'maxOverdraft', 'executionHardCap'] as const) {
    if (spoken.length === 0 && caps[key] !== undefined && caps[key] !== null) {
      field(key).fail('speaks of limits without a cost of their own, and there is none: remove it');
    }
  }
  const burst = Math.min(...spoken.map((limit) => limit.burst));
  if (caps.maxReservation !== undefined && caps.maxReservation > burst) {
    field('maxReservation').fail(
      `is ${caps.maxReservation}, above the burst of ${burst}, so it could never be reserved: lower it or raise burst`,
    );
  }
  const largest = Math.max(...spoken.map((limit) => limit.maxReservation));
  if (caps.executionHardCap !== null && caps.executionHardCap < largest) {
    field('executionHardCap').fail(
      `is ${caps.executionHardCap}, below maxReservation ${largest}, so that a use as reserved would be a breach: raise it`,
    );
  }
}

/** Refuses amounts that the ledger could not compute with exactly, for every plan. */
export function checkArithmetic(
  limits: readonly ReadLimit[],
  plans: ReadonlyMap<string, Factor>,
  epochMs: number,
): void {
  const factors: readonly (readonly [string, Factor])[] =
    plans.size > 0 ? [...plans] : [['', { numerator: 1, denominator: 1 }]];
  for (const [plan, factor] of factors) {
    const under = plan === '' ? '' : ` under plan ${plan}`;
    for (const limit of limits) checkExact(limit, factor, epochMs, under);
  }
}

function checkExact(
  { terms, field }: ReadLimit,
  factor: Factor,
  epochMs: number,
  under: string,
): void {
  const numerator = BigInt(factor.numerator);
  const exact = (units: number): boolean => BigInt(units) * numerator <= BigInt(UNITS_MAX);
  if (!exact(terms.burst)) field('burst').fail(`is above 2^53 - 1${under}: lower it or the factor`);
  const { refill } = terms;
  if (refill === null) return;
  if (!exact(refill.units))
    field('refill').fail(`is above 2^53 - 1${under}: lower it or the factor`);
  const units = scaleUnits(refill.units, factor);
  if ('everyMs' in refill) {
    const every = BigInt(refill.everyMs);
    if (BigInt(units) * every + every > BigInt(UNITS_MAX)) {
      field('refill').fail(
        `has units × every (in ms) above 2^53 - 1${under}: divide both by the same number`,
      );
      return;
    }
  }
  // What a full line has no room for is counted too, as minted and as lapsed.
  const periods = Math.ceil(
    epochMs / ('everyMs' in refill ? refill.everyMs : WINDOW_MS[refill.window]),
  );
  const minted = BigInt(scaleUnits(terms.burst, factor)) + BigInt(units) * BigInt(periods);
  if (minted > BigInt(UNITS_MAX)) {
    field('refill').fail(
      `mints more than 2^53 - 1 in one epoch${under}, which no book can count: lower the refill, or shorten epoch`,
    );
  }
}
