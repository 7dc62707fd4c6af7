/** Reserve, admit and start in the model (docs/ledger.md, the operations so named). */
import type { BudgetRef, LimitedBy, LimitTerms, Outcome, Terms } from '../../src/ledger/types.js';
import {
  bookOf,
  credit,
  debtOf,
  foldPages,
  indebted,
  isAmount,
  isFrozen,
  openPage,
  scaled,
  waitFor,
} from './account.js';
import {
  type Event,
  emptyBook,
  type Kept,
  type LineState,
  ownName,
  type Page,
  type ReserveEvent,
  type Twin,
  twinOf,
} from './state.js';
import { moved, pageOf, refused, same, touch, viewOf } from './view.js';

export function reserve(state: LineState, event: ReserveEvent): Outcome {
  const { budget, shadow } = event;
  if (!event.units.every(isAmount)) return refused(state, event, 'invalid', undefined);
  const known = state.receipts.get(event.id);
  if (known !== undefined) return askAgain(state, event, known);
  const booked = event.op === 'admit' ? state.receipts.get(ownName(event)) : undefined;
  if (booked !== undefined) return refused(state, event, 'state', booked);
  const previous = state.receipts.get(event.previous);
  if (event.attempt > 1 && !mayFollow(previous, event)) {
    return refused(state, event, 'attempt', previous ?? shadow);
  }
  const before = twinOf(state, shadow);
  if (before !== undefined) {
    const { generation } = openPage(before);
    if (budget.generation < generation) return refused(state, event, 'stale', shadow);
    const other = budget.generation === generation && budget.content !== before.content;
    if (other) return refused(state, event, 'content', shadow);
  }
  if (event.units.length !== budget.terms.limits.length) {
    return refused(state, event, 'invalid', undefined);
  }
  const twin = openOrMove(state, shadow, event, budget);
  const units = event.units.map((unit) => Math.max(1, unit));
  const failure = firstFailure(twin, event, units);
  if (failure !== undefined) {
    return { kind: 'limited', ...failure, line: viewOf(state, shadow, event) };
  }
  return moved(state, event, hold(state, twin, event, units));
}

/** The same ID again: nothing but the digest is compared. */
function askAgain(state: LineState, event: ReserveEvent, known: Kept): Outcome {
  if (known.digest !== event.digest) return refused(state, event, 'digest', known);
  if (event.op === 'reserve') return same(state, event, known);
  const answer = startKept(state, event, known, event.operation);
  const told = answer.kind === 'refused' && (answer.why === 'bound' || answer.why === 'state');
  return told ? same(state, event, known) : answer;
}

/** Attempt n + 1 is for a caller that has seen n end without execution, or with `again` in any real way. */
function mayFollow(previous: Kept | undefined, event: ReserveEvent): boolean {
  if (previous === undefined || previous.digest !== event.digest) return false;
  switch (previous.state) {
    case 'RELEASED':
    case 'EXPIRED':
      return true;
    case 'SETTLED':
    case 'SETTLED_WITH_DEBT': {
      if (previous.evidence === 'presumed') return false;
      return event.again || previous.actual!.every((units) => units === 0);
    }
    default:
      return false;
  }
}

export function openOrMove(
  state: LineState,
  shadow: boolean,
  event: Event,
  budget: BudgetRef,
): Twin {
  if (twinOf(state, shadow) === undefined) openLine(state, shadow, event, budget);
  const twin = touch(state, shadow, event);
  const epoch = epochOf(twin.clock, budget);
  const open = openPage(twin);
  const newer = budget.generation > open.generation;
  const otherFactor =
    budget.factor.numerator !== twin.factor.numerator ||
    budget.factor.denominator !== twin.factor.denominator;
  if (newer || epoch > open.epoch) movePage(twin, budget, epoch);
  else if (otherFactor) clip(open, budget);
  if (newer || otherFactor) twin.remainders = budget.terms.limits.map(() => 0);
  twin.factor = budget.factor;
  twin.content = budget.content;
  settleRemainders(twin);
  foldPages(twin);
  return twin;
}

function epochOf(now: number, { terms }: BudgetRef): number {
  return now - (now % terms.epochMs);
}

