/** `earmark reservation show | list`. */
import { parseArgs } from 'node:util';
import { parseReservation } from '../core/ids.js';
import type { Conflict } from '../ledger/ledger.js';
import { STATES } from '../ledger/stored.js';
import type { Receipt, ReceiptDump } from '../ledger/types.js';
import type { LedgerContext } from './context.js';
import { type CommandResult, failed, wrongUsage } from './policy.js';
import { findReceipts, receiptTable } from './receipts.js';
import { printable } from './table.js';

const USAGE =
  'usage: earmark reservation show ID | list [--state STATE] [--route ROUTE] [--subject SUBJECT]';

export async function reservationCommand(
  args: readonly string[],
  context: LedgerContext,
): Promise<CommandResult & { readonly table?: string }> {
  const [what, id, ...rest] = args;
  if (what === 'list') return list(args.slice(1), context);
  if (what !== 'show' || id === undefined || rest.length > 0) return wrongUsage(USAGE);
  const parsed = parseReservation(id);
  if (parsed === undefined) {
    return wrongUsage(`${JSON.stringify(id)} is no ID of a reservation (rl-…)\n${USAGE}`);
  }
  const ledger = await context.ledger();
  const found = await ledger.get(id);
  const own = (await ledger.dump(parsed.tag))
    .flatMap(({ receipts }) => receipts)
    .filter((receipt) => receipt.own && receipt.reservation === id);
  if (found === undefined && own.length === 0) {
    return failed(`no receipt ${id} is kept: it was never made, or is folded by now`);
  }
  const conflicts = await ledger.conflicts(id);
  const lines = [...own.map(describeOwn), ...conflicts.map(describeConflict)];
  const receipt = found === undefined ? [] : [describe(found.receipt)];
  const json = { ...found?.receipt, line: found?.line ?? null, own, conflicts };
  return { text: [...receipt, ...lines].join('\n'), json, code: 0 };
}

async function list(args: readonly string[], context: LedgerContext) {
  const text = { type: 'string' } as const;
  let values: { state?: string; route?: string; subject?: string };
  try {
    const options = { state: text, route: text, subject: text };
    ({ values } = parseArgs({ args: [...args], options }));
  } catch (error) {
    return wrongUsage(`${(error as Error).message}\n${USAGE}`);
  }
  const { state, route, subject } = values;
  if (state !== undefined && !STATES.some((known) => known === state)) {
    return wrongUsage(`--state ${state} is none: there are ${STATES.join(', ')}`);
  }
  const { receipts, more } = await findReceipts(await context.ledger(), { state, route, subject });
  const note = more
    ? `the first ${receipts.length} that were found, and there are more: narrow it by --state, --route or --subject`
    : `${receipts.length === 1 ? '1 receipt' : `${receipts.length} receipts`}`;
  const json = { ok: true, more, receipts };
  return { table: receiptTable(receipts), text: note, json, code: 0 };
}

/** A use that no start won: it has a receipt of its own, beside the reservation's. */
function describeOwn({ operation, state, actual, least, evidence }: ReceiptDump): string {
  const amount = actual?.join(', ') ?? `at least ${least?.join(', ') || 0}`;
  return `${'its own'.padEnd(12)} ${state} ${amount} ${evidence} by ${printable(operation)}`;
}

/** Evidence that contradicted the receipt: refused, and for the operator to judge. */
function describeConflict({ operation, actual, grade, at }: Conflict): string {
  const said = `${actual.join(', ')} ${grade} by ${printable(operation)}`;
  return `${'refused'.padEnd(12)} ${said}, ${new Date(at).toISOString()}`;
}

function describe(receipt: Receipt): string {
  const time = (ms: number): string => new Date(ms).toISOString();
  const rows: (readonly [string, string])[] = [
    ['reservation', receipt.reservation],
    ['state', receipt.state],
    ['subject', printable(receipt.subject)],
    ['route', printable(receipt.route)],
    [
      'book',
      `generation ${receipt.generation}, epoch ${time(receipt.epoch)}${receipt.shadow ? ', shadow' : ''}`,
    ],
    ['reserved', receipt.units.join(', ')],
    ['used', receipt.actual?.join(', ') ?? ''],
    ['at least', receipt.least?.join(', ') ?? ''],
    ['evidence', receipt.evidence],
    ['operation', printable(receipt.operation)],
    ['reserved at', time(receipt.reservedAt)],
    ['expires at', receipt.state === 'RESERVED' ? time(receipt.expiresAt) : ''],
    ['attempt', `${receipt.attempt} of ${receipt.latest}`],
    [
      'marks',
      [receipt.breach && 'breach', receipt.unstarted && 'unstarted'].filter(Boolean).join(', '),
    ],
  ];
  return rows
    .filter(([, value]) => value !== '')
    .map(([name, value]) => `${name.padEnd(12)} ${value}`)
    .join('\n');
}
