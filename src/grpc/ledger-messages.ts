/** Receipts as messages of earmark.v1. */
import type { LimitView, LineView, Receipt, ReserveRequest } from '../ledger/types.js';
import { epochText } from '../settle/metadata.js';

/** A message of earmark.v1.Reservation, as proto-loader takes it. */
export type Reply = Readonly<Record<string, unknown>>;

/** `main`: which limit the amounts are of. */
export function reservationMessage(receipt: Receipt, line: LineView, main: number): Reply {
  const at = (amounts: readonly number[] | undefined): number | undefined => amounts?.[main];
  return {
    reservation: receipt.reservation,
    subject: receipt.subject,
    route: receipt.route,
    policyGeneration: receipt.generation,
    accountingEpoch: epochText(receipt.epoch),
    requestDigest: digestText(receipt.digest),
    reservedUnits: at(receipt.units) ?? 0,
    ...given('actualUnits', at(receipt.actual)),
    operation: receipt.operation,
    expiresAt: timestamp(receipt.expiresAt),
    state: receipt.state,
    breach: receipt.breach,
    evidence: receipt.evidence,
    unstarted: receipt.unstarted,
    ...given('leastUnits', at(receipt.least)),
    attempt: receipt.attempt,
    ...lineFields(line),
  };
}

/** Shadow never refuses: what it would have refused is answered as asked for, without a reservation. */
export function wouldBeRefused(request: ReserveRequest, line: LineView): Reply {
  return {
    subject: request.subject,
    route: request.route,
    policyGeneration: request.budget.generation,
    accountingEpoch: epochText(line.epoch),
    requestDigest: digestText(request.digest),
    state: 'REQUESTED',
    attempt: request.attempt,
    ...lineFields(line),
  };
}

function lineFields(line: LineView): Reply {
  const tightest = tightestOf(line.limits);
  return {
    seq: line.seq,
    lineAvailable: tightest?.counters.available ?? 0,
    lineDebt: tightest?.debt ?? 0,
  };
}

/** The one with the largest debt; without any, the one with the smallest share of its burst left. */
function tightestOf(limits: readonly LimitView[]): LimitView | undefined {
  const left = ({ counters, burst, debt }: LimitView): number =>
    debt > 0 ? -debt : counters.available / burst;
  return limits.reduce<LimitView | undefined>(
    (least, limit) => (least === undefined || left(limit) < left(least) ? limit : least),
    undefined,
  );
}

function given(field: string, value: number | undefined): Reply {
  return value === undefined ? {} : { [field]: value };
}

function digestText(digest: string): string {
  return `sha256:${Buffer.from(digest, 'base64url').toString('hex')}`;
}

function timestamp(ms: number): { seconds: number; nanos: number } {
  return { seconds: Math.floor(ms / 1000), nanos: (ms % 1000) * 1_000_000 };
}