/** A line opens full; what opens it is its first write. */
export function openLine(state: LineState, shadow: boolean, event: Event, budget: BudgetRef): void {
  const bursts = budget.terms.limits.map((limit) => scaled(limit.burst, budget.factor));
  const names = budget.terms.limits.map(({ name }) => name);
  state[shadow ? 'shadow' : 'real'] = {
    ...{ seq: 0, clock: event.now, content: budget.content, factor: budget.factor },
    ...{ frozenUntil: 0, foldedTo: -1, remainders: bursts.map(() => 0) },
    pages: [pageWith(budget, epochOf(event.now, budget), bursts)],
    archive: new Map(),
    granted: new Map(names.map((name, i) => [name, BigInt(bursts[i]!)])),
  };
}

function pageWith(budget: BudgetRef, epoch: number, openings: readonly number[]): Page {
  const { generation, terms } = budget;
  return { generation, epoch, terms, books: openings.map(emptyBook), kept: 0 };
}

/**
 * Rule 5: what was available goes over up to the new burst, the rest lapses; a limit that is new by
 * name opens full.
 */
function movePage(twin: Twin, budget: BudgetRef, epoch: number): void {
  const old = openPage(twin);
  const openings = budget.terms.limits.map((limit) => {
    const burst = scaled(limit.burst, budget.factor);
    const book = bookOf(old, limit.name);
    if (book === undefined) {
      twin.granted.set(limit.name, (twin.granted.get(limit.name) ?? 0n) + BigInt(burst));
      return burst;
    }
    const carried = Math.min(burst, book.available);
    book.available -= carried;
    book.carriedOut += carried;
    return carried;
  });
  for (const book of old.books) {
    book.lapsed += book.available;
    book.available = 0;
  }
  twin.pages.push(pageWith(budget, epoch, openings));
}

/** Rule 7: what another factor's burst does not hold lapses. */
function clip(page: Page, budget: BudgetRef): void {
  for (const [i, book] of page.books.entries()) {
    const above = book.available - scaled(page.terms.limits[i]!.burst, budget.factor);
    if (above <= 0) continue;
    book.available -= above;
    book.lapsed += above;
  }
}

/** Whenever available is the burst, the remainder is 0. */
function settleRemainders(twin: Twin): void {
  const { books, terms } = openPage(twin);
  twin.remainders = twin.remainders.map((remainder, i) => {
    const burst = scaled(terms.limits[i]!.burst, twin.factor);
    return books[i]!.available === burst ? 0 : remainder;
  });
}

interface Failure {
  readonly by: LimitedBy;
  readonly limit: string;
  readonly waitMs: number | undefined;
  readonly needed: number;
}

function firstFailure(
  twin: Twin,
  event: ReserveEvent,
  units: readonly number[],
): Failure | undefined {
  const { terms, books } = openPage(twin);
  const whole = { limit: '', waitMs: undefined, needed: units[0]! };
  if (isFrozen(twin.frozenUntil, twin.clock) || isFrozen(event.routeFrozenUntil, twin.clock)) {
    return { by: 'frozen', ...whole };
  }
  if (event.closed) return { by: 'closed', ...whole };
  const all = terms.limits.map((limit, i) => ({ limit, book: books[i]!, needed: units[i]! }));
  const failing = (by: LimitedBy, of: typeof all, waits: boolean): Failure[] =>
    of.map(({ limit, needed, book }) => {
      const short = needed + debtOf(twin, limit.name) - book.available;
      const waitMs = waits ? waitOrHold(twin, terms, limit, short) : undefined;
      return { by, limit: limit.name, waitMs, needed };
    });

  const most = ({ maxReservation }: LimitTerms) => scaled(maxReservation, twin.factor);
  const tooLarge = all.filter(({ limit, needed }) => needed > most(limit));
  const owing = new Set(indebted(twin));
  const inDebt = all.filter(({ limit }) => owing.delete(limit.name));
  const gone = [...owing].map((limit): Failure => {
    return { by: 'debt', limit, waitMs: undefined, needed: units[0]! };
  });
  const short = all.filter(({ book, needed }) => book.available < needed);
  return (
    longest(failing('max-reservation', tooLarge, false)) ??
    longest([...failing('debt', inDebt, true), ...gone]) ??
    longest(failing('capacity', short, true))
  );
}

/** Without refill only what is reserved can come back, and the hold TTL is when. */
function waitOrHold(
  twin: Twin,
  terms: Terms,
  limit: LimitTerms,
  short: number,
): number | undefined {
  if (limit.refill !== null) return waitFor(twin, limit, short);
  const held = twin.pages.some((page) => (bookOf(page, limit.name)?.reserved ?? 0) > 0);
  return held ? terms.holdTtlMs : undefined;
}

