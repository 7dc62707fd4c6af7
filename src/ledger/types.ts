/** What goes into the ledger and what comes out of it (docs/ledger.md says what each operation does). */

/** A stored reservation's state, verbatim as in the ledger. */
export type State =
  | 'RESERVED'
  | 'STARTED'
  | 'SETTLED'
  | 'SETTLED_WITH_DEBT'
  | 'RELEASED'
  | 'EXPIRING'
  | 'EXPIRED'
  | 'USAGE_UNKNOWN';

/** How good a piece of evidence is; every grade but `presumed` is real. */
export type Grade = 'reported' | 'neverSent' | 'refused' | 'presumed' | 'operator';

/** Why an admission was refused, as it stands in `x-earmark-limited-by`. */
export type LimitedBy = 'capacity' | 'debt' | 'frozen' | 'closed' | 'max-reservation' | 'queue';

/** Refill of a limit: continuous (`everyMs`) or granted at each UTC boundary (`window`). */
export type Refill =
  | { readonly units: number; readonly everyMs: number }
  | { readonly units: number; readonly window: 'minute' | 'hour' | 'day' | 'week' | 'month' };

/** One of up to eight things that must all hold on a line. Amounts in the limit's units, unscaled. */
export interface LimitTerms {
  /** "" for a budget with a single unnamed limit. */
  readonly name: string;
  readonly burst: number;
  readonly refill: Refill | null;
  readonly maxReservation: number;
  readonly maxOverdraft: number | null;
  readonly executionHardCap: number | null;
  /** The limit has a `cost` of its own, so an amount in the budget's unit says nothing about it. */
  readonly ownCost: boolean;
}

/** What the ledger must know of a budget; stored with the line, so any process can settle. */
export interface Terms {
  readonly limits: readonly LimitTerms[];
  readonly epochMs: number;
  readonly holdTtlMs: number;
  readonly usageDeadlineMs: number;
  readonly retentionMs: number;
  readonly onBreach: 'freezeRoute' | 'freezeLine' | 'mark';
  /** 0: until an operator ends it. */
  readonly freezeForMs: number;
}

/** A plan's factor as an exact fraction. */
export interface Factor {
  readonly numerator: number;
  readonly denominator: number;
}

/** Which budget of which frozen policy speaks. */
export interface BudgetRef {
  readonly generation: number;
  /** Digest of the published document: one generation has one content. */
  readonly content: string;
  readonly terms: Terms;
  readonly factor: Factor;
}

/** The account that is spent from. Shadow lines have books of their own. */
export interface LineRef {
  readonly subject: string;
  readonly route: string;
}

export interface ReserveRequest extends LineRef {
  readonly key: string;
  /** 1, 2, …; n + 1 only by who has seen n end without execution. */
  readonly attempt: number;
  /** 43 characters: SHA-256 of the canonical request, base64url. */
  readonly digest: string;
  /** One amount for each limit of the terms, in their order. 0 counts as 1. */
  readonly units: readonly number[];
  readonly budget: BudgetRef;
  readonly shadow: boolean;
  /** Not open to admissions: drain, or `refuseAll`. */
  readonly closed: boolean;
  /** A freeze of the whole route: 0 none, -1 until an operator ends it, else ledger time in ms. */
  readonly routeFrozenUntil: number;
  /** `settledAgain: reserve`: an attempt that was settled with a use may be followed by another. */
  readonly again: boolean;
  /** The request ID's record for log entries without our metadata (Envoy only). */
  readonly announce?: { readonly requestId: string; readonly methodPath: string };
}

export interface AdmitRequest extends ReserveRequest {
  /** Drawn anew for each Check: 22 characters, 128 random bits, base64url. */
  readonly operation: string;
}

/** Evidence names the operation it is about; `metadata` is present where a MAC proved it. */
export interface EvidenceRef {
  readonly reservation: string;
  readonly operation: string;
  readonly metadata?: EvidenceMetadata;
}

/** What the MACed metadata says, so that a reservation the ledger forgot can still be booked. */
export interface EvidenceMetadata extends LineRef {
  readonly shadow: boolean;
  readonly reservedAt: number;
  /** The answer to the reserve was lost: the time is the gateway's guess of the ledger's. */
  readonly unreserved: boolean;
  /** The policy under which it was asked; needed only to open a line that the ledger forgot. */
  readonly budget?: BudgetRef;
}

export interface SettleRequest extends EvidenceRef {
  /**
   * One amount a limit; or a single one in the budget's unit (limits with a cost of their own then
   * settle at what they hold).
   */
  readonly actual: readonly number[];
  readonly grade: Grade;
}

export interface UnknownRequest extends EvidenceRef {
  /** The least that is known to have been used; empty: nothing known. */
  readonly least: readonly number[];
}

