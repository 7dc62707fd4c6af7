/** Operations to script arguments, and the scripts' flat replies to outcomes. No rule of the account is here. */
import { lineTag, parseReservation, receiptId } from '../core/ids.js';
import { readLineHead, readOwner, readReceipt } from './stored.js';
import type {
  AdmitRequest,
  BudgetRef,
  EvidenceMetadata,
  EvidenceRef,
  Grade,
  LimitedBy,
  LimitView,
  LineRef,
  LineView,
  Outcome,
  Receipt,
  Refusal,
  ReserveRequest,
  SettleRequest,
  SweepReply,
  Terms,
  UnknownRequest,
} from './types.js';

export type Argument = string | number | boolean | readonly number[];

/** What a line is opened under, in the positions of include/budget.lua. */
export type SharedBudget = readonly [
  generation: number,
  content: string,
  terms: string,
  numerator: number,
  denominator: number,
];

/** One operation on its way to a script. */
export interface Operation {
  readonly name: string;
  readonly tag: string;
  readonly args: Readonly<Record<string, Argument>>;
  /** The argument `budget`: sent once for all operations of a run that have the same. */
  readonly budget?: SharedBudget;
  /** Whose line it is; undefined: the reply says it. */
  readonly owner?: LineRef | undefined;
}

const termsCache = new WeakMap<Terms, string>();

/** Terms in the positions of include/line.lua. */
export function encodeTerms(terms: Terms): string {
  let encoded = termsCache.get(terms);
  if (encoded === undefined) {
    const limits = terms.limits.map(({ refill, ...limit }) => [
      limit.name,
      limit.burst,
      refill?.units ?? 0,
      refill === null ? 0 : 'window' in refill ? refill.window : refill.everyMs,
      limit.maxReservation,
      limit.maxOverdraft ?? -1,
      limit.executionHardCap ?? -1,
      limit.ownCost ? 1 : 0,
    ]);
    encoded = JSON.stringify([
      terms.epochMs,
      terms.holdTtlMs,
      terms.usageDeadlineMs,
      terms.retentionMs,
      terms.onBreach,
      terms.freezeForMs,
      limits,
    ]);
    termsCache.set(terms, encoded);
  }
  return encoded;
}

const budgetCache = new WeakMap<Terms, SharedBudget>();

/** The same list for the same budget, nearly always: what is the same is sent once. */
function encodeBudget({ generation, content, terms, factor }: BudgetRef): SharedBudget {
  const { numerator, denominator } = factor;
  const known = budgetCache.get(terms);
  if (
    known !== undefined &&
    known[0] === generation &&
    known[1] === content &&
    known[3] === numerator &&
    known[4] === denominator
  ) {
    return known;
  }
  const encoded = [generation, content, encodeTerms(terms), numerator, denominator] as const;
  budgetCache.set(terms, encoded);
  return encoded;
}

/** `admit` where the request names an operation, else `reserve`. */
export function encodeReserve(request: ReserveRequest | AdmitRequest): Operation {
  const { subject, route, key, attempt } = request;
  const idOf = (n: number): string => receiptId(subject, route, key, n);
  return {
    owner: request,
    budget: encodeBudget(request.budget),
    name: 'operation' in request ? 'admit' : 'reserve',
    tag: lineTag(subject, route),
    args: {
      id: idOf(attempt),
      digest: request.digest,
      units: request.units,
      attempt,
      previous: attempt > 1 ? idOf(attempt - 1) : '',
      first: attempt > 1 ? idOf(1) : '',
      owner: encodeOwner(request),
      shadow: request.shadow,
      closed: request.closed,
      routeFrozen: request.routeFrozenUntil,
      again: request.again,
      operation: 'operation' in request ? request.operation : '',
    },
  };
}

/** Throws a RangeError where the text is no reservation ID. */
export function splitReservation(reservation: string): { tag: string; id: string } {
  const parts = parseReservation(reservation);
  if (parts === undefined) throw new RangeError('not the ID of a reservation');
  return parts;
}

export function encodeStart(reservation: string, operation: string): Operation {
  const { tag, id } = splitReservation(reservation);
  return { name: 'start', tag, args: { id, operation } };
}

export function encodeRelease(reservation: string): Operation {
  const { tag, id } = splitReservation(reservation);
  return { name: 'release', tag, args: { id } };
}

/** As `readOwner` reads it. */
function encodeOwner({ subject, route }: LineRef): string {
  return JSON.stringify([subject, route]);
}

