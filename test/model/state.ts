/**
 * What the model keeps of one line (docs/ledger.md, "What is stored"). It shares the product's types of questions and
 * answers, and none of its code: a reader checks these files by eye against the page, and the tests check the
 * scripts against them.
 */
import type {
  BookCounters,
  BudgetRef,
  EvidenceMetadata,
  Factor,
  Grade,
  LineDump,
  State,
  Terms,
} from '../../src/ledger/types.js';

export const MAX = Number.MAX_SAFE_INTEGER;

/** One page of the account for one limit. */
export interface Book extends BookCounters {
  archiveCount: number;
  archiveSum: number;
}

/** The books of all limits of one (generation, epoch), in the order of its terms. */
export interface Page {
  readonly generation: number;
  readonly epoch: number;
  readonly terms: Terms;
  readonly books: Book[];
  kept: number;
}

/** A line, or its shadow: the account of one of the two. */
export interface Twin {
  seq: number;
  clock: number;
  content: string;
  factor: Factor;
  frozenUntil: number;
  /** Latest reservation time that was folded, -1: none. */
  foldedTo: number;
  /** Of the limits of the open page. */
  remainders: number[];
  /** Oldest first, the open one last; never empty. */
  pages: Page[];
  readonly archive: Map<string, Book>;
  /** By limit, all that ever came in from outside: first opening, refill, credits. Only to check the books against. */
  readonly granted: Map<string, bigint>;
}

/** Where a receipt of its own is kept: beside the one of its reservation, by its operation. */
export function ownName(event: { readonly id: string; readonly operation: string }): string {
  return `${event.id}:${event.operation}`;
}

export interface Kept {
  readonly id: string;
  /** A receipt of its own for a use that no start won. */
  readonly own: boolean;
  /** What folds together: the ID of the key's first attempt, or of the own receipt alone. */
  readonly group: string;
  readonly shadow: boolean;
  readonly generation: number;
  readonly epoch: number;
  readonly digest: string;
  readonly units: readonly number[];
  readonly reservedAt: number;
  readonly expiresAt: number;
  readonly attempt: number;
  state: State;
  operation: string;
  actual: readonly number[] | undefined;
  least: readonly number[] | undefined;
  evidence: Grade | '';
  breach: boolean;
  unstarted: boolean;
  latest: number;
  seq: number;
  /** When time will change it, 0: never. */
  due: number;
  /** 0 while open. */
  keepUntil: number;
}

/** A receipt that ended, and from when on it may fold. */
export interface Done {
  /** Of `LineState.receipts`. */
  readonly name: string;
  readonly keepUntil: number;
}

/** One (subject, route): both twins and the receipts of both. */
export interface LineState {
  readonly subject: string;
  readonly route: string;
  readonly tag: string;
  real: Twin | undefined;
  shadow: Twin | undefined;
  /** By `id`, or `id:operation` for a receipt of its own. */
  readonly receipts: Map<string, Kept>;
  /** Receipts in the order in which they ended, until a sweep has looked at them. */
  done: readonly Done[];
}

export interface ReserveEvent {
  readonly op: 'reserve' | 'admit';
  readonly now: number;
  /** The idempotency key; the model knows the IDs made of it. */
  readonly key: string;
  readonly id: string;
  readonly attempt: number;
  /** IDs of attempt n - 1 and of attempt 1; "" for the first attempt. */
  readonly previous: string;
  readonly first: string;
  readonly digest: string;
  readonly units: readonly number[];
  readonly budget: BudgetRef;
  readonly shadow: boolean;
  readonly closed: boolean;
  readonly routeFrozenUntil: number;
  readonly again: boolean;
  /** "" for a reserve. */
  readonly operation: string;
}

interface EvidenceEvent {
  readonly now: number;
  readonly id: string;
  readonly operation: string;
  readonly metadata?: EvidenceMetadata;
}

export interface SettleEvent extends EvidenceEvent {
  readonly op: 'settle';
  readonly actual: readonly number[];
  readonly grade: Grade;
}

export interface UnknownEvent extends EvidenceEvent {
  readonly op: 'unknown';
  readonly least: readonly number[];
}

