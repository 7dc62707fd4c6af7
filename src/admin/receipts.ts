/** Receipts that somebody reports: by earmark.v1.Ledger, over HTTP, by an operator. */
import { reservationField, textField, wholeField } from '../core/fields.js';
import { parseReservation } from '../core/ids.js';
import { OPERATION_BYTES_MAX, UNITS_MAX } from '../core/limits.js';
import type { LedgerApi } from '../ledger/api.js';
import type { Grade, Outcome } from '../ledger/types.js';
import type { Meter } from '../telemetry/meter.js';

export interface ReceiptDeps {
  readonly ledger: Pick<LedgerApi, 'get' | 'settle'>;
  /** A breach under `onBreach: freezeRoute` stops every line of the route. */
  freezeRoute(route: string, tag: string, until: number): Promise<void>;
  readonly meter: Meter;
}

/** What a use is reported with; `unitsField` is the name its sender knows. */
export interface Report {
  readonly reservation: string;
  readonly operation: string;
  readonly units: number;
}

/** Throws a FieldError at the first field that cannot be right. */
export function readReport(fields: Readonly<Record<string, unknown>>, unitsField: string): Report {
  return {
    reservation: reservationField('reservation', fields.reservation),
    operation: textField('operation', fields.operation, OPERATION_BYTES_MAX),
    units: wholeField(unitsField, fields[unitsField], 0, UNITS_MAX),
  };
}

/** Settles what was reported, and does what a breach demands. */
export async function settleReport(
  deps: ReceiptDeps,
  report: Report,
  grade: Grade = 'reported',
): Promise<Outcome> {
  const { reservation, operation, units } = report;
  const settled = { reservation, operation, actual: [units], grade };
  // Both are on their way at once; the first is only for the histogram.
  const [before, outcome] = await Promise.all([
    deps.ledger.get(reservation).catch(() => undefined),
    deps.ledger.settle(settled),
  ]);
  if ('freezeRoute' in outcome && outcome.freezeRoute) {
    const { route } = outcome.receipt!;
    // It tries until it is done, which whoever reports need not wait for.
    deps
      .freezeRoute(route, parseReservation(reservation)!.tag, outcome.line.frozenUntil)
      .catch(() => undefined);
  }
  if (outcome.kind !== 'moved') return outcome;
  const { receipt, line } = outcome;
  if (receipt.breach) deps.meter.count('earmark_breaches_total', { route: receipt.route });
  if (before?.receipt.state === 'USAGE_UNKNOWN' && before.receipt.operation === operation) {
    const seconds = (line.now - receipt.reservedAt) / 1000;
    deps.meter.observe('earmark_unknown_resolved_seconds', { route: receipt.route }, seconds);
  }
  return outcome;
}