/** What a line is opened under that the ledger forgot. */
function encodeOpening(metadata: EvidenceMetadata | undefined): string {
  if (metadata?.budget === undefined) return '';
  const { budget } = metadata;
  return JSON.stringify({ owner: encodeOwner(metadata), budget: encodeBudget(budget) });
}

function encodeEvidence(
  name: string,
  evidence: EvidenceRef,
  amounts: readonly number[],
  grade: Grade | '',
): Operation {
  const { tag, id } = splitReservation(evidence.reservation);
  const metadata = evidence.metadata;
  return {
    name,
    tag,
    owner: metadata,
    args: {
      id,
      operation: evidence.operation,
      amounts,
      grade,
      reservedAt: metadata?.reservedAt ?? -1,
      unreserved: metadata?.unreserved ?? false,
      shadow: metadata?.shadow ?? false,
      budget: encodeOpening(metadata),
    },
  };
}

export function encodeSettle(request: SettleRequest): Operation {
  return encodeEvidence('settle', request, request.actual, request.grade);
}

export function encodeUnknown(request: UnknownRequest): Operation {
  return encodeEvidence('unknown', request, request.least, '');
}

export function encodeSweep(tag: string, limit: number): Operation {
  return { name: 'sweep', tag, args: { limit } };
}

type Reply = readonly unknown[];

/** Reads what a reply shows, in its order: the line, then the receipt. */
export class Stored {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  next(length: number): Buffer {
    this.#at += length;
    return this.#bytes.subarray(this.#at - length, this.#at);
  }
}

const NO_LINE: LineView = { seq: 0, now: 0, generation: 0, epoch: 0, frozenUntil: 0, limits: [] };

function see(list: Reply, stored: Stored): LineView {
  if (list.length === 0) return NO_LINE;
  const line = readLineHead(stored.next(list[0] as number));
  const limits = line.books.map((counters, i): LimitView => {
    const at = 4 * i + 2;
    const [name, burst, debt, resetMs] = list.slice(at, at + 4) as [string, number, number, number];
    return { name, burst, debt, counters, resetMs };
  });
  const { seq, generation, epoch, frozenUntil } = line;
  const now = list[1] as number;
  return { seq, now, generation, epoch, frozenUntil, limits };
}

function receiptOf(
  tag: string,
  list: Reply,
  stored: Stored,
  owner: LineRef | undefined,
): Receipt | undefined {
  if (list.length === 0) return undefined;
  const bytes = stored.next(list[1] as number);
  return readReceipt(tag, list[0] as string, bytes, owner ?? readOwner(list[2] as string));
}

/** The script could not carry the operation out; nothing of it happened. */
export class ScriptFailure extends Error {
  override readonly name = 'ScriptFailure';
}

/** `owner`: whose line it is, where that is known. */
export function decodeOutcome(tag: string, reply: Reply, stored: Stored, owner?: LineRef): Outcome {
  const kind = reply[0];
  if (kind === 'failed') throw new ScriptFailure(String(reply[1]));
  const line = see(reply[1] as Reply, stored);
  if (kind === 'limited') {
    const [by, limit, waitMs, needed] = reply.slice(2) as [LimitedBy, string, number, number];
    return { kind, by, limit, waitMs: waitMs === -1 ? undefined : waitMs, needed, line };
  }
  const receipt = receiptOf(tag, reply[2] as Reply, stored, owner);
  switch (kind) {
    case 'moved':
      // A freeze or a credit has no receipt; its callers look at the kind alone.
      return { kind, receipt: receipt as Receipt, line, freezeRoute: reply[3] === true };
    case 'same':
      return { kind, receipt, line, ...(reply[3] === true ? { freezeRoute: true } : {}) };
    case 'refused':
      return { kind, why: reply[3] as Refusal, detail: reply[4] as string, receipt, line };
    default:
      throw new ScriptFailure(`not a reply: ${String(kind)}`);
  }
}

export function decodeSweep(reply: Reply): SweepReply {
  if (reply[0] !== 'swept') throw new ScriptFailure(String(reply.at(-1)));
  const [expiring, expired, unknown, folded, nextDue, now] = reply.slice(1) as number[];
  return {
    expiring: expiring!,
    expired: expired!,
    unknown: unknown!,
    folded: folded!,
    nextDue: nextDue!,
    now: now!,
  };
}
