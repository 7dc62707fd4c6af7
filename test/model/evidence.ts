/** Settle and unknown in the model (docs/ledger.md, the operations so named). */
import type { Outcome, Terms } from '../../src/ledger/types.js';
import { credit, debtOf, excess, isAmount, openPage } from './account.js';
import { end, giveBack, openLine } from './admission.js';
import {
  type Kept,
  type LineState,
  ownName,
  type SettleEvent,
  type Twin,
  twinOf,
  type UnknownEvent,
} from './state.js';
import { moved, pageOf, refused, same, touch, viewOf } from './view.js';

type Evidence = SettleEvent | UnknownEvent;

export function settle(state: LineState, event: SettleEvent): Outcome {
  if (event.actual.length === 0 || !event.actual.every(isAmount)) {
    return refused(state, event, 'invalid', undefined);
  }
  const own = state.receipts.get(ownName(event));
  if (own !== undefined) return settleKept(state, event, own);
  const kept = keptFor(state, event);
  if (kept === undefined) return settleForgotten(state, event);
  return settleKept(state, event, kept);
}

export function unknown(state: LineState, event: UnknownEvent): Outcome {
  if (!event.least.every(isAmount)) return refused(state, event, 'invalid', undefined);
  const own = state.receipts.get(ownName(event));
  if (own !== undefined) return unknownKept(state, event, own);
  const kept = keptFor(state, event);
  if (kept === undefined) return unknownForgotten(state, event);
  return unknownKept(state, event, kept);
}

function twinAsked(event: Evidence): boolean {
  return event.metadata?.shadow ?? false;
}

/**
 * The receipt that the evidence is about: not one that was reserved later than the evidence says
 * and bound by another.
 */
function keptFor(state: LineState, event: Evidence): Kept | undefined {
  const kept = state.receipts.get(event.id);
  const { metadata } = event;
  if (kept === undefined || metadata === undefined || metadata.unreserved) return kept;
  const younger = kept.reservedAt > metadata.reservedAt && kept.operation !== event.operation;
  return younger ? undefined : kept;
}

/** One amount for several limits stands for each without a cost of its own; such a limit gets what is held in it. */
function expand(
  amounts: readonly number[],
  terms: Terms,
  held: readonly number[],
): readonly number[] | undefined {
  if (amounts.length === terms.limits.length) return amounts;
  if (amounts.length !== 1) return undefined;
  const amount = amounts[0]!;
  return terms.limits.map((limit, i) => {
    if (!limit.ownCost) return amount;
    return amount === 0 ? 0 : held[i]!;
  });
}

function isNothing(amounts: readonly number[]): boolean {
  return amounts.every((amount) => amount === 0);
}

function settleKept(state: LineState, event: SettleEvent, kept: Kept): Outcome {
  const bound = kept.operation === event.operation;
  if (!bound && !isUnbound(kept)) {
    if (isNothing(event.actual)) return same(state, event, kept);
    return settleOnItsOwn(state, event, kept.shadow, kept);
  }
  if (!bound && isNothing(event.actual)) {
    if (kept.state === 'EXPIRING') return same(state, event, kept);
    kept.evidence = event.grade;
    giveBack(state, touch(state, kept.shadow, event), kept, 'RELEASED');
    return moved(state, event, kept);
  }
  const before = twinOf(state, kept.shadow)!;
  const actual = amountsFor(kept, event.actual, pageOf(before, kept).terms);
  if (actual === undefined) return refused(state, event, 'invalid', undefined);
  if (bound) {
    const open = kept.keepUntil === 0;
    return (open ? settled : repeated)(state, event, kept, actual);
  }
  kept.operation = event.operation;
  kept.unstarted = true;
  return settled(state, event, kept, actual);
}

/** A use binds it, though no start did. */
function isUnbound(kept: Kept): boolean {
  return kept.state === 'RESERVED' || kept.state === 'EXPIRING';
}

function settled(
  state: LineState,
  event: SettleEvent,
  kept: Kept,
  actual: readonly number[],
): Outcome {
  const twin = touch(state, kept.shadow, event);
  const page = pageOf(twin, kept);
  for (const [i, book] of page.books.entries()) {
    book.reserved -= kept.units[i]!;
    book.spent += actual[i]!;
  }
  const issued = correct(twin, kept, kept.units, actual);
  end(state, twin, kept, issued.some((units) => units > 0) ? 'SETTLED_WITH_DEBT' : 'SETTLED');
  return booked(state, event, twin, kept, actual, issued);
}

