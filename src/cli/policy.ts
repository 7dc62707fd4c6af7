/** `earmark policy validate | publish | show | revert`. */
import { readFile } from 'node:fs/promises';
import { DocumentRefused, Documents, type RedisClient } from '../ledger/documents.js';
import { checkSchema } from '../ledger/schema.js';
import { canonicalJson, contentOf, type Json } from '../policy/canonical.js';
import { formatProblem, loadPolicy, parsePolicy } from '../policy/parse.js';
import type { Problem } from '../policy/types.js';

/** What a command is given: the way to the ledger, opened when it is asked for. */
export interface CommandContext {
  redis(): RedisClient;
  readonly prefix: string;
}

/** What a command says; errors carry code 1, wrong usage 2. */
export interface CommandResult {
  readonly text: string;
  readonly json: unknown;
  readonly code: number;
}

const USAGE =
  'usage: earmark policy validate FILE | publish FILE | show [GENERATION] | revert GENERATION';

export function failed(text: string, json: object = {}): CommandResult {
  return { text, json: { ok: false, error: text, ...json }, code: 1 };
}

export function wrongUsage(text: string): CommandResult {
  return { text, json: { ok: false, error: text }, code: 2 };
}

/** Everything that is wrong with a document, one a line. */
export function withProblems(problems: readonly Problem[]): CommandResult {
  return failed(problems.map(formatProblem).join('\n'), { problems });
}

/** The text, or the failure that says why there is none. */
export async function readDocument(file: string): Promise<string | CommandResult> {
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    return failed(`${file} can't be read: ${(error as Error).message}`);
  }
}

/** A refusal of the ledger is an answer; anything else is for the caller of commands. */
export async function orRefused(ask: () => Promise<CommandResult>): Promise<CommandResult> {
  try {
    return await ask();
  } catch (error) {
    if (error instanceof DocumentRefused) return failed(error.message, { why: error.why });
    throw error;
  }
}

export async function policyCommand(
  args: readonly string[],
  context: CommandContext,
): Promise<CommandResult> {
  const [what, operand, ...rest] = args;
  if (rest.length > 0) return wrongUsage(USAGE);
  if (what === 'show') return orRefused(() => show(operand, context));
  if (operand === undefined) return wrongUsage(USAGE);
  if (what === 'validate') return validate(operand);
  if (what === 'revert') return orRefused(() => revert(operand, context));
  if (what === 'publish') return orRefused(() => publish(operand, context));
  return wrongUsage(USAGE);
}

async function validate(file: string): Promise<CommandResult> {
  const text = await readDocument(file);
  if (typeof text !== 'string') return text;
  const { policy, problems, warnings } = parsePolicy(text, file);
  if (policy === undefined) return withProblems(problems);
  const { generation, content, budgets } = policy;
  const routes = budgets.map((budget) => budget.route);
  const lines = warnings.map((warning) => `warning: ${formatProblem(warning)}`);
  lines.push(
    `${file} is valid: generation ${generation}, ${routes.join(', ')}, content ${content}`,
  );
  return {
    text: lines.join('\n'),
    json: { ok: true, generation, content, routes, warnings },
    code: 0,
  };
}

async function publish(file: string, context: CommandContext): Promise<CommandResult> {
  const text = await readDocument(file);
  if (typeof text !== 'string') return text;
  const { policy, problems, warnings } = parsePolicy(text, file);
  if (policy === undefined) return withProblems(problems);
  const { generation, content } = policy;
  const outcome = await (await documentsOf(context)).publish(policy);
  const lines = warnings.map((warning) => `warning: ${formatProblem(warning)}`);
  lines.push(
    outcome === 'moved'
      ? `published generation ${generation}, content ${content}`
      : `generation ${generation} was published before with this content ${content}`,
  );
  const json = { ok: true, generation, content, moved: outcome === 'moved', warnings };
  return { text: lines.join('\n'), json, code: 0 };
}

/** Lines never move back: what an older generation says is published again, as the next. */
async function revert(operand: string, context: CommandContext): Promise<CommandResult> {
  const asked = Number(operand);
  if (!Number.isSafeInteger(asked) || asked < 1) {
    return wrongUsage(`GENERATION must be a whole number from 1, not ${operand}`);
  }
  const documents = await documentsOf(context);
  const { newest } = await documents.state();
  const stored = await documents.policy(asked);
  if (stored === undefined) {
    const there = newest === 0 ? 'nor is any' : `the newest is ${newest}`;
    return failed(`generation ${asked} is not published; ${there}`);
  }
  const generation = newest + 1;
  const document = JSON.parse(stored.canonical) as { readonly [key: string]: Json };
  const canonical = canonicalJson({ ...document, generation });
  const content = contentOf(canonical);
  // Published long ago, perhaps by another version: what this one can't read is not put before its gateways.
  loadPolicy(canonical, content);
  await documents.publish({ generation, canonical, content });
  return {
    text: [
      `published generation ${generation} with what generation ${asked} says, content ${content}`,
      `put it in force with earmark rollout set --generation ${generation}`,
    ].join('\n'),
    json: { ok: true, generation, from: asked, content },
    code: 0,
  };
}

async function show(operand: string | undefined, context: CommandContext): Promise<CommandResult> {
  const asked = operand === undefined ? 0 : Number(operand);
  if (!Number.isSafeInteger(asked) || asked < 0 || operand === '0') {
    return wrongUsage(`GENERATION must be a whole number from 1, not ${operand}`);
  }
  const documents = await documentsOf(context);
  const { newest, rollout } = await documents.state();
  const inForce = rollout?.generation ?? newest;
  if (newest === 0) return failed('no policy is published: earmark policy publish FILE');
  const generation = asked || inForce;
  const stored = await documents.policy(generation);
  if (stored === undefined) {
    return failed(`generation ${generation} is not published; the newest is ${newest}`);
  }
  const policy: unknown = JSON.parse(stored.canonical);
  const head = `generation ${generation}${generation === inForce ? ', in force' : ''}, content ${stored.content}`;
  const json = { ok: true, generation, inForce, newest, content: stored.content, policy };
  return { text: `${head}\n${JSON.stringify(policy, null, 2)}`, json, code: 0 };
}

export async function documentsOf(context: CommandContext): Promise<Documents> {
  await checkSchema(context.redis(), context.prefix);
  return new Documents(context.redis(), context.prefix);
}
