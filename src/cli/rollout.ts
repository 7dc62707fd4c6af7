/** `earmark rollout apply | show | set | undo`. */
import { parseArgs } from 'node:util';
import type { Documents } from '../ledger/documents.js';
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

const USAGE =
  'usage: earmark rollout apply FILE | show | set [--generation N] [--route ROUTE] [--mode MODE] [--percent N] | undo';

export async function rolloutCommand(
  args: readonly string[],
  context: CommandContext,
): Promise<CommandResult> {
  const [what, operand, ...rest] = args;
  if (what === 'set') return orRefused(() => set(args.slice(1), context));
  if (what === 'undo' && operand === undefined) return orRefused(() => undo(context));
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

/** What holds without a rollout: the newest generation, in shadow everywhere. */
const NOTHING: Document = { default: { mode: 'shadow' }, routes: {} };

interface Document {
  readonly default: object;
  readonly routes: Readonly<Record<string, object>>;
}

/** Changes one thing of the rollout in force: a rule, or the generation. */
async function set(args: readonly string[], context: CommandContext): Promise<CommandResult> {
  const text = { type: 'string' } as const;
  const options = { generation: text, route: text, mode: text, percent: text } as const;
  let given: { generation?: string; route?: string; mode?: string; percent?: string };
  try {
    ({ values: given } = parseArgs({ args: [...args], options }));
  } catch (error) {
    return wrongUsage(`${(error as Error).message}\n${USAGE}`);
  }
  const { route, mode, percent } = given;
  const hasRule = mode !== undefined || percent !== undefined;
  if ((!hasRule && given.generation === undefined) || (route !== undefined && !hasRule)) {
    return wrongUsage(USAGE);
  }
  const documents = await documentsOf(context);
  const { rollout, newest } = await documents.state();
  const before = rollout === undefined ? NOTHING : (JSON.parse(rollout.canonical) as Document);
  const generation = given.generation ?? rollout?.generation ?? newest;
  const old = { ...before.default, ...(route === undefined ? {} : before.routes[route]) };
  const rule = changed(old, mode, percent);
  const after = {
    schema: 'rollout.v1',
    generation: numberOr(generation),
    default: route === undefined && hasRule ? rule : before.default,
    routes: route === undefined ? before.routes : { ...before.routes, [route]: rule },
  };
  return change(after, rollout?.canonical ?? '', documents);
}

/** What is no number is for the reader of rollouts to refuse. */
function numberOr(text: string | number): string | number {
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

/** Only an enforced route has more to say than its mode. */
function changed(old: object, mode: string | undefined, percent: string | undefined): object {
  const rule = mode === undefined ? old : { ...old, mode };
  const part = percent === undefined ? rule : { ...rule, percent: numberOr(percent) };
  return mode === undefined || mode === 'enforce' || percent !== undefined ? part : { mode };
}

/** The rules before the last change, under the generation in force: lines never move back. */
async function undo(context: CommandContext): Promise<CommandResult> {
  const documents = await documentsOf(context);
  const { rollout } = await documents.state();
  if (rollout === undefined) return failed('no rollout was applied: there is nothing to undo');
  const { generation, canonical, previous } = rollout;
  const before = previous === '' ? NOTHING : (JSON.parse(previous) as Document);
  return change({ schema: 'rollout.v1', ...before, generation }, canonical, documents);
}

async function change(
  document: object,
  madeFrom: string,
  documents: Documents,
): Promise<CommandResult> {
  const { rollout, problems } = parseRollout(JSON.stringify(document), 'the rollout');
  if (rollout === undefined) return withProblems(problems);
  const { generation } = rollout;
  const outcome = await applyRollout(documents, rollout, madeFrom);
  const stored = JSON.parse(rollout.canonical) as StoredRollout;
  return {
    text: [`generation ${generation}`, ...linesOf(stored)].join('\n'),
    json: { ok: true, generation, moved: outcome === 'moved', rollout: stored },
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
  const text = [`generation ${rollout.generation}`, ...linesOf(document)].join('\n');
  return { text, json, code: 0 };
}

function linesOf(document: StoredRollout): string[] {
  const rules = [
    ...Object.entries(document.routes),
    ['every other route', document.default] as const,
  ];
  return rules.map(([route, rule]) => `${printable(route)}: ${describe(rule)}`);
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
