/** `earmark rollout apply | show`. */
import { parseRollout } from '../policy/rollout.js';
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
  const outcome = await (await documentsOf(context)).applyRollout(rollout);
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
  const document: unknown = JSON.parse(rollout.canonical);
  const json = { ok: true, generation: rollout.generation, rollout: document };
  return { text: JSON.stringify(document, null, 2), json, code: 0 };
}
