/**
 * The model: a second, simpler specification of a line, written from docs/ledger.md. `step` is pure: a state and an
 * event make the next state and a reply. Every operation is a function named like its section of that page.
 */
import type { Outcome, Receipt, SweepReply } from '../../src/ledger/types.js';
import {
  bookOf,
  foldPages,
  grant,
  isAmount,
  isFrozen,
  Overflow,
  openPage,
  verify,
} from './account.js';
import { release, reserve, start } from './admission.js';
import { settle, unknown } from './evidence.js';
import { copyLine, type Event, type LineState, twinOf } from './state.js';
import { sweep } from './sweep.js';
import { nowOf, refused, touch, viewOf } from './view.js';

export type Reply = Outcome | SweepReply;

export interface Step {
  /** The very state from before where nothing was written. */
  readonly state: LineState;
  readonly reply: Reply;
}

export function step(before: LineState, event: Event): Step {
  const state = copyLine(before);
  try {
    const reply = apply(state, event);
    const written = [false, true].some(
      (shadow) => twinOf(state, shadow)?.seq !== twinOf(before, shadow)?.seq,
    );
    if (!written && state.done === before.done) return { state: before, reply };
    const receipts = [...state.receipts.values()];
    for (const shadow of [false, true]) {
      const twin = twinOf(state, shadow);
      if (twin === undefined) continue;
      foldPages(twin);
      verify(
        twin,
        receipts.filter((kept) => kept.shadow === shadow),
      );
    }
    return { state, reply };
  } catch (error) {
    if (!(error instanceof Overflow)) throw error;
    return { state: before, reply: refused(before, event, 'overflow', undefined) };
  }
}

function apply(state: LineState, event: Event): Reply {
  switch (event.op) {
    case 'reserve':
    case 'admit':
      return reserve(state, event);
    case 'start':
      return start(state, event);
    case 'release':
      return release(state, event);
    case 'settle':
      return settle(state, event);
    case 'unknown':
      return unknown(state, event);
    case 'sweep':
      return sweep(state, event);
    case 'freeze':
    case 'unfreeze':
      return freeze(state, event, event.op === 'freeze' ? event.until : 0);
    case 'credit':
      return creditLine(state, event);
  }
}

/** A freeze until a time that has passed is none, and changes nothing. */
function freeze(state: LineState, event: Event & { shadow: boolean }, until: number): Outcome {
  const { shadow } = event;
  const before = twinOf(state, shadow);
  if (before === undefined) return refused(state, event, 'not-found', shadow);
  const now = nowOf(before, event);
  const lifts = event.op === 'unfreeze';
  const already = lifts ? !isFrozen(before.frozenUntil, now) : before.frozenUntil === until;
  const passed = !lifts && !isFrozen(until, now);
  if (already || passed)
    return { kind: 'same', receipt: undefined, line: viewOf(state, shadow, event) };
  touch(state, shadow, event).frozenUntil = until;
  return movedLine(state, event);
}

/** An operator's: minted in the open book, then credited like any other. */
function creditLine(state: LineState, event: Event & { op: 'credit' }): Outcome {
  const { shadow, limit, units } = event;
  const before = twinOf(state, shadow);
  if (before === undefined) return refused(state, event, 'not-found', shadow);
  const known = bookOf(openPage(before), limit) !== undefined;
  if (!isAmount(units)) return refused(state, event, 'invalid', undefined);
  if (!known) return refused(state, event, 'not-found', shadow);
  grant(touch(state, shadow, event), limit, units);
  return movedLine(state, event);
}

/** Freeze, unfreeze and credit are about a line and have no receipt. */
function movedLine(state: LineState, event: Event & { shadow: boolean }): Outcome {
  const line = viewOf(state, event.shadow, event);
  return { kind: 'moved', receipt: undefined as unknown as Receipt, line, freezeRoute: false };
}
