/**
 * CEL of the policy: match, subject, plan, key. Compiled once, checked at publish, bounded in cost; what a request
 * lacks reads as "" (docs/decisions/0001-cel.md).
 *
 * An expression is checked as it was written, then every access that could miss is rewritten to a function that
 * can't, and every regular expression to a linear one.
 */
import { type ASTNode, Environment, serialize } from '@marcbachmann/cel-js';
import { RE2JS } from 're2js';
import type { RequestFacts } from './types.js';

const NODES_MAX = 500;
const REQUEST = {
  method: 'string',
  path: 'string',
  host: 'string',
  headers: 'map<string, string>',
  model: 'string',
  stream: 'bool',
  maxTokens: 'int',
};
const NAMES =
  'there are request (method, path, host, headers, model, stream, maxTokens), context, source (principal), metadata and digest';
const LOOPS = new Set(['all', 'exists', 'exists_one', 'map', 'filter']);

/** An expression that may not be published, and why. */
export class CelError extends Error {
  override readonly name = 'CelError';
}

/** Throws whatever the library throws; the caller says which field of which budget it was. */
export type Expression<T> = (request: RequestFacts) => T;

function environment(maxAstNodes: number): Environment {
  return new Environment({ limits: { maxAstNodes } })
    .registerVariable('request', { schema: REQUEST })
    .registerVariable('context', 'map<string, string>')
    .registerVariable('source', { schema: { principal: 'string' } })
    .registerVariable('metadata', 'map<string, dyn>')
    .registerVariable('digest', 'string');
}

function lookUp(from: unknown, key: unknown): unknown {
  if (Array.isArray(from)) return typeof key === 'string' ? undefined : from[Number(key)];
  if (typeof from !== 'object' || from === null || typeof key !== 'string') return undefined;
  return Object.hasOwn(from, key) ? (from as Record<string, unknown>)[key] : undefined;
}

const patterns = new Map<string, RE2JS>();

const written = environment(NODES_MAX);
/** Knows the functions that rewriting puts in, which no document can name. */
const lenient = environment(4 * NODES_MAX)
  .registerFunction('earmarkText(dyn, dyn): string', (from, key) => lookUp(from, key) ?? '')
  .registerFunction('earmarkAny(dyn, dyn): dyn', (from, key) => lookUp(from, key) ?? '')
  .registerFunction('earmarkHas(dyn, dyn): bool', (from, key) => (lookUp(from, key) ?? '') !== '')
  .registerFunction('earmarkList(dyn): dyn', (value) => (value === '' ? [] : value))
  .registerFunction('earmarkMatches(dyn, string): bool', (text, pattern) => {
    if (typeof text !== 'string') throw new CelError('matches() needs text');
    return patterns.get(pattern)!.matcher(text).find();
  });

type Node = { op: string; args: unknown };
const isNode = (value: unknown): value is Node =>
  typeof value === 'object' && value !== null && 'op' in value && 'args' in value;
const call = (name: string, ...args: unknown[]): Node => ({ op: 'call', args: [name, args] });
const literal = (value: string): Node => ({ op: 'value', args: value });
const isName = (value: unknown, ...names: string[]): boolean =>
  isNode(value) && value.op === 'id' && names.includes(value.args as string);

/** `request.headers` and `context` hold text only; whatever else is looked into may hold anything. */
function holdsText(node: unknown): boolean {
  if (isName(node, 'context')) return true;
  return (
    isNode(node) && node.op === '.' && isFact(node) && (node.args as unknown[])[1] === 'headers'
  );
}

/** Always there, and checked by name: a field of `request` or `source`. */
function isFact(node: Node): boolean {
  return isName((node.args as unknown[])[0], 'request', 'source');
}

function accessed(node: Node): [from: unknown, key: unknown] {
  const [from, key] = node.args as [unknown, unknown];
  return [from, typeof key === 'string' ? literal(key) : key];
}

function linear(receiver: unknown, pattern: unknown): Node {
  if (!isNode(pattern) || pattern.op !== 'value' || typeof pattern.args !== 'string') {
    throw new CelError(
      'matches() needs its pattern as a literal in quotes, so that it can be checked now',
    );
  }
  try {
    patterns.set(pattern.args, RE2JS.compile(pattern.args));
  } catch (error) {
    throw new CelError(
      `the regular expression "${pattern.args}" is not in RE2's syntax, which knows neither look-around nor back-references: ${(error as Error).message}`,
    );
  }
  return call('earmarkMatches', rewrite(receiver, false), pattern);
}

