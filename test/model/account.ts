/**
 * The arithmetic of a line in the model: refill, credit, excess, waits and folding (docs/ledger.md,
 * the sections so named).
 */
import type { Factor, LimitTerms, Refill } from '../../src/ledger/types.js';
import { type Book, emptyBook, type Kept, MAX, type Page, type Twin } from './state.js';

/** A counter would leave 0 … 2^53 - 1: the whole operation is refused. */
export class Overflow extends Error {}

const COUNTERS = [
  ...(['opening', 'minted', 'overdraftIssued', 'available', 'reserved', 'spent'] as const),
  ...(['retiredForEmergency', 'overdraftRepaid', 'carriedOut', 'lapsed'] as const),
  ...(['archiveCount', 'archiveSum'] as const),
];

export function isAmount(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 0;
}

/** A plan's factor scales burst, refill units and maxReservation: rounded down, at least 1. */
export function scaled(amount: number, factor: Factor): number {
  const product = (BigInt(amount) * BigInt(factor.numerator)) / BigInt(factor.denominator);
  if (product > BigInt(MAX)) throw new Overflow('scaled');
  return Math.max(1, Number(product));
}

export function openPage(twin: Twin): Page {
  return twin.pages.at(-1)!;
}

/** The limit's book of a page; undefined where the page's terms don't have the limit. */
export function bookOf(page: Page, limit: string): Book | undefined {
  return page.books[page.terms.limits.findIndex((terms) => terms.name === limit)];
}

function booksOf(twin: Twin, limit: string): Book[] {
  return twin.pages.map((page) => bookOf(page, limit)).filter((book) => book !== undefined);
}

function owed(book: Book): number {
  return book.overdraftIssued - book.overdraftRepaid;
}

/** A limit's debt over all books of the line. */
export function debtOf(twin: Twin, limit: string): number {
  return booksOf(twin, limit).reduce((sum, book) => sum + owed(book), 0);
}

/** Limits that owe something, the open page's first, in the order of their terms; then those that are gone. */
export function indebted(twin: Twin): string[] {
  const names = new Set<string>();
  for (const page of [openPage(twin), ...twin.pages]) {
    for (const { name } of page.terms.limits) if (debtOf(twin, name) > 0) names.add(name);
  }
  return [...names];
}

/** Lets time pass: refill from the line's clock to now, under the terms and the factor the line has; a freeze ends. */
export function pass(twin: Twin, now: number): void {
  const page = openPage(twin);
  page.terms.limits.forEach((limit, i) => {
    const refill = limit.refill;
    if (refill === null) return;
    const most = BigInt(scaled(limit.burst, twin.factor)) + BigInt(debtOf(twin, limit.name));
    const units = BigInt(scaled(refill.units, twin.factor));
    let minted: bigint;
    if ('window' in refill) {
      const boundaries = boundary(refill.window, now) - boundary(refill.window, twin.clock);
      minted = least(BigInt(boundaries) * units, most);
    } else {
      const every = BigInt(refill.everyMs);
      const dt = BigInt(now - twin.clock);
      const rest = (dt % every) * units + BigInt(twin.remainders[i]!);
      minted = least((dt / every) * units, most) + rest / every;
      twin.remainders[i] = Number(rest % every);
    }
    grant(twin, limit.name, Number(minted));
  });
  twin.clock = now;
  if (!isFrozen(twin.frozenUntil, now)) twin.frozenUntil = 0;
}

/** -1: until an operator ends it. A freeze whose time has passed is none. */
export function isFrozen(until: number, now: number): boolean {
  return until === -1 || until > now;
}

function least(a: bigint, b: bigint): bigint {
  return a < b ? a : b;
}

/** Units from outside: minted in the open book, then a credit of it. */
export function grant(twin: Twin, limit: string, units: number): void {
  const page = openPage(twin);
  bookOf(page, limit)!.minted += units;
  twin.granted.set(limit, (twin.granted.get(limit) ?? 0n) + BigInt(units));
  credit(twin, limit, page, units);
}

/** Rule 3: debt first, oldest book first; then the open book up to its burst; the rest lapses where it came from. */
export function credit(twin: Twin, limit: string, source: Page, units: number): void {
  const from = bookOf(source, limit)!;
  let left = units;
  for (const book of booksOf(twin, limit)) {
    const paid = Math.min(left, owed(book));
    carry(from, book, paid);
    book.overdraftRepaid += paid;
    left -= paid;
  }
  const page = openPage(twin);
  const open = bookOf(page, limit);
  if (open !== undefined) {
    const i = page.books.indexOf(open);
    const burst = scaled(page.terms.limits[i]!.burst, twin.factor);
    const taken = Math.min(left, burst - open.available);
    carry(from, open, taken);
    open.available += taken;
    left -= taken;
    if (open.available === burst) twin.remainders[i] = 0;
  }
  from.lapsed += left;
}

/**
 * Use above what was reserved: from the open book's available first (rule 6), the rest is
 * overdraft. Says how much that is.
 */
export function excess(twin: Twin, limit: string, at: Page, units: number): number {
  const open = bookOf(openPage(twin), limit);
  const book = bookOf(at, limit)!;
  const taken = open === undefined ? 0 : Math.min(units, open.available);
  if (open !== undefined) {
    open.available -= taken;
    carry(open, book, taken);
  }
  book.overdraftIssued += units - taken;
  return units - taken;
}

function carry(from: Book, to: Book, units: number): void {
  if (from === to) return;
  from.carriedOut += units;
  to.minted += units;
}

