/** `earmark reservation show ID`. */
import { parseReservation } from '../core/ids.js';
import type { Conflict } from '../ledger/ledger.js';
import type { Receipt } from '../ledger/types.js';
import type { LedgerContext } from './context.js';
import { type CommandResult, failed, wrongUsage } from './policy.js';
import { printable } from './table.js';

const USAGE = 'usage: earmark reservation show ID';

export async function reservationCommand(
  args: readonly string[],
  context: LedgerContext,
): Promise<CommandResult> {
  const [what, id, ...rest] = args;
  if (what !== 'show' || id === undefined || rest.length > 0) return wrongUsage(USAGE);
  if (parseReservation(id) === undefined) {
    return wrongUsage(`${JSON.stringify(id)} is no ID of a reservation (rl-…)\n${USAGE}`);
  }
  const ledger = await context.ledger();
  const found = await ledger.get(id);
  if (found === undefined) {
    return failed(`no receipt ${id} is kept: it was never made, or is folded by now`);
  }
  const { receipt, line } = found;
  const conflicts = await ledger.conflicts(id);
  const text = [describe(receipt), ...conflicts.map(describeConflict)].join('\n');
  return { text, json: { ...receipt, line, conflicts }, code: 0 };
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