/** Bottom up; `looping`: inside the body of all, exists, map, filter, where another one would multiply the cost. */
function rewrite(value: unknown, looping: boolean): unknown {
  if (Array.isArray(value)) return value.map((item) => rewrite(item, looping));
  if (!isNode(value)) return value;
  const args = value.args as unknown[];
  if (value.op === 'call' && args[0] === 'has')
    return rewriteHas((args[1] as unknown[])[0] as Node, looping);
  if (value.op === 'rcall') return rewriteMethod(value, looping);
  if ((value.op === '.' || value.op === '[]') && !isFact(value)) {
    const [from, key] = accessed(value);
    const name = holdsText(from) ? 'earmarkText' : 'earmarkAny';
    return call(name, rewrite(from, looping), rewrite(key, looping));
  }
  if (value.op === 'in') {
    return { op: 'in', args: [rewrite(args[0], looping), emptyWhereAbsent(args[1], looping)] };
  }
  if (value.op === 'value' || value.op === 'id') return value;
  return { op: value.op, args: rewrite(args, looping) };
}

function emptyWhereAbsent(list: unknown, looping: boolean): unknown {
  const after = rewrite(list, looping);
  const absent =
    isNode(after) && after.op === 'call' && (after.args as unknown[])[0] === 'earmarkAny';
  return absent ? call('earmarkList', after) : after;
}

function rewriteHas(access: Node, looping: boolean): Node {
  if (isFact(access)) {
    throw new CelError(
      'has() is no use here: the field is always there, "" or 0 where the request has none',
    );
  }
  const [from, key] = accessed(access);
  return call('earmarkHas', rewrite(from, looping), key);
}

function rewriteMethod(node: Node, looping: boolean): Node {
  const [name, receiver, args] = node.args as [string, unknown, unknown[]];
  if (name === 'matches') return linear(receiver, args[0]);
  if (!LOOPS.has(name)) {
    return { op: 'rcall', args: [name, rewrite(receiver, looping), rewrite(args, looping)] };
  }
  if (looping) throw new CelError(`${name}() inside another loop may cost too much: take it out`);
  const [variable, ...bodies] = args;
  const range = emptyWhereAbsent(receiver, false);
  return { op: 'rcall', args: [name, range, [variable, ...(rewrite(bodies, true) as unknown[])]] };
}

/** The first line: what is left is a drawing that a YAML file's own position replaces. */
function explain(error: unknown): string {
  const [text] = (error instanceof Error ? error.message : String(error)).split('\n');
  const place = error instanceof CelError || !(error instanceof Error) ? '' : positionOf(error);
  if (/^Unknown variable|^No such key/.test(text!)) return `${text}${place}: ${NAMES}`;
  if (text!.includes('maxAstNodes')) return `is larger than ${NODES_MAX} nodes: make it smaller`;
  return `${text}${place}`;
}

function positionOf(error: Error): string {
  const start = (error as { range?: { start?: number } }).range?.start;
  return start === undefined ? '' : ` (character ${start + 1})`;
}

let latest: { request: RequestFacts; context: Record<string, unknown> } | undefined;

/** The facts as CEL types them: its integers are bigints. One request's expressions run one after the other. */
function contextOf(request: RequestFacts): Record<string, unknown> {
  if (latest?.request === request) return latest.context;
  const { method, path, host, headers, model, stream } = request;
  const maxTokens = BigInt(Number.isSafeInteger(request.maxTokens) ? request.maxTokens : 0);
  const context = {
    request: { method, path, host, headers, model, stream, maxTokens },
    context: request.context,
    source: { principal: request.principal },
    metadata: request.metadata,
    digest: '',
  };
  latest = { request, context };
  return context;
}

/** Compiles and checks; throws `CelError` with what to do. `constant` is the text of a bare literal. */
export function compile(
  text: string,
  wants: 'bool' | 'string',
): { run: Expression<unknown>; constant: string | undefined } {
  try {
    const parsed = written.parse(text);
    const checked = parsed.check();
    if (!checked.valid) throw checked.error;
    if (checked.type !== wants && checked.type !== 'dyn') {
      throw new CelError(`gives ${checked.type}, but ${wants} is needed`);
    }
    // Parsed again: the check above has put its types into the first tree.
    const tree = rewrite(written.parse(text).ast, false) as ASTNode;
    const program = lenient.parse(serialize(tree));
    const rechecked = program.check();
    if (!rechecked.valid) throw rechecked.error;
    const type = wants === 'bool' ? 'boolean' : 'string';
    const asksDigest = /\bdigest\b/.test(text);
    const run = (request: RequestFacts): unknown => {
      const context = contextOf(request);
      if (asksDigest) context.digest = request.digest();
      const value = program(context);
      if (typeof value !== type) throw new CelError(`gave ${typeof value}, but ${wants} is needed`);
      return value;
    };
    const { op, args } = parsed.ast as Node;
    return { run, constant: op === 'value' && typeof args === 'string' ? args : undefined };
  } catch (error) {
    throw new CelError(explain(error));
  }
}
