/** Operations to script arguments, and the scripts' flat replies to outcomes. No rule of the account is here. */
import { Packr } from 'msgpackr';
import { lineTag, parseReservation, receiptId, reservationId } from '../core/ids.js';
import type {
  AdmitRequest,
  BookCounters,
  BudgetRef,
  EvidenceRef,
  Grade,
  LimitedBy,
  LimitView,
  LineView,
  Outcome,
  Receipt,
  ReceiptDump,
  Refusal,
  ReserveRequest,
  SettleRequest,
  State,
  SweepReply,
  Terms,
  UnknownRequest,
} from './types.js';

export type Argument = string | number | boolean | readonly number[];

/** One operation on its way to a script. */
export interface Operation {
  readonly name: string;
  readonly tag: string;
  readonly args: Readonly<Record<string, Argument>>;
}

/** Both directions travel as msgpack: one blob a run. Integers up to 2^53 - 1 are exact in it. */
const packr = new Packr({ useRecords: false, int64AsType: 'number' });

export function pack(value: unknown): Buffer {
  return packr.pack(value);
}

export function unpack(blob: Buffer): unknown {
  return packr.unpack(blob);
}

export const COUNTERS = [
  'opening',
  'minted',
  'overdraftIssued',
  'available',
  'reserved',
  'spent',
  'retiredForEmergency',
  'overdraftRepaid',
  'carriedOut',
  'lapsed',
] as const satisfies readonly (keyof BookCounters)[];

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

function budgetArgs(budget: BudgetRef | undefined): Record<string, Argument> {
  return {
    generation: budget?.generation ?? 0,
    content: budget?.content ?? '',
    numerator: budget?.factor.numerator ?? 1,
    denominator: budget?.factor.denominator ?? 1,
    terms: budget === undefined ? '' : encodeTerms(budget.terms),
  };
}

/** `admit` where the request names an operation, else `reserve`. */
export function encodeReserve(request: ReserveRequest | AdmitRequest): Operation {
  const { subject, route, key, attempt } = request;
  const idOf = (n: number): string => receiptId(subject, route, key, n);
  return {
    name: 'operation' in request ? 'admit' : 'reserve',
    tag: lineTag(subject, route),
    args: {
      id: idOf(attempt),
      digest: request.digest,
      units: request.units,
      attempt,
      previous: attempt > 1 ? idOf(attempt - 1) : '',
      first: attempt > 1 ? idOf(1) : '',
      ...budgetArgs(request.budget),
      subject,
      route,
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
    args: {
      id,
      operation: evidence.operation,
      amounts,
      grade,
      reservedAt: metadata?.reservedAt ?? -1,
      unreserved: metadata?.unreserved ?? false,
      ...budgetArgs(metadata?.budget),
      subject: metadata?.subject ?? '',
      route: metadata?.route ?? '',
      shadow: metadata?.shadow ?? false,
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

function counters(list: Reply, at: number): BookCounters {
  const result = {} as BookCounters;
  COUNTERS.forEach((name, i) => {
    result[name] = list[at + i] as number;
  });
  return result;
}

const NO_LINE: LineView = { seq: 0, now: 0, generation: 0, epoch: 0, frozenUntil: 0, limits: [] };

export function decodeView(list: Reply): LineView {
  if (list.length === 0) return NO_LINE;
  const [seq, now, generation, epoch, frozenUntil] = list as number[];
  const limits: LimitView[] = [];
  for (let at = 5; at < list.length; at += 14) {
    const [name, burst, debt, resetMs] = list.slice(at, at + 4) as [string, number, number, number];
    limits.push({ name, burst, debt, resetMs, counters: counters(list, at + 4) });
  }
  return {
    seq: seq!,
    now: now!,
    generation: generation!,
    epoch: epoch!,
    frozenUntil: frozenUntil!,
    limits,
  };
}

export function decodeReceipt(tag: string, list: Reply): ReceiptDump {
  const field = list[0] as string;
  return {
    reservation: reservationId(tag, field.slice(2, 24)),
    own: field.startsWith('u:'),
    subject: list[1] as string,
    route: list[2] as string,
    shadow: list[3] === 'shadow',
    generation: list[4] as number,
    epoch: list[5] as number,
    digest: list[6] as string,
    units: list[7] as number[],
    actual: list[8] === '' ? undefined : (list[8] as number[]),
    least: list[9] === '' ? undefined : (list[9] as number[]),
    operation: list[10] as string,
    reservedAt: list[11] as number,
    expiresAt: list[12] as number,
    state: list[13] as State,
    breach: list[14] === 1,
    unstarted: list[15] === 1,
    evidence: list[16] as Grade | '',
    attempt: list[17] as number,
    latest: list[18] as number,
    seq: list[19] as number,
    keepUntil: list[20] as number,
  };
}

function receiptOrNone(tag: string, list: Reply): Receipt | undefined {
  if (list.length === 0) return undefined;
  const { own: _own, keepUntil: _keepUntil, ...receipt } = decodeReceipt(tag, list);
  return receipt;
}

/** The script could not carry the operation out; nothing of it happened. */
export class ScriptFailure extends Error {
  override readonly name = 'ScriptFailure';
}

export function decodeOutcome(tag: string, reply: Reply): Outcome {
  switch (reply[0]) {
    case 'moved': {
      // A freeze or a credit has no receipt; its callers look at the kind alone.
      const receipt = receiptOrNone(tag, reply[1] as Reply) as Receipt;
      return {
        kind: 'moved',
        receipt,
        line: decodeView(reply[2] as Reply),
        freezeRoute: reply[3] === 1,
      };
    }
    case 'same':
      return {
        kind: 'same',
        receipt: receiptOrNone(tag, reply[1] as Reply),
        line: decodeView(reply[2] as Reply),
      };
    case 'limited':
      return {
        kind: 'limited',
        by: reply[1] as LimitedBy,
        limit: reply[2] as string,
        waitMs: reply[3] === -1 ? undefined : (reply[3] as number),
        needed: reply[4] as number,
        line: decodeView(reply[5] as Reply),
      };
    case 'refused':
      return {
        kind: 'refused',
        why: reply[1] as Refusal,
        detail: reply[2] as string,
        receipt: receiptOrNone(tag, reply[3] as Reply),
        line: decodeView(reply[4] as Reply),
      };
    default:
      throw new ScriptFailure(String(reply[1]));
  }
}

export function decodeSweep(reply: Reply): SweepReply {
  if (reply[0] !== 'swept') throw new ScriptFailure(String(reply[1]));
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
