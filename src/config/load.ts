/** File, environment and defaults -> one frozen Config, or every error at once. */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { isMap, isScalar, LineCounter, type Node, parseDocument } from 'yaml';
import type { Problem } from '../policy/types.js';
import { BadSetting, environmentName, FIELDS, type FieldPath } from './fields.js';
import type { Config } from './types.js';

export type Environment = Readonly<Record<string, string | undefined>>;

/** Everything that is wrong with the settings, a line each. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
  readonly problems: readonly Problem[];
  constructor(problems: readonly Problem[]) {
    super(problems.map(describe).join('\n'));
    this.problems = problems;
  }
}

/** What was written for a setting, and where. */
interface Setting {
  readonly text: string;
  readonly folder: string;
  problem(message: string): Problem;
}

type Settings = Map<FieldPath, Setting>;
type Values = { [F in FieldPath]?: ReturnType<(typeof FIELDS)[F]> };

const ENVIRONMENT = 'environment';

/** Settings of the file, with those of the environment before them. Throws a ConfigError. */
export function loadConfig(file: string | undefined, environment: Environment): Config {
  const problems: Problem[] = [];
  const settings: Settings = new Map();
  if (file !== undefined) readFile(file, settings, problems);
  readEnvironment(environment, settings);
  const values = readValues(settings, problems);
  const password = readPassword(values, settings, problems);
  const readable = problems.every(({ path }) => path !== '' && !path.startsWith('ledger'));
  if (readable && !settings.has('ledger.url') && !settings.has('ledger.data')) {
    problems.push(neitherLedger(file));
  }
  if (problems.length > 0) throw new ConfigError(problems);
  return Object.freeze({
    gateway: values.gateway ?? `${hostname()}-${randomBytes(4).toString('hex')}`,
    listen: Object.freeze({
      envoy: values['listen.envoy'] ?? '127.0.0.1:9191',
      api: values['listen.api'],
      admin: values['listen.admin'] ?? '127.0.0.1:9192',
    }),
    ledger: Object.freeze({
      url: values['ledger.url'],
      data: values['ledger.data'],
      password,
      prefix: values['ledger.prefix'] ?? 'earmark:',
      timeoutMs: values['ledger.timeout'] ?? 150,
    }),
    policy: values.policy,
    rollout: values.rollout,
    spool: values.spool ?? (values['ledger.data'] && join(values['ledger.data'], 'spool')),
    override: values.override ?? 'none',
    logLevel: values.logLevel ?? 'info',
  });
}

function describe(problem: Problem): string {
  const at = problem.line > 0 ? `:${problem.line}:${problem.column}` : '';
  return `${problem.file}${at}: ${problem.path === '' ? '' : `${problem.path}: `}${problem.message}`;
}

function neitherLedger(file: string | undefined): Problem {
  const where = file === undefined ? '--config FILE with a ledger, or ' : '';
  const message = `is missing: give ${where}ledger.url (EARMARK_LEDGER_URL) for a Redis of yours, or ledger.data (EARMARK_LEDGER_DATA) for an embedded one`;
  return { file: file ?? ENVIRONMENT, line: 0, column: 0, path: 'ledger', message };
}

function readFile(file: string, settings: Settings, problems: Problem[]): void {
  const lines = new LineCounter();
  const at = (offset: number, path: string, message: string): Problem => {
    const { line, col } = lines.linePos(offset);
    return { file, line, column: col, path, message };
  };
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    problems.push({
      file,
      line: 0,
      column: 0,
      path: '',
      message: `can't be read: ${reason(error)}`,
    });
    return;
  }
  const document = parseDocument(text, { lineCounter: lines });
  for (const error of document.errors) {
    problems.push(at(error.pos[0], '', error.message.split('\n')[0] ?? error.message));
  }
  if (document.errors.length > 0) return;
  const folder = dirname(resolve(file));
  collect(document.contents, '', (path, node, value) => {
    const problem = (message: string) => at(node.range?.[0] ?? 0, path, message);
    if (path in FIELDS) {
      if (value === undefined) problems.push(problem('must be a single value'));
      // `gateway: ""` is the same as leaving it out.
      else if (value !== '' || path === 'ledger.prefix') {
        settings.set(path as FieldPath, { text: value, folder, problem });
      }
    } else if (path === '' || isSection(path)) {
      problems.push(
        problem(`must hold settings: ${siblings(path === '' ? '' : `${path}.`).join(', ')}`),
      );
    } else problems.push(problem(`is not a setting: known are ${siblings(path).join(', ')}`));
  });
}

