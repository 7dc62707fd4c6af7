/** `earmark receipt RESERVATION --units N [--operation OP]`: an operator says what was used. */
import { parseArgs } from 'node:util';
import { readReport, settleReport } from '../admin/receipts.js';
import { FieldError } from '../core/fields.js';
import { refusalMessage } from '../ledger/refusals.js';
import type { Outcome } from '../ledger/types.js';
import type { LedgerContext } from './context.js';
import { type CommandResult, failed, wrongUsage } from './policy.js';

const USAGE = 'usage: earmark receipt RESERVATION --units N [--operation OPERATION]';

export async function receiptCommand(
  args: readonly string[],
  context: LedgerContext,
): Promise<CommandResult> {
  const text = { type: 'string' } as const;
  let reservation: string | undefined;
  let values: { units?: string; operation?: string };
  try {
    const options = { units: text, operation: text };
    const parsed = parseArgs({ args: [...args], options, allowPositionals: true });
    values = parsed.values;
    [reservation] = parsed.positionals.length === 1 ? parsed.positionals : [];
  } catch (error) {
    return wrongUsage(`${(error as Error).message}\n${USAGE}`);
  }
  if (reservation === undefined || values.units === undefined) return wrongUsage(USAGE);
  try {
    // Before the ledger is asked for anything.
    readReport({ reservation, operation: values.operation ?? 'any', units: values.units }, 'units');
  } catch (error) {
    if (error instanceof FieldError) return wrongUsage(`${error.message}\n${USAGE}`);
    throw error;
  }
  const operation = values.operation ?? (await boundTo(reservation, context));
  if (typeof operation !== 'string') return operation;
  return book(readReport({ reservation, operation, units: values.units }, 'units'), context);
}

async function boundTo(
  reservation: string,
  context: LedgerContext,
): Promise<string | CommandResult> {
  const ledger = await context.ledger();
  const found = await ledger.get(reservation);
  if (found === undefined) return failed(refusalMessage('not-found', ''));
  const { operation } = found.receipt;
  if (operation !== '') return operation;
  return failed(
    `no operation is bound to ${reservation}: name the one that used it by --operation`,
  );
}

async function book(
  report: ReturnType<typeof readReport>,
  context: LedgerContext,
): Promise<CommandResult> {
  const ledger = await context.ledger();
  let freezing: Promise<unknown> = Promise.resolve();
  const freezeRoute = async (route: string, tag: string, until: number): Promise<void> => {
    freezing = context.documents().freezeRoute(route, until, tag);
    await freezing;
  };
  const meter = { count() {}, observe() {} };
  const outcome = await settleReport({ ledger, freezeRoute, meter }, report, 'operator');
  await freezing;
  const { reservation, operation, units } = report;
  const told = { reservation, operation, units, grade: 'operator', outcome: outcome.kind };
  context.log().info(told, 'an operator reported what was used');
  return resultOf(outcome);
}

function resultOf(outcome: Outcome): CommandResult {
  if (outcome.kind === 'refused') {
    const { why, detail, receipt } = outcome;
    return failed(refusalMessage(why, detail), { why, receipt: receipt ?? null });
  }
  if (outcome.kind === 'limited') throw new Error('a settlement was limited');
  const { receipt } = outcome;
  const moved = outcome.kind === 'moved';
  const json = { ok: true, moved, receipt: receipt ?? null };
  if (receipt === undefined) return { text: 'there was nothing to book', json, code: 0 };
  const used = receipt.actual?.join(', ') ?? '0';
  const said = moved ? `${receipt.state}: ${used} used` : `was booked before: ${receipt.state}`;
  return { text: `${receipt.reservation} ${said}`, json, code: 0 };
}
