/** A policy document, from its text to the typed and frozen form that the request path uses. */
import { type Decimal, formatDecimal, fraction } from '../core/decimal.js';
import { UNITS_MAX } from '../core/limits.js';
import type { Factor } from '../ledger/types.js';
import { type ReadBudget, readBudget } from './budget.js';
import { canonicalJson, contentOf, type Json } from './canonical.js';
import { COST_PARTS } from './cost.js';
import { BUDGETS_MAX, POLICY_KEYS } from './schema.js';
import { type Cursor, Source } from './source.js';
import type { Policy, Problem } from './types.js';

/** `policy` is there exactly when there are no problems. */
export interface Parsed {
  readonly policy: Policy | undefined;
  readonly problems: readonly Problem[];
  readonly warnings: readonly Problem[];
}

/** Reads a document in the form of the contract's policy.yaml; `file` is only for the messages. */
export function parsePolicy(text: string, file: string): Parsed {
  return parse(new Source(text, file));
}

function parse(source: Source): Parsed {
  const root = source.root();
  const policy = root && readPolicy(root);
  const { problems, warnings } = source.sorted();
  return { policy: problems.length === 0 ? policy : undefined, problems, warnings };
}

/** A policy as the ledger holds it: what is stored there stands, whatever this program would write today. */
export function loadPolicy(canonical: string, content: string): Policy {
  if (contentOf(canonical) !== content) throw new Error('its content is not what was published');
  const { policy, problems } = parse(new Source(canonical, 'ledger', Number.POSITIVE_INFINITY));
  if (policy) return deepFreeze({ ...policy, canonical, content });
  throw new Error(problems.map((problem) => `${problem.path} ${problem.message}`).join('; '));
}

/** file:line:column: path message */
export function formatProblem({ file, line, column, path, message }: Problem): string {
  return `${file}:${line}:${column}: ${path === '' ? 'the document' : path} ${message}`;
}

function readPolicy(root: Cursor): Policy | undefined {
  if (!root.isMapping) {
    root.fail('must be a mapping that starts with schema: admissionBudget.v1');
    return undefined;
  }
  const field = root.mapping(POLICY_KEYS);
  field('schema').choice(['admissionBudget.v1']);
  const generation = field('generation').integer(1);
  const unmatched = field('unmatched').choice(['refuse', 'allow']);
  const plans = readPlans(field('plans'));
  const prices = readPriceTable(field('prices'));
  const budgets = readBudgets(field('budgets'), plans.factors);
  const canonical = canonicalJson({
    schema: 'admissionBudget.v1',
    generation,
    unmatched,
    plans: plans.canonical,
    prices,
    budgets: budgets.map((read) => read.canonical),
  });
  return deepFreeze({
    generation,
    content: contentOf(canonical),
    unmatched,
    budgets: budgets.map((read) => read.budget),
    canonical,
  });
}

function readBudgets(at: Cursor, plans: ReadonlyMap<string, Factor>): readonly ReadBudget[] {
  const items = at.isList ? at.items() : [];
  if (items.length === 0) at.fail('must be a list of at least one budget');
  if (items.length > BUDGETS_MAX)
    at.fail(`has ${items.length} budgets: at most ${BUDGETS_MAX} may be`);
  const routes = new Map<string, string>();
  return items.slice(0, BUDGETS_MAX).map((item) => {
    const read = readBudget(item, plans);
    const { route } = read.budget;
    const earlier = routes.get(route);
    if (earlier !== undefined && route !== '') {
      item.fail(
        `has the route "${route}" of ${earlier}: each route has one budget, give it another name`,
      );
    }
    routes.set(route, earlier ?? item.path);
    return read;
  });
}

function readPlans(at: Cursor): { factors: ReadonlyMap<string, Factor>; canonical: Json } {
  const read = at.entries().map(([name, value]) => [name, value, value.decimal()] as const);
  const factors = read.map(([name, value, decimal]) => [name, toFactor(value, decimal)] as const);
  const forms = read.map(([name, , decimal]) => [name, formatDecimal(decimal)] as const);
  return { factors: new Map(factors), canonical: Object.fromEntries(forms) };
}

function toFactor(at: Cursor, decimal: Decimal): Factor {
  if (decimal.digits === 0n) {
    at.fail('must be above 0: refuse a plan by `match` or by the rollout instead');
    return { numerator: 1, denominator: 1 };
  }
  const { numerator, denominator } = fraction(decimal);
  if (numerator > BigInt(UNITS_MAX) || denominator > BigInt(UNITS_MAX)) {
    at.fail('has too many places: at most 15');
  }
  return { numerator: Number(numerator), denominator: Number(denominator) };
}

/** The table may stand in a document; no cost refers to it yet. */
function readPriceTable(at: Cursor): Json {
  const rows = at.entries().map(([model, row]) => {
    const field = row.mapping(COST_PARTS);
    const given = COST_PARTS.filter((part) => field(part).present);
    return [
      model,
      Object.fromEntries(given.map((part) => [part, formatDecimal(field(part).decimal())])),
    ] as const;
  });
  return Object.fromEntries(rows);
}

function deepFreeze<T>(value: T): T {
  if (typeof value !== 'object' || value === null || Object.isFrozen(value)) return value;
  for (const part of Object.values(value)) deepFreeze(part);
  return Object.freeze(value);
}