interface TwinEvent {
  readonly now: number;
  readonly shadow: boolean;
}

/** One operation of docs/ledger.md at one instant of Redis' clock. */
export type Event =
  | ReserveEvent
  | { readonly op: 'start'; readonly now: number; readonly id: string; readonly operation: string }
  | { readonly op: 'release'; readonly now: number; readonly id: string }
  | SettleEvent
  | UnknownEvent
  | { readonly op: 'sweep'; readonly now: number; readonly limit: number }
  | ({ readonly op: 'freeze'; readonly until: number } & TwinEvent)
  | ({ readonly op: 'unfreeze' } & TwinEvent)
  | ({ readonly op: 'credit'; readonly limit: string; readonly units: number } & TwinEvent);

/** A line nobody has asked for yet. */
export function emptyLine(subject: string, route: string, tag: string): LineState {
  return { subject, route, tag, real: undefined, shadow: undefined, receipts: new Map(), done: [] };
}

export function emptyBook(opening: number): Book {
  return {
    opening,
    minted: 0,
    overdraftIssued: 0,
    available: opening,
    reserved: 0,
    spent: 0,
    retiredForEmergency: 0,
    overdraftRepaid: 0,
    carriedOut: 0,
    lapsed: 0,
    archiveCount: 0,
    archiveSum: 0,
  };
}

export function twinOf(state: LineState, shadow: boolean): Twin | undefined {
  return shadow ? state.shadow : state.real;
}

export function copyLine(state: LineState): LineState {
  const receipts = new Map<string, Kept>();
  for (const [name, receipt] of state.receipts) receipts.set(name, { ...receipt });
  return { ...state, real: copyTwin(state.real), shadow: copyTwin(state.shadow), receipts };
}

function copyTwin(twin: Twin | undefined): Twin | undefined {
  if (twin === undefined) return undefined;
  const archive = new Map<string, Book>();
  for (const [name, book] of twin.archive) archive.set(name, { ...book });
  const pages = twin.pages.map((page) => ({ ...page, books: page.books.map((b) => ({ ...b })) }));
  const remainders = [...twin.remainders];
  return { ...twin, remainders, pages, archive, granted: new Map(twin.granted) };
}

/** The line as `Ledger.dump` shows it, receipts sorted by ID and operation. */
export function dumpLine(state: LineState): LineDump[] {
  const dumps: LineDump[] = [];
  for (const shadow of [false, true]) {
    const twin = twinOf(state, shadow);
    if (twin !== undefined) dumps.push(dumpTwin(state, shadow, twin));
  }
  return dumps;
}

function dumpTwin(state: LineState, shadow: boolean, twin: Twin): LineDump {
  const { subject, route, tag } = state;
  const open = twin.pages.at(-1)!;
  const { seq, clock, content, factor, frozenUntil, foldedTo, remainders } = twin;
  return {
    ...{ subject, route, tag, shadow, seq, clock, content, factor, frozenUntil, foldedTo },
    generation: open.generation,
    epoch: open.epoch,
    remainders,
    pages: twin.pages.map((page) => ({
      generation: page.generation,
      epoch: page.epoch,
      closed: page !== open,
      kept: page.kept,
      books: page.books.map((book, i) => dumpBook(page.terms.limits[i]!.name, book)),
    })),
    archive: [...twin.archive].map(([name, book]) => dumpBook(name, book)),
    receipts: [...state.receipts.values()]
      .filter((receipt) => receipt.shadow === shadow)
      .map((receipt) => ({
        ...receiptOf(state, receipt),
        own: receipt.own,
        keepUntil: receipt.keepUntil,
      })),
  };
}

function dumpBook(limit: string, book: Book) {
  const { archiveCount, archiveSum, ...counters } = book;
  return { limit, counters, archiveCount, archiveSum };
}

/** `limitReservation.v1` as the ledger answers it. */
export function receiptOf(state: LineState, kept: Kept) {
  const { id, own: _own, group: _group, due: _due, keepUntil: _keepUntil, ...rest } = kept;
  const { subject, route } = state;
  return { ...rest, subject, route, reservation: `rl-${state.tag}-${id}` };
}
