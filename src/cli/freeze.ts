/** `earmark freeze | unfreeze`: stops admissions of a line or of a whole route, and lets them go on. */
import { parseArgs } from 'node:util';
import { parseDuration } from '../policy/duration.js';
import type { LedgerContext } from './context.js';
import { type CommandResult, failed, wrongUsage } from './policy.js';
import { unknownRoute } from './routes.js';

const USAGE = {
  freeze: 'usage: earmark freeze --route ROUTE [--subject SUBJECT [--shadow]] [--for 15m]',
  unfreeze: 'usage: earmark unfreeze --route ROUTE [--subject SUBJECT [--shadow]]',
};

interface Wanted {
  readonly route: string;
  /** Undefined: every line of the route. */
  readonly subject: string | undefined;
  readonly shadow: boolean;
  /** Undefined: until it is ended. */
  readonly forMs: number | undefined;
}

function read(what: 'freeze' | 'unfreeze', args: readonly string[]): Wanted | CommandResult {
  const text = { type: 'string' } as const;
  const options = { route: text, subject: text, for: text, shadow: { type: 'boolean' } } as const;
  let values: { route?: string; subject?: string; shadow?: boolean; for?: string };
  try {
    ({ values } = parseArgs({ args: [...args], options }));
  } catch (error) {
    return wrongUsage(`${(error as Error).message}\n${USAGE[what]}`);
  }
  const { route, subject, shadow = false } = values;
  const isVague = shadow && subject === undefined;
  const isOdd = what === 'unfreeze' && values.for !== undefined;
  if (route === undefined || isVague || isOdd) return wrongUsage(USAGE[what]);
  const forMs = values.for === undefined ? undefined : parseDuration(values.for);
  if (values.for !== undefined && !forMs) {
    return wrongUsage(`--for ${values.for} is no length of time: write for instance 15m`);
  }
  return { route, subject, shadow, forMs };
}

export async function freezeCommand(
  args: readonly string[],
  context: LedgerContext,
): Promise<CommandResult> {
  const wanted = read('freeze', args);
  if ('code' in wanted) return wanted;
  const { route, subject, shadow, forMs } = wanted;
  const unknown = await unknownRoute(route, context);
  if (unknown !== undefined) return unknown;
  const until = forMs === undefined ? -1 : (await context.now()) + forMs;
  const moved =
    subject === undefined
      ? await context.documents().freezeRoute(route, until)
      : await onLine(context, subject, route, (ledger, line) => ledger.freeze(line, shadow, until));
  if (moved === undefined) return noSuchLine(route, subject);
  const end = until === -1 ? 'until earmark unfreeze' : `until ${new Date(until).toISOString()}`;
  const text = moved ? `${nameOf(wanted)} is frozen ${end}` : `${nameOf(wanted)} was frozen before`;
  return { text, json: { ok: true, moved, until }, code: 0 };
}

export async function unfreezeCommand(
  args: readonly string[],
  context: LedgerContext,
): Promise<CommandResult> {
  const wanted = read('unfreeze', args);
  if ('code' in wanted) return wanted;
  const { route, subject, shadow } = wanted;
  const unknown = await unknownRoute(route, context);
  if (unknown !== undefined) return unknown;
  if (subject === undefined) return unfreezeRoute(route, context);
  const moved = await onLine(context, subject, route, (ledger, line) =>
    ledger.unfreeze(line, shadow),
  );
  if (moved === undefined) return noSuchLine(route, subject);
  const text = moved ? `${nameOf(wanted)} goes on` : `${nameOf(wanted)} was not frozen`;
  return { text, json: { ok: true, moved, lines: moved ? 1 : 0 }, code: 0 };
}

/** With the route, the lines whose breach had frozen it. */
async function unfreezeRoute(route: string, context: LedgerContext): Promise<CommandResult> {
  const ledger = await context.ledger();
  const { moved, tags } = await context.documents().unfreezeRoute(route);
  let lines = 0;
  for (const tag of tags) {
    for (const twin of await ledger.dump(tag)) {
      if (twin.frozenUntil !== 0 && (await ledger.unfreeze(twin, twin.shadow))) lines++;
    }
  }
  const of =
    lines > 0
      ? `, with ${lines === 1 ? '1 line' : `${lines} lines`} whose breach had frozen it`
      : '';
  const text = moved ? `route ${route} goes on${of}` : `route ${route} was not frozen`;
  return { text, json: { ok: true, moved, lines }, code: 0 };
}

type Line = { readonly subject: string; readonly route: string };

/** Undefined: there is no such line. */
async function onLine(
  context: LedgerContext,
  subject: string,
  route: string,
  act: (ledger: Awaited<ReturnType<LedgerContext['ledger']>>, line: Line) => Promise<boolean>,
): Promise<boolean | undefined> {
  try {
    return await act(await context.ledger(), { subject, route });
  } catch (error) {
    if (error instanceof Error && error.message.startsWith('no such line')) return undefined;
    throw error;
  }
}

function noSuchLine(route: string, subject: string | undefined): CommandResult {
  return failed(
    `subject ${JSON.stringify(subject)} has no line on route ${route} yet: earmark audit shows all`,
  );
}

function nameOf({ route, subject, shadow }: Wanted): string {
  if (subject === undefined) return `route ${route}`;
  return `subject ${JSON.stringify(subject)} on route ${route}${shadow ? ' (shadow)' : ''}`;
}