/** Calls `found` for each leaf, and for each key that no setting starts with. A null is not given. */
function collect(
  node: Node | null,
  path: string,
  found: (path: string, node: Node, value: string | undefined) => void,
): void {
  if (node === null || (isScalar(node) && node.value === null)) return;
  if (isScalar(node)) {
    found(path, node, typeof node.value === 'string' ? node.value : String(node.source));
  } else if (isMap<Node, Node | null>(node) && (path === '' || isSection(path))) {
    for (const pair of node.items) {
      const name = isScalar(pair.key) ? String(pair.key.value) : '?';
      const inner = path === '' ? name : `${path}.${name}`;
      if (inner in FIELDS || isSection(inner)) collect(pair.value, inner, found);
      else found(inner, pair.key, undefined);
    }
  } else found(path, node, undefined);
}

function isSection(path: string): boolean {
  return Object.keys(FIELDS).some((field) => field.startsWith(`${path}.`));
}

function siblings(path: string): string[] {
  const section = path.slice(0, path.indexOf('.') + 1);
  const fields = Object.keys(FIELDS).filter((field) => field.startsWith(section));
  return section !== '' ? fields : [...new Set(fields.map((field) => field.split('.')[0]!))];
}

function readEnvironment(environment: Environment, settings: Settings): void {
  for (const field of Object.keys(FIELDS) as FieldPath[]) {
    const name = environmentName(field);
    const text = environment[name];
    // An empty variable is how many deployments say "not given".
    if (text === undefined || text === '') continue;
    // The environment's choice of a ledger stands in place of the file's, not beside it.
    if (field === 'ledger.url') settings.delete('ledger.data');
    if (field === 'ledger.data' && !environment.EARMARK_LEDGER_URL) settings.delete('ledger.url');
    const problem = (message: string): Problem => {
      return { file: ENVIRONMENT, line: 0, column: 0, path: name, message };
    };
    settings.set(field, { text, folder: process.cwd(), problem });
  }
}

function readValues(settings: Settings, problems: Problem[]): Values {
  const values: Record<string, unknown> = {};
  for (const [field, setting] of settings) {
    try {
      values[field] = FIELDS[field](setting.text, setting.folder);
    } catch (error) {
      if (!(error instanceof BadSetting)) throw error;
      problems.push(setting.problem(error.message));
    }
  }
  const data = settings.get('ledger.data');
  if (data !== undefined && settings.has('ledger.url')) {
    problems.push(data.problem('stands beside ledger.url: leave one of them out'));
  }
  return values as Values;
}

function readPassword(values: Values, settings: Settings, problems: Problem[]): string | undefined {
  const file = values['ledger.passwordFile'];
  const setting = settings.get('ledger.passwordFile');
  if (file === undefined || setting === undefined) return undefined;
  const url = values['ledger.url'];
  if (url !== undefined && !url.startsWith('unix:') && new URL(url).password !== '') {
    problems.push(setting.problem('the URL has a password too: leave one of them out'));
  }
  try {
    return readFileSync(file, 'utf8').replace(/\r?\n$/, '');
  } catch (error) {
    problems.push(setting.problem(`can't be read: ${reason(error)}`));
    return undefined;
  }
}

function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
