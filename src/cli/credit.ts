/** `earmark credit`: an operator's gift of units to one line; its oldest debt is repaid first. */
import { parseArgs } from 'node:util';
import { refusalMessage } from '../ledger/refusals.js';
import { LedgerUnavailable, type Outcome } from '../ledger/types.js';
import type { LedgerContext } from './context.js';
import { type CommandResult, failed, wrongUsage } from './policy.js';
import { unknownRoute } from './routes.js';

const USAGE =
  'usage: earmark credit --route ROUTE --subject SUBJECT --units N [--limit LIMIT] [--shadow]';

export async function creditCommand(
  args: readonly string[],
  context: LedgerContext,
): Promise<CommandResult> {
  const text = { type: 'string' } as const;
  const options = { route: text, subject: text, units: text, limit: text } as const;
  let given: { route?: string; subject?: string; units?: string; limit?: string; shadow?: boolean };
  try {
    const shadow = { type: 'boolean' } as const;
    ({ values: given } = parseArgs({ args: [...args], options: { ...options, shadow } }));
  } catch (error) {
    return wrongUsage(`${(error as Error).message}\n${USAGE}`);
  }
  const { route, subject, limit = '', shadow = false } = given;
  if (route === undefined || subject === undefined || given.units === undefined) {
    return wrongUsage(USAGE);
  }
  const units = Number(given.units);
  if (!/^[0-9]+$/.test(given.units) || !Number.isSafeInteger(units) || units === 0) {
    return wrongUsage(`--units must be a whole number from 1 to 2^53 - 1, not ${given.units}`);
  }
  const unknown = await unknownRoute(route, context);
  if (unknown !== undefined) return unknown;
  const ledger = await context.ledger();
  const told = { subject, route, limit, units, shadow };
  let outcome: Outcome;
  try {
    outcome = await ledger.credit({ subject, route }, shadow, limit, units);
  } catch (error) {
    if (!(error instanceof LedgerUnavailable)) throw error;
    // A gift has no name by which a repeat would be known.
    return failed(
      `${error.message}: it may have been given all the same; look at earmark audit before you give it again`,
    );
  }
  context.log().info({ ...told, outcome: outcome.kind }, 'an operator gave units');
  return resultOf(outcome, limit, units);
}

function resultOf(outcome: Outcome, name: string, units: number): CommandResult {
  if (outcome.kind === 'refused') {
    const names = outcome.line.limits.map((limit) => limit.name).filter((limit) => limit !== '');
    if (outcome.why === 'not-found' && names.length > 0) {
      return failed(`--limit must be one of ${names.join(', ')}`, { why: outcome.why });
    }
    if (outcome.why === 'not-found') return failed('there is no such line, or no such limit on it');
    return failed(refusalMessage(outcome.why, outcome.detail), { why: outcome.why });
  }
  const limit = outcome.line.limits.find((each) => each.name === name)!;
  const { available } = limit.counters;
  const { debt } = limit;
  return {
    text: `gave ${units}: ${available} available, debt ${debt}; what was above the burst has lapsed`,
    json: { ok: true, units, limit: name, available, debt },
    code: 0,
  };
}