/** ms from the line's clock until refill alone has minted `units`; undefined: never, or beyond what a number holds. */
export function waitFor(twin: Twin, limit: LimitTerms, units: number): number | undefined {
  if (units <= 0) return 0;
  const refill = limit.refill;
  if (refill === null) return undefined;
  const rate = BigInt(scaled(refill.units, twin.factor));
  if ('window' in refill) {
    const count = (BigInt(units) + rate - 1n) / rate;
    return safe(boundaryTime(refill.window, twin.clock, count) - BigInt(twin.clock));
  }
  const i = openPage(twin).terms.limits.findIndex(({ name }) => name === limit.name);
  const needed = BigInt(units) * BigInt(refill.everyMs) - BigInt(twin.remainders[i]!);
  return safe((needed + rate - 1n) / rate);
}

function safe(wait: bigint): number | undefined {
  return wait > BigInt(MAX) ? undefined : Number(wait);
}

type Window = Extract<Refill, { window: string }>['window'];

const DAY = 86_400_000;
/** Length and a boundary's time of the windows that have one length; 1970-01-05 was a Monday. */
const FIXED = {
  minute: [60_000, 0],
  hour: [3_600_000, 0],
  day: [DAY, 0],
  week: [7 * DAY, 4 * DAY],
} as const;

/** Number of the window that `time` lies in. */
function boundary(window: Window, time: number): number {
  if (window === 'month') {
    const date = new Date(time);
    return date.getUTCFullYear() * 12 + date.getUTCMonth();
  }
  const [length, origin] = FIXED[window];
  return Math.floor((time - origin) / length);
}

/** Time of the `count`th boundary after `time`. */
function boundaryTime(window: Window, time: number, count: bigint): bigint {
  const target = BigInt(boundary(window, time)) + count;
  if (window !== 'month') {
    const [length, origin] = FIXED[window];
    return target * BigInt(length) + BigInt(origin);
  }
  // The calendar repeats every 400 years, and Date ends before 2^53 ms do.
  const cycle = 4800n;
  const start = Date.UTC(2000, Number(target % cycle));
  return BigInt(start) + (target / cycle - 5n) * 146_097n * BigInt(DAY);
}

function fits(twin: Twin, page: Page): boolean {
  return page.books.every((book, i) => {
    const archive = twin.archive.get(page.terms.limits[i]!.name) ?? emptyBook(0);
    return COUNTERS.every((counter) => archive[counter] + book[counter] <= MAX);
  });
}

/** A closed page that nothing needs is added to the line's archive, unless that would overflow. */
export function foldPages(twin: Twin): void {
  const open = openPage(twin);
  twin.pages = twin.pages.filter((page) => {
    const needed = page.kept > 0 || page.books.some((book) => book.reserved > 0 || owed(book) > 0);
    if (page === open || needed || !fits(twin, page)) return true;
    page.books.forEach((book, i) => {
      const { name } = page.terms.limits[i]!;
      const archive = twin.archive.get(name) ?? emptyBook(0);
      for (const counter of COUNTERS) archive[counter] += book[counter];
      twin.archive.set(name, archive);
    });
    return false;
  });
}

/** The equation, the range of every term, and the receipts against the books: whatever happened, these hold. */
export function verify(twin: Twin, receipts: readonly Kept[]): void {
  for (const page of twin.pages) {
    const here = receipts.filter((r) => r.generation === page.generation && r.epoch === page.epoch);
    assert(page.kept === here.length, 'kept counts the receipts of the page');
    page.books.forEach((book, i) => {
      verifyBook(book);
      const open = here.filter((r) => r.keepUntil === 0).map((r) => r.units[i]!);
      assert(book.reserved === total(open), 'reserved is the sum over open receipts');
      const ended = here.filter((r) => r.keepUntil > 0).map((r) => r.actual?.[i] ?? 0);
      const spent = total(ended) + book.archiveSum;
      assert(book.spent === spent, 'spent is the sum over kept receipts and the archive');
      assert(
        page === openPage(twin) || book.available === 0,
        'a closed book has nothing available',
      );
    });
  }
  for (const book of twin.archive.values()) verifyBook(book);
  for (const [limit, granted] of twin.granted) {
    const books = [...booksOf(twin, limit), twin.archive.get(limit) ?? emptyBook(0)];
    const inside = books.map((b) => BigInt(b.opening) + BigInt(b.minted) - BigInt(b.carriedOut));
    assert(inside.reduce((a, b) => a + b, 0n) === granted, `${limit}: nothing is made or lost`);
  }
}

function verifyBook(book: Book): void {
  for (const counter of COUNTERS) {
    assert(Number.isInteger(book[counter]) && book[counter] >= 0, `${counter} is not negative`);
    if (book[counter] > MAX) throw new Overflow(counter);
  }
  const left = [book.opening, book.minted, book.overdraftIssued];
  const right = [
    ...[book.available, book.reserved, book.spent, book.retiredForEmergency],
    ...[book.overdraftRepaid, book.carriedOut, book.lapsed],
  ];
  assert(sameSum(left, right), 'the equation');
  assert(owed(book) >= 0, 'never is more repaid than was issued');
}

function total(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}

/** Sums up to 2^53 - 1 are exact; above it both are added again as large integers. */
function sameSum(left: readonly number[], right: readonly number[]): boolean {
  if (total(left) <= MAX && total(right) <= MAX) return total(left) === total(right);
  return exact(left) === exact(right);
}

function exact(values: readonly number[]): bigint {
  return values.reduce((sum, value) => sum + BigInt(value), 0n);
}

function assert(holds: boolean, what: string): void {
  if (!holds) throw new Error(`the model breaks its own rule: ${what}`);
}