/** `limitReservation.v1` as stored. Times in ms of the ledger's clock. */
export interface Receipt {
  readonly reservation: string;
  readonly subject: string;
  readonly route: string;
  readonly shadow: boolean;
  readonly generation: number;
  readonly epoch: number;
  readonly digest: string;
  readonly units: readonly number[];
  readonly actual: readonly number[] | undefined;
  readonly least: readonly number[] | undefined;
  /** "" until one is bound. */
  readonly operation: string;
  readonly reservedAt: number;
  readonly expiresAt: number;
  readonly state: State;
  readonly breach: boolean;
  readonly unstarted: boolean;
  readonly evidence: Grade | '';
  readonly attempt: number;
  /** The newest attempt of the key; known to the receipt of attempt 1, else the attempt itself. */
  readonly latest: number;
  /** The line's seq at which this receipt last changed. */
  readonly seq: number;
}

/** The counters of a book, in the order of the equation. */
export interface BookCounters {
  opening: number;
  minted: number;
  overdraftIssued: number;
  available: number;
  reserved: number;
  spent: number;
  retiredForEmergency: number;
  overdraftRepaid: number;
  carriedOut: number;
  lapsed: number;
}

/** One limit of the line after an answer. */
export interface LimitView {
  readonly name: string;
  /** Scaled by the plan's factor. */
  readonly burst: number;
  readonly debt: number;
  /** The open book's counters. */
  readonly counters: BookCounters;
  /** ms until the limit is full if nothing else happens; -1 without refill. */
  readonly resetMs: number;
}

export interface LineView {
  /** The line's write counter after the answer; 0: no such line. */
  readonly seq: number;
  /** Ledger time of the answer. */
  readonly now: number;
  readonly generation: number;
  readonly epoch: number;
  readonly frozenUntil: number;
  readonly limits: readonly LimitView[];
}

/** Why the ledger did not do what was asked, besides a refused admission. */
export type Refusal =
  | 'digest'
  | 'attempt'
  | 'stale'
  | 'content'
  | 'expired'
  | 'bound'
  | 'state'
  | 'not-found'
  | 'too-late'
  | 'conflict'
  | 'overflow'
  | 'invalid';

/**
 * `moved`: it happened now. `same`: it had happened before, nothing moved. `limited`: an admission refused for
 * capacity's sake. `refused`: anything else that may not be.
 */
export type Outcome =
  | { kind: 'moved'; receipt: Receipt; line: LineView; freezeRoute: boolean }
  | { kind: 'same'; receipt: Receipt | undefined; line: LineView; freezeRoute?: boolean }
  | {
      kind: 'limited';
      by: LimitedBy;
      /** The limit with the longest wait. */
      limit: string;
      /** ms by refill, undefined: no wait helps. */
      waitMs: number | undefined;
      needed: number;
      line: LineView;
    }
  | { kind: 'refused'; why: Refusal; detail: string; receipt: Receipt | undefined; line: LineView };

/** The ledger could not be asked, or did not answer in time: what happened is not known. */
export class LedgerUnavailable extends Error {
  override readonly name = 'LedgerUnavailable';
}

export interface SweepReply {
  readonly expiring: number;
  readonly expired: number;
  readonly unknown: number;
  /** Receipts folded into an archive. */
  readonly folded: number;
  /** Ledger time at which the line next has something to do; 0: nothing. */
  readonly nextDue: number;
  readonly now: number;
}

/** Everything the ledger holds of one twin of a line, as the audit and the proof read it. */
export interface LineDump extends LineRef {
  readonly tag: string;
  readonly shadow: boolean;
  readonly seq: number;
  readonly clock: number;
  readonly generation: number;
  readonly epoch: number;
  readonly content: string;
  readonly factor: Factor;
  /** 0 none, -1 until an operator ends it. */
  readonly frozenUntil: number;
  readonly foldedTo: number;
  /** Of the limits in force, in their order. */
  readonly remainders: readonly number[];
  /** Open page last. */
  readonly pages: readonly PageDump[];
  /** Folded pages by limit name; empty until one folded. */
  readonly archive: readonly BookDump[];
  readonly receipts: readonly ReceiptDump[];
}

export interface PageDump {
  readonly generation: number;
  readonly epoch: number;
  readonly closed: boolean;
  /** Receipts kept (open and ended) that count in this page. */
  readonly kept: number;
  readonly books: readonly BookDump[];
}

export interface BookDump {
  readonly limit: string;
  readonly counters: BookCounters;
  /** Folded receipts. */
  readonly archiveCount: number;
  readonly archiveSum: number;
}

export interface ReceiptDump extends Receipt {
  /** A receipt of its own (0 units) for a use that no start won. */
  readonly own: boolean;
  /** 0 while open. */
  readonly keepUntil: number;
}
