/** The four expressions of a budget: match, subject, plan, key. */
import type { Factor } from '../ledger/types.js';
import { compile } from './cel.js';
import { DEFAULT_KEY, DEFAULT_PLAN } from './schema.js';
import type { Cursor } from './source.js';
import { PolicyEvaluationError, type RequestFacts } from './types.js';

type Field = (key: string) => Cursor;

const ONE: Factor = Object.freeze({ numerator: 1, denominator: 1 });

/** A compiled expression whose failures name the budget and the field. */
function expression<T>(
  at: Cursor,
  route: string,
  name: string,
  text: string,
  wants: 'bool' | 'string',
): { run: (request: RequestFacts) => T; constant: string | undefined } {
  try {
    const { run, constant } = compile(text, wants);
    const named = (request: RequestFacts): T => {
      try {
        return run(request) as T;
      } catch (error) {
        throw new PolicyEvaluationError(route, name, (error as Error).message.split('\n')[0]!);
      }
    };
    return { run: named, constant };
  } catch (error) {
    at.fail(`can't be used: ${(error as Error).message}`);
    return { run: () => '' as T, constant: undefined };
  }
}

export function readExpressions(field: Field, route: string, plans: ReadonlyMap<string, Factor>) {
  const text = {
    match: field('match').text('true'),
    subject: field('subject').text(undefined, 'CEL such as request.headers["x-tenant"]'),
    plan: field('plan').text(DEFAULT_PLAN),
    key: field('key').text(DEFAULT_KEY),
  };
  const make = <T>(name: keyof typeof text, wants: 'bool' | 'string') =>
    expression<T>(field(name), route, name, text[name], wants);
  const subject = field('subject').present ? make<string>('subject', 'string').run : () => '';
  const plan = make<string>('plan', 'string');
  const known = [...plans.keys()].join(', ');
  if (plans.size > 0 && plan.constant !== undefined && !plans.has(plan.constant)) {
    field('plan').fail(
      `gives the plan "${plan.constant}", which plans doesn't have: name one of ${known}`,
    );
  }
  const factor = (request: RequestFacts): Factor => {
    if (plans.size === 0) return ONE;
    const name = plan.run(request);
    const found = plans.get(name);
    if (found) return found;
    throw new PolicyEvaluationError(
      route,
      'plan',
      `there is no plan "${name}": plans are ${known}`,
    );
  };
  const match = make<boolean>('match', 'bool').run;
  return {
    canonical: text,
    run: { match, subject, key: make<string>('key', 'string').run, factor },
  };
}
