/**
 * Answers of the model, and the two things every operation does to a line before it writes: let
 * time pass, count up.
 */
import type { LineView, Outcome, Refusal } from '../../src/ledger/types.js';
import { debtOf, openPage, pass, scaled, waitFor } from './account.js';
import {
  type Event,
  type Kept,
  type LineState,
  type Page,
  receiptOf,
  type Twin,
  twinOf,
} from './state.js';

/** Ledger time of a twin: Redis' clock, but never before the line's own. */
export function nowOf(twin: Twin | undefined, event: { readonly now: number }): number {
  return Math.max(event.now, twin?.clock ?? 0);
}

/** Opens the twin for writing: time passes on it and its seq goes up by one. The twin's clock is `now` from here on. */
export function touch(state: LineState, shadow: boolean, event: { readonly now: number }): Twin {
  const twin = twinOf(state, shadow)!;
  pass(twin, nowOf(twin, event));
  twin.seq += 1;
  return twin;
}

/** The page a receipt counts in: it is there as long as the receipt is kept. */
export function pageOf(twin: Twin, kept: Kept): Page {
  return twin.pages.find((p) => p.generation === kept.generation && p.epoch === kept.epoch)!;
}

/** An answer about no line has no time either. */
const NO_LINE: LineView = { seq: 0, now: 0, generation: 0, epoch: 0, frozenUntil: 0, limits: [] };

export function viewOf(state: LineState, shadow: boolean, event: Event): LineView {
  const twin = twinOf(state, shadow);
  if (twin === undefined) return NO_LINE;
  const now = nowOf(twin, event);
  const { generation, epoch, terms, books } = openPage(twin);
  const limits = terms.limits.map((limit, i) => {
    const { archiveCount: _count, archiveSum: _sum, ...counters } = books[i]!;
    const burst = scaled(limit.burst, twin.factor);
    const debt = debtOf(twin, limit.name);
    const wait = waitFor(twin, limit, burst - counters.available + debt);
    const resetMs = limit.refill === null || wait === undefined ? -1 : wait;
    return { name: limit.name, burst, debt, counters, resetMs };
  });
  return { seq: twin.seq, now, generation, epoch, frozenUntil: twin.frozenUntil, limits };
}

export function moved(state: LineState, event: Event, kept: Kept, freezeRoute = false): Outcome {
  const line = viewOf(state, kept.shadow, event);
  return { kind: 'moved', receipt: receiptOf(state, kept), line, freezeRoute };
}

export function same(state: LineState, event: Event, kept: Kept): Outcome {
  return {
    kind: 'same',
    receipt: receiptOf(state, kept),
    line: viewOf(state, kept.shadow, event),
  };
}

/** `about` is the receipt it is about, or, where there is none, the twin, or nothing at all. */
export function refused(
  state: LineState,
  event: Event,
  why: Refusal,
  about: Kept | boolean | undefined,
): Outcome {
  const head = { kind: 'refused', why, detail: '' } as const;
  if (about === undefined) return { ...head, receipt: undefined, line: NO_LINE };
  if (typeof about === 'boolean') {
    return { ...head, receipt: undefined, line: viewOf(state, about, event) };
  }
  const line = viewOf(state, about.shadow, event);
  return { ...head, receipt: receiptOf(state, about), line };
}