/** The same settle again: real evidence replaces presumed evidence once, anything else moves nothing. */
function repeated(
  state: LineState,
  event: SettleEvent,
  kept: Kept,
  actual: readonly number[],
): Outcome {
  const before = kept.actual!;
  const equal = actual.every((units, i) => units === before[i]);
  const presumed = { kept: kept.evidence === 'presumed', now: event.grade === 'presumed' };
  if (!presumed.kept || presumed.now) {
    const fine = equal || (presumed.now && !presumed.kept);
    return fine ? sameBooked(state, event, kept) : refused(state, event, 'conflict', kept);
  }
  const twin = touch(state, kept.shadow, event);
  for (const [i, book] of pageOf(twin, kept).books.entries()) book.spent += actual[i]! - before[i]!;
  const issued = correct(twin, kept, before, actual);
  const less = actual.some((units, i) => units < before[i]!);
  const owes = kept.state === 'SETTLED_WITH_DEBT' && !less;
  const indebted = owes || issued.some((units) => units > 0);
  end(state, twin, kept, indebted ? 'SETTLED_WITH_DEBT' : 'SETTLED');
  return booked(state, event, twin, kept, actual, issued);
}

/** As long as the freeze of its breach stands, the route that must follow is named again. */
function sameBooked(state: LineState, event: SettleEvent, kept: Kept): Outcome {
  const answer = same(state, event, kept);
  const { frozenUntil, now } = answer.line;
  const frozen = frozenUntil === -1 || frozenUntil > now;
  const { onBreach } = pageOf(twinOf(state, kept.shadow)!, kept).terms;
  const follows = kept.breach && frozen && onBreach === 'freezeRoute' && !kept.shadow;
  return follows ? ({ ...answer, freezeRoute: true } as Outcome) : answer;
}

/** Books the difference between what was held (or thought) and what was used; says what overdraft each limit issued. */
function correct(
  twin: Twin,
  kept: Kept,
  from: readonly number[],
  to: readonly number[],
): readonly number[] {
  const page = pageOf(twin, kept);
  return page.terms.limits.map(({ name }, i) => {
    const more = to[i]! - from[i]!;
    if (more < 0) credit(twin, name, page, -more);
    return more > 0 ? excess(twin, name, page, more) : 0;
  });
}

/** What was used is on the receipt; a breach freezes the line whatever else happened. */
function booked(
  state: LineState,
  event: SettleEvent,
  twin: Twin,
  kept: Kept,
  actual: readonly number[],
  issued: readonly number[],
): Outcome {
  kept.actual = actual;
  kept.evidence = event.grade;
  const { terms } = pageOf(twin, kept);
  const breach = terms.limits.some(({ name, maxOverdraft, executionHardCap }, i) => {
    const most = maxOverdraft ?? Number.POSITIVE_INFINITY;
    const cap = executionHardCap ?? Number.POSITIVE_INFINITY;
    return (issued[i]! > 0 && debtOf(twin, name) > most) || actual[i]! > cap;
  });
  if (!breach) return moved(state, event, kept);
  kept.breach = true;
  if (terms.onBreach !== 'mark') {
    const until = terms.freezeForMs === 0 ? -1 : twin.clock + terms.freezeForMs;
    const forever = until === -1 || twin.frozenUntil === -1;
    twin.frozenUntil = forever ? -1 : Math.max(until, twin.frozenUntil);
  }
  return moved(state, event, kept, terms.onBreach === 'freezeRoute' && !kept.shadow);
}

function settleForgotten(state: LineState, event: SettleEvent): Outcome {
  const refusal = refusalOfForgotten(state, event);
  if (refusal !== undefined) return refusal;
  const shadow = twinAsked(event);
  if (isNothing(event.actual)) {
    return { kind: 'same', receipt: undefined, line: viewOf(state, shadow, event) };
  }
  return settleOnItsOwn(state, event, shadow, undefined);
}

function settleOnItsOwn(
  state: LineState,
  event: SettleEvent,
  shadow: boolean,
  original: Kept | undefined,
): Outcome {
  const terms = termsForOwn(state, event, shadow, original);
  if (terms === undefined) return refused(state, event, 'not-found', shadow);
  const kept = ownReceipt(state, event, shadow, original);
  return settled(state, event, kept, amountsForOwn(event.actual, terms));
}

/**
 * No receipt is kept for the evidence: it needs metadata that a MAC proved, and must be younger
 * than all that was folded.
 */
function refusalOfForgotten(state: LineState, event: Evidence): Outcome | undefined {
  if (event.metadata === undefined) return refused(state, event, 'not-found', false);
  const { shadow, reservedAt } = event.metadata;
  const twin = twinOf(state, shadow);
  if (twin !== undefined && reservedAt <= twin.foldedTo) {
    return refused(state, event, 'too-late', shadow);
  }
  return undefined;
}

