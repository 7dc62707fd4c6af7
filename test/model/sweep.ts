/** The sweep in the model: what time alone changes, and folding (docs/ledger.md, "sweep", "Ending and folding"). */
import type { SweepReply } from '../../src/ledger/types.js';
import { debtOf, indebted, openPage } from './account.js';
import { giveBack } from './admission.js';
import { type Kept, type LineState, MAX, type Twin, twinOf } from './state.js';
import { pageOf, touch } from './view.js';

interface SweepEvent {
  readonly now: number;
  readonly limit: number;
}

export function sweep(state: LineState, event: SweepEvent): SweepReply {
  const now = Math.max(event.now, state.real?.clock ?? 0, state.shadow?.clock ?? 0);
  const touched = new Set<boolean>();
  const reach = (shadow: boolean): Twin => {
    if (touched.has(shadow)) return twinOf(state, shadow)!;
    touched.add(shadow);
    return touch(state, shadow, { now });
  };
  for (const shadow of [false, true]) {
    const twin = twinOf(state, shadow);
    if (twin !== undefined && indebted(twin).length > 0) reach(shadow);
  }
  const count = { expiring: 0, expired: 0, unknown: 0, folded: 0 };
  for (const kept of dueBy(state, now).slice(0, event.limit)) {
    count[age(state, reach(kept.shadow), kept)] += 1;
  }
  for (const group of foldable(state, now).slice(0, event.limit)) {
    for (const kept of group.receipts) reach(kept.shadow);
    count.folded += fold(state, group.receipts);
  }
  return { ...count, nextDue: nextDue(state, now), now };
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

interface Group {
  readonly keepUntil: number;
  /** The last of its receipts that ended. */
  readonly ended: number;
  readonly receipts: readonly Kept[];
}

/** Groups of which nothing is open, in the order in which they ended. */
function ended(state: LineState): Group[] {
  const groups = new Map<string, Kept[]>();
  for (const kept of state.receipts.values()) {
    groups.set(kept.group, [...(groups.get(kept.group) ?? []), kept]);
  }
  return [...groups.values()]
    .filter((receipts) => receipts.every((kept) => kept.keepUntil > 0))
    .map((receipts) => ({
      receipts,
      keepUntil: Math.max(...receipts.map((kept) => kept.keepUntil)),
      ended: Math.max(...receipts.map((kept) => kept.ended)),
    }))
    .sort((a, b) => a.ended - b.ended);
}

function foldable(state: LineState, now: number): Group[] {
  return ended(state).filter((group) => group.keepUntil <= now);
}

/** Folds a group as a whole; where an archive would overflow, it stays. Says how many receipts that are. */
function fold(state: LineState, receipts: readonly Kept[]): number {
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
  if (overflows) return 0;
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
  return receipts.length;
}

/**
 * When the line next has something to do, 0: never. One in debt is looked at every second, so that
 * refill repays it.
 */
function nextDue(state: LineState, now: number): number {
  const dues = [...state.receipts.values()].map((kept) => kept.due).filter((due) => due > 0);
  const folds = ended(state)
    .map((group) => group.keepUntil)
    .slice(0, 1);
  const owes = [state.real, state.shadow].some(
    (twin) =>
      twin !== undefined && openPage(twin).terms.limits.some(({ name }) => debtOf(twin, name) > 0),
  );
  const next = Math.min(...dues, ...folds, owes ? now + 1000 : Number.POSITIVE_INFINITY);
  return next === Number.POSITIVE_INFINITY ? 0 : next;
}
