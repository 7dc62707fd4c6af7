/** `earmark rollout apply | show`. */
import { applyRollout } from '../policy/apply.js';
import { parseRollout } from '../policy/rollout.js';
import type { RouteRollout } from '../policy/types.js';
import {
  type CommandContext,
  type CommandResult,
  documentsOf,
  failed,
  orRefused,
  readDocument,
  withProblems,
  wrongUsage,
} from './policy.js';
import { printable } from './table.js';

const USAGE = 'usage: earmark rollout apply FILE | show';

export async function rolloutCommand(
  args: readonly string[],
  context: CommandContext,
): Promise<CommandResult> {
  const [what, operand, ...rest] = args;
  if (what === 'show' && operand === undefined) return show(context);
  if (what === 'apply' && operand !== undefined && rest.length === 0) {
    return orRefused(() => apply(operand, context));
  }
  return wrongUsage(USAGE);
}

async function apply(file: string, context: CommandContext): Promise<CommandResult> {
  const text = await readDocument(file);
  if (typeof text !== 'string') return text;
  const { rollout, problems } = parseRollout(text, file);
  if (rollout === undefined) return withProblems(problems);
  const { generation } = rollout;
  const outcome = await applyRollout(await documentsOf(context), rollout);
  const json = { ok: true, generation, moved: outcome === 'moved' };
  return {
    text:
      outcome === 'moved'
        ? `generation ${generation} is in force; gateways take the rollout up within a second`
        : `this rollout of generation ${generation} was in force before`,
    json,
    code: 0,
  };
}

async function show(context: CommandContext): Promise<CommandResult> {
  const { rollout, newest } = await (await documentsOf(context)).state();
  if (rollout === undefined) {
    if (newest === 0) return failed('neither a policy is published nor a rollout applied');
    const text = `no rollout: generation ${newest}, the newest, runs in shadow everywhere`;
    return { text, json: { ok: true, generation: newest, rollout: null }, code: 0 };
  }
  const document = JSON.parse(rollout.canonical) as StoredRollout;
  const json = { ok: true, generation: rollout.generation, rollout: document };
  const rules = [
    ...Object.entries(document.routes),
    ['every other route', document.default] as const,
  ];
  const lines = rules.map(([route, rule]) => `${printable(route)}: ${describe(rule)}`);
  return { text: [`generation ${rollout.generation}`, ...lines].join('\n'), json, code: 0 };
}

interface StoredRollout {
  readonly default: RouteRollout;
  readonly routes: Readonly<Record<string, RouteRollout>>;
}

/** "enforce, 25 % by subject, only acme". */
function describe({ mode, percent, by, only, except }: RouteRollout): string {
  const parts: string[] = [mode];
  if (percent < 100) parts.push(`${percent} % by ${by}`);
  if (only.length > 0) parts.push(`only ${only.map(printable).join(' ')}`);
  if (except.length > 0) parts.push(`except ${except.map(printable).join(' ')}`);
  return parts.join(', ');
}