/** A receipt of its own counts in the page of the reservation's; where none is kept, in the open one. */
function termsForOwn(
  state: LineState,
  event: Evidence,
  shadow: boolean,
  original: Kept | undefined,
): Terms | undefined {
  const twin = twinOf(state, shadow);
  if (twin === undefined) return event.metadata?.budget?.terms;
  return (original === undefined ? openPage(twin) : pageOf(twin, original)).terms;
}

function amountsFor(kept: Kept, amounts: readonly number[], terms: Terms) {
  return kept.own ? amountsForOwn(amounts, terms) : expand(amounts, terms, kept.units);
}

/** What is meant for other limits than those of the page counts as one amount, the greatest. */
function amountsForOwn(amounts: readonly number[], terms: Terms): readonly number[] {
  const nothing = terms.limits.map(() => 0);
  return expand(amounts, terms, nothing) ?? expand([Math.max(...amounts)], terms, nothing)!;
}

/** A receipt of 0 units, bound to the operation; the line opens where the ledger forgot it. */
function ownReceipt(
  state: LineState,
  event: Evidence,
  shadow: boolean,
  original: Kept | undefined,
): Kept {
  if (twinOf(state, shadow) === undefined) {
    openLine(state, shadow, event, event.metadata!.budget!);
  }
  const twin = twinOf(state, shadow)!;
  const page = original === undefined ? openPage(twin) : pageOf(twin, original);
  page.kept += 1;
  const attempt = original?.attempt ?? 1;
  const reservedAt = original?.reservedAt ?? event.metadata!.reservedAt;
  const kept: Kept = {
    ...{ id: event.id, own: true, group: original?.group ?? ownName(event), shadow, attempt },
    ...{ generation: page.generation, epoch: page.epoch, digest: original?.digest ?? '' },
    ...{ units: page.books.map(() => 0), reservedAt, expiresAt: reservedAt },
    ...{ state: 'USAGE_UNKNOWN', operation: event.operation, actual: undefined, least: undefined },
    ...{ evidence: '', breach: false, unstarted: true, latest: attempt, seq: twin.seq },
    ...{ due: 0, keepUntil: 0 },
  };
  state.receipts.set(ownName(event), kept);
  return kept;
}

function unknownKept(state: LineState, event: UnknownEvent, kept: Kept): Outcome {
  const bound = kept.operation === event.operation;
  if (!bound && !isUnbound(kept)) return unknownOnItsOwn(state, event, kept.shadow, kept);
  if (kept.keepUntil > 0) return same(state, event, kept);
  const before = twinOf(state, kept.shadow)!;
  const known = event.least.length > 0;
  const least = known ? amountsFor(kept, event.least, pageOf(before, kept).terms) : undefined;
  if (known && least === undefined) return refused(state, event, 'invalid', undefined);
  if (kept.state === 'USAGE_UNKNOWN') return learned(state, event, kept, least);
  if (!bound) {
    kept.operation = event.operation;
    kept.unstarted = true;
  }
  return nowUnknown(state, event, kept, least);
}

function nowUnknown(
  state: LineState,
  event: UnknownEvent,
  kept: Kept,
  least: readonly number[] | undefined,
): Outcome {
  kept.seq = touch(state, kept.shadow, event).seq;
  kept.state = 'USAGE_UNKNOWN';
  kept.due = 0;
  kept.least = least;
  return moved(state, event, kept);
}

/** The least known only grows. */
function learned(
  state: LineState,
  event: UnknownEvent,
  kept: Kept,
  least: readonly number[] | undefined,
): Outcome {
  const known = kept.least;
  const greater = least?.map((units, i) => Math.max(units, known?.[i] ?? 0)) ?? known;
  if (greater === known || greater?.every((units, i) => units === known?.[i])) {
    return same(state, event, kept);
  }
  return nowUnknown(state, event, kept, greater);
}

function unknownForgotten(state: LineState, event: UnknownEvent): Outcome {
  return (
    refusalOfForgotten(state, event) ?? unknownOnItsOwn(state, event, twinAsked(event), undefined)
  );
}

function unknownOnItsOwn(
  state: LineState,
  event: UnknownEvent,
  shadow: boolean,
  original: Kept | undefined,
): Outcome {
  const terms = termsForOwn(state, event, shadow, original);
  if (terms === undefined) return refused(state, event, 'not-found', shadow);
  const least = event.least.length === 0 ? undefined : amountsForOwn(event.least, terms);
  return nowUnknown(state, event, ownReceipt(state, event, shadow, original), least);
}
