/** The sweep in the model: what time alone changes, and folding (docs/ledger.md, "sweep", "Ending and folding"). */
import type { SweepReply } from '../../src/ledger/types.js';
import { debtOf, openPage } from './account.js';
import { giveBack, groupOf } from './admission.js';
import { type Kept, type LineState, MAX, type Twin, twinOf } from './state.js';
import { nowOf, pageOf, touch } from './view.js';

interface SweepEvent {
  readonly now: number;
  readonly limit: number;
}

/** What is due is judged by Redis' clock, even where the line's is ahead of it. */
export function sweep(state: LineState, event: SweepEvent): SweepReply {
  const { now } = event;
  const limit = Math.max(1, event.limit);
  const touched = new Set<boolean>();
  const reach = (shadow: boolean): Twin => {
    if (touched.has(shadow)) return twinOf(state, shadow)!;
    touched.add(shadow);
    return touch(state, shadow, event);
  };
  for (const shadow of [false, true]) {
    const twin = twinOf(state, shadow);
    if (owes(twin)) reach(shadow);
  }
  const count = { expiring: 0, expired: 0, unknown: 0, folded: 0 };
  const ended = state.done.slice(0, limit);
  for (const kept of dueBy(state, now).slice(0, limit)) {
    count[age(state, reach(kept.shadow), kept)] += 1;
  }
  for (const entry of ended) {
    const receipts = groupOf(state, state.receipts.get(entry.name)?.group);
    if (lastOf(receipts) <= entry.keepUntil) {
      const { shadow } = state.receipts.get(entry.name)!;
      if (entry.keepUntil > nowOf(twinOf(state, shadow), event)) break;
      for (const kept of receipts) reach(kept.shadow);
      if (!fold(state, receipts)) break;
      count.folded += receipts.length;
    }
    state.done = state.done.slice(1);
  }
  return { ...count, nextDue: nextDue(state, event), now };
}

/** Due ones, by time and then by ID. */
function dueBy(state: LineState, now: number): Kept[] {
  const due = [...state.receipts.values()].filter((kept) => kept.due > 0 && kept.due <= now);
  return due.sort((a, b) => a.due - b.due || (a.id < b.id ? -1 : 1));
}

/** One transition of a receipt whose time has come. */
function age(state: LineState, twin: Twin, kept: Kept): 'expiring' | 'expired' | 'unknown' {
  kept.seq = twin.seq;
  switch (kept.state) {
    case 'RESERVED':
      kept.state = 'EXPIRING';
      kept.due = twin.clock;
      return 'expiring';
    case 'EXPIRING':
      giveBack(state, twin, kept, 'EXPIRED');
      return 'expired';
    default:
      kept.state = 'USAGE_UNKNOWN';
      kept.due = 0;
      return 'unknown';
  }
}

/** When the last of a group has been kept long enough; never, where one is open or none is kept. */
function lastOf(receipts: readonly Kept[]): number {
  const open = receipts.length === 0 || receipts.some(({ keepUntil }) => keepUntil === 0);
  return open ? Number.POSITIVE_INFINITY : Math.max(...receipts.map(({ keepUntil }) => keepUntil));
}

/** Folds a group as a whole, or says that an archive would overflow. */
function fold(state: LineState, receipts: readonly Kept[]): boolean {
  const sums = receipts.map((kept) => {
    const page = pageOf(twinOf(state, kept.shadow)!, kept);
    return { kept, page, actual: kept.actual ?? page.books.map(() => 0) };
  });
  const overflows = sums.some(({ page }) =>
    page.books.some((book, i) => {
      const here = sums.filter((sum) => sum.page === page);
      return here.reduce((sum, { actual }) => sum + actual[i]!, book.archiveSum) > MAX;
    }),
  );
  if (overflows) return false;
  for (const { kept, page, actual } of sums) {
    page.kept -= 1;
    page.books.forEach((book, i) => {
      book.archiveCount += 1;
      book.archiveSum += actual[i]!;
    });
    const twin = twinOf(state, kept.shadow)!;
    twin.foldedTo = Math.max(twin.foldedTo, kept.reservedAt);
    state.receipts.delete(kept.own ? `${kept.id}:${kept.operation}` : kept.id);
  }
  return true;
}

/**
 * When the line next has something to do, 0: never. One in debt is looked at every second, so that
 * refill repays it.
 */
function nextDue(state: LineState, event: SweepEvent): number {
  const dues = [...state.receipts.values()].map((kept) => kept.due).filter((due) => due > 0);
  const folds = state.done.slice(0, 1).map((done) => done.keepUntil);
  const soon = owes(state.real) || owes(state.shadow) ? [event.now + 1000] : [];
  const all = [...dues, ...folds, ...soon];
  return all.length === 0 ? 0 : Math.min(...all);
}

/** Debt that refill repays: that of a limit in force. */
function owes(twin: Twin | undefined): boolean {
  const limits = twin === undefined ? [] : openPage(twin).terms.limits;
  return limits.some(({ name }) => debtOf(twin!, name) > 0);
}
