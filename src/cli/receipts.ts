/** Receipts of a whole ledger, or of one line, as `earmark reservation list` asks for them. */
import { lineTag } from '../core/ids.js';
import type { Ledger } from '../ledger/ledger.js';
import type { ReceiptDump } from '../ledger/types.js';
import { textTable } from './table.js';

/** More than anybody reads: narrower questions get whole answers. */
const LISTED_MAX = 1000;

export interface Wanted {
  readonly state: string | undefined;
  readonly route: string | undefined;
  readonly subject: string | undefined;
}

export interface Found {
  /** Oldest first, receipts of their own among them. */
  readonly receipts: readonly ReceiptDump[];
  /** There are more than these. */
  readonly more: boolean;
}

export async function findReceipts(ledger: Ledger, wanted: Wanted): Promise<Found> {
  const receipts: ReceiptDump[] = [];
  const seen = new Set<string>();
  const matches = (receipt: ReceiptDump): boolean =>
    (wanted.state === undefined || receipt.state === wanted.state) &&
    (wanted.route === undefined || receipt.route === wanted.route) &&
    (wanted.subject === undefined || receipt.subject === wanted.subject);
  for await (const tags of pagesOf(ledger, wanted)) {
    for (const tag of tags) {
      // A scan may show a line twice.
      if (seen.has(tag)) continue;
      seen.add(tag);
      for (const line of await ledger.dump(tag)) {
        for (const receipt of line.receipts) if (matches(receipt)) receipts.push(receipt);
      }
      if (receipts.length > LISTED_MAX) break;
    }
    if (receipts.length > LISTED_MAX) break;
  }
  const more = receipts.length > LISTED_MAX;
  const listed = receipts.slice(0, LISTED_MAX).sort((a, b) => a.reservedAt - b.reservedAt);
  return { receipts: listed, more };
}

/** Subject and route together name one line. */
async function* pagesOf(ledger: Ledger, { subject, route }: Wanted) {
  if (subject !== undefined && route !== undefined) yield [lineTag(subject, route)];
  else yield* ledger.lines();
}

export function receiptTable(receipts: readonly ReceiptDump[]): string {
  const head = ['reservation', 'state', 'route', 'subject', 'reserved', 'used', 'operation', 'at'];
  const rows = receipts.map((receipt) => [
    receipt.reservation,
    `${receipt.state}${receipt.own ? ' (its own)' : ''}${receipt.shadow ? ' (shadow)' : ''}`,
    receipt.route,
    receipt.subject,
    receipt.units.join(', '),
    receipt.actual?.join(', ') ?? '',
    receipt.operation,
    new Date(receipt.reservedAt).toISOString(),
  ]);
  return textTable([...head], rows);
}
