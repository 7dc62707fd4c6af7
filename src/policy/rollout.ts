/** Which generation is in force, and how far: rollout.v1 read, and the mode that it gives one request. */
import { createHash } from 'node:crypto';
import { type Decimal, formatDecimal } from '../core/decimal.js';
import { canonicalJson } from './canonical.js';
import { type Cursor, Source } from './source.js';
import type { Mode, Problem, Rollout, RouteRollout } from './types.js';

const MODES = ['off', 'shadow', 'enforce', 'refuseAll'] as const;
const ROUTE_KEYS = ['mode', 'percent', 'by', 'only', 'except'];

/** `rollout` is there exactly when there are no problems. */
export interface ParsedRollout {
  readonly rollout: Rollout | undefined;
  readonly problems: readonly Problem[];
}

/** Reads a document in the form of the contract's rollout.yaml; also its own canonical form. */
export function parseRollout(text: string, file: string, bytesMax?: number): ParsedRollout {
  const source = new Source(text, file, bytesMax);
  const root = source.root();
  const rollout = root && readRollout(root);
  const { problems } = source.sorted();
  return { rollout: problems.length === 0 ? rollout : undefined, problems };
}

function readRollout(root: Cursor): Rollout | undefined {
  if (!root.isMapping) {
    root.fail('must be a mapping that starts with schema: rollout.v1');
    return undefined;
  }
  const field = root.mapping(['schema', 'generation', 'default', 'routes']);
  field('schema').choice(['rollout.v1']);
  const generation = field('generation').integer(1);
  const fallback = field('default').present
    ? readRoute(field('default'))
    : readMissingDefault(field('default'));
  const entries = field('routes').entries();
  // No prototype: a route may have any name.
  const routes: Record<string, RouteRollout> = Object.create(null);
  for (const [route, at] of entries) routes[route] = readRoute(at);
  const canonical = canonicalJson({
    schema: 'rollout.v1',
    generation,
    default: { ...fallback },
    routes: Object.fromEntries(Object.entries(routes).map(([name, route]) => [name, { ...route }])),
  });
  return Object.freeze({ generation, default: fallback, routes: Object.freeze(routes), canonical });
}

function readMissingDefault(at: Cursor): RouteRollout {
  at.fail('is missing: say what every other route does, such as { mode: shadow }');
  return { mode: 'shadow', percent: 100, by: 'subject', only: [], except: [] };
}

function readRoute(at: Cursor): RouteRollout {
  const field = at.mapping(ROUTE_KEYS);
  const mode = field('mode').choice(MODES);
  for (const key of ROUTE_KEYS.slice(1)) {
    if (mode !== 'enforce' && field(key).present && !isDefault(field(key), key)) {
      field(key).fail(`belongs to mode enforce and says nothing of ${mode}: remove it`);
    }
  }
  const percent = field('percent').decimal('100');
  if (isAbove100(percent)) field('percent').fail('must be from 0 to 100');
  return Object.freeze({
    mode,
    percent: Number(formatDecimal(percent)),
    by: field('by').choice(['subject', 'request'], 'subject'),
    only: field('only')
      .items()
      .map((item) => item.text(undefined)),
    except: field('except')
      .items()
      .map((item) => item.text(undefined)),
  });
}

function isAbove100({ digits, scale }: Decimal): boolean {
  return digits > 100n * 10n ** BigInt(scale);
}

/** What a canonical form has filled in. */
function isDefault(at: Cursor, key: string): boolean {
  if (key === 'percent') return at.is(100);
  return key === 'by' ? at.is('subject') : at.isEmptyList;
}

const SHADOW: RouteRollout = Object.freeze({
  mode: 'shadow',
  percent: 100,
  by: 'subject',
  only: [],
  except: [],
});

/** What the rollout says of a route; without a rollout everything runs in shadow. */
export function rulesOf(rollout: Rollout | undefined, route: string | undefined): RouteRollout {
  if (rollout === undefined) return SHADOW;
  return (route === undefined ? undefined : rollout.routes[route]) ?? rollout.default;
}

/**
 * What happens to one request of a route; the rest of an enforced route runs in shadow. `key` is the idempotency key or
 * the request's ID, so that a retry falls on the same side as what it repeats.
 */
export function modeOf(rules: RouteRollout, subject: string, key: string): Mode {
  if (rules.mode !== 'enforce') return rules.mode;
  if (rules.except.includes(subject)) return 'shadow';
  if (rules.only.length > 0 && !rules.only.includes(subject)) return 'shadow';
  if (rules.percent >= 100) return 'enforce';
  return place(rules.by === 'subject' ? subject : `${subject}\n${key}`) < rules.percent
    ? 'enforce'
    : 'shadow';
}

/** Both in one. */
export function decideMode(
  rollout: Rollout | undefined,
  route: string,
  subject: string,
  key: string,
): Mode {
  return modeOf(rulesOf(rollout, route), subject, key);
}

/** Where a name stands in [0, 100), for ever: a higher percentage only ever adds names. */
function place(name: string): number {
  return (createHash('sha256').update(name).digest().readUInt32BE() / 2 ** 32) * 100;
}