function longest(failures: readonly Failure[]): Failure | undefined {
  const length = ({ waitMs }: Failure) => waitMs ?? Number.POSITIVE_INFINITY;
  return failures.find((one) => failures.every((other) => length(other) <= length(one)));
}

function hold(state: LineState, twin: Twin, event: ReserveEvent, units: readonly number[]): Kept {
  const page = openPage(twin);
  for (const [i, book] of page.books.entries()) {
    book.available -= units[i]!;
    book.reserved += units[i]!;
  }
  page.kept += 1;
  const { id, attempt, shadow, digest } = event;
  const expiresAt = twin.clock + page.terms.holdTtlMs;
  const kept: Kept = {
    ...{ id, own: false, group: attempt === 1 ? id : event.first, shadow, digest, units, attempt },
    ...{ generation: page.generation, epoch: page.epoch, reservedAt: twin.clock, expiresAt },
    ...{ state: 'RESERVED', operation: '', actual: undefined, least: undefined, evidence: '' },
    ...{ breach: false, unstarted: false, latest: attempt, seq: twin.seq },
    ...{ due: expiresAt, keepUntil: 0 },
  };
  state.receipts.set(id, kept);
  if (event.op === 'admit') bind(twin, kept, event.operation);
  const first = attempt > 1 ? state.receipts.get(event.first) : undefined;
  if (first !== undefined) first.latest = attempt;
  return kept;
}

function bind(twin: Twin, kept: Kept, operation: string): void {
  kept.state = 'STARTED';
  kept.operation = operation;
  kept.due = twin.clock + pageOf(twin, kept).terms.usageDeadlineMs;
}

export function start(
  state: LineState,
  event: Event & { readonly id: string; readonly operation: string },
): Outcome {
  const kept = state.receipts.get(event.id);
  if (kept === undefined) return refused(state, event, 'not-found', undefined);
  return startKept(state, event, kept, event.operation);
}

function startKept(state: LineState, event: Event, kept: Kept, operation: string): Outcome {
  if (kept.state === 'RESERVED') {
    const twin = touch(state, kept.shadow, event);
    kept.seq = twin.seq;
    if (twin.clock < kept.expiresAt) {
      bind(twin, kept, operation);
      return moved(state, event, kept);
    }
    kept.state = 'EXPIRING';
    kept.due = twin.clock;
    return refused(state, event, 'expired', kept);
  }
  if (kept.operation === operation) return same(state, event, kept);
  return refused(state, event, kept.operation === '' ? 'state' : 'bound', kept);
}

export function release(state: LineState, event: Event & { readonly id: string }): Outcome {
  const kept = state.receipts.get(event.id);
  if (kept === undefined) return refused(state, event, 'not-found', undefined);
  if (kept.state === 'RELEASED') return same(state, event, kept);
  if (kept.state !== 'RESERVED') return refused(state, event, 'state', kept);
  const twin = touch(state, kept.shadow, event);
  giveBack(state, twin, kept, 'RELEASED');
  return moved(state, event, kept);
}

/** Ends a reservation that nothing ran for: all of it is a refund. */
export function giveBack(
  state: LineState,
  twin: Twin,
  kept: Kept,
  ended: 'RELEASED' | 'EXPIRED',
): void {
  const page = pageOf(twin, kept);
  page.terms.limits.forEach(({ name }, i) => {
    page.books[i]!.reserved -= kept.units[i]!;
    credit(twin, name, page, kept.units[i]!);
  });
  end(state, twin, kept, ended);
}

export function end(state: LineState, twin: Twin, kept: Kept, ended: Kept['state']): void {
  kept.state = ended;
  kept.due = 0;
  kept.seq = twin.seq;
  if (kept.keepUntil > 0) return;
  kept.keepUntil = twin.clock + pageOf(twin, kept).terms.retentionMs;
  const { keepUntil } = kept;
  state.done = [...state.done, { name: kept.own ? ownName(kept) : kept.id, keepUntil }];
}

/** All attempts of a key, and the receipts of their own beside them. */
export function groupOf(state: LineState, group: string | undefined): Kept[] {
  return [...state.receipts.values()].filter((kept) => kept.group === group);
}
