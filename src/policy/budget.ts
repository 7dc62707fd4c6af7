/** One budget of a policy document: read, checked, compiled. */
import { ROUTE_BYTES_MAX } from '../core/limits.js';
import { type EstimateRules, estimate, scaleUnits } from '../estimate/estimate.js';
import type { Factor, Terms } from '../ledger/types.js';
import { readCost, readEstimate } from './amounts.js';
import type { Json } from './canonical.js';
import { type Cost, compileCost, costOf, outputThatFits } from './cost.js';
import { formatDuration } from './duration.js';
import { readExpressions } from './expressions.js';
import { checkArithmetic, type ReadLimit, readLimits } from './limits.js';
import { BUDGET_KEYS } from './schema.js';
import type { Cursor } from './source.js';
import { type Budget, PolicyEvaluationError } from './types.js';
import { readUsage } from './usage.js';

type Field = (key: string) => Cursor;
type Canonical = { readonly [key: string]: Json };

export interface ReadBudget {
  readonly budget: Budget;
  readonly canonical: Canonical;
}

/** What isn't there yet is refused by name, and never ignored. */
function onlyFor(at: Cursor, accepted: string | number): void {
  if (at.present && !at.is(accepted)) {
    at.fail(`is not available yet: leave it out or write ${accepted}`);
  }
}

export function readBudget(at: Cursor, plans: ReadonlyMap<string, Factor>): ReadBudget {
  const field = at.mapping(BUDGET_KEYS);
  const route = readRoute(field('route'));
  onlyFor(field('retry'), 'none');
  onlyFor(field('priority'), 0);
  onlyFor(field('weight'), 1);
  onlyFor(field('emergency'), 'disabled');
  if (field('oversize').is('clamp')) onlyFor(field('oversize'), 'refuse');
  else field('oversize').choice(['refuse'], 'refuse');

  const { limits, canonical: amounts, sound } = readLimits(at, field);
  const cost = readCost(field('cost'));
  const costs = limits.map((limit) => (limit.prices ? compileCost(limit.prices) : cost.cost));
  const rules = readEstimate(field('estimate'), sound ? limits : [], costs);
  const usage = readUsage(field('usage'), onlyFor);
  const times = readTimes(field);
  if (sound) checkArithmetic(limits, plans, times.terms.epochMs);
  const expressions = readExpressions(field, route, plans);
  const settings = readSettings(field);
  warn(field, limits, costs, rules.rules, plans);

  const terms: Terms = { limits: limits.map((limit) => limit.terms), ...times.terms };
  const budget: Budget = {
    route,
    region: settings.region,
    unit: settings.unit,
    terms,
    usage: usage.rules,
    oversize: 'refuse',
    startedBy: settings.startedBy,
    settledAgain: settings.settledAgain,
    plainResponses: settings.plainResponses,
    ...expressions.run,
    estimate: (request) => estimate(rules.rules, request),
    cost: (report) => {
      try {
        return costs.map((each) => costOf(each, report));
      } catch (error) {
        throw new PolicyEvaluationError(route, 'cost', (error as Error).message);
      }
    },
  };
  const canonical: Canonical = {
    route,
    ...settings,
    ...expressions.canonical,
    ...amounts,
    cost: cost.canonical,
    estimate: rules.canonical,
    usage: usage.canonical,
    ...times.canonical,
    retry: 'none',
    oversize: 'refuse',
    priority: 0,
    weight: 1,
    emergency: 'disabled',
  };
  return { budget, canonical };
}

function readRoute(at: Cursor): string {
  const route = at.text(undefined, 'text such as chat.generate');
  const bytes = Buffer.byteLength(route);
  if (at.present && (bytes === 0 || bytes > ROUTE_BYTES_MAX || /\p{Cc}/u.test(route))) {
    at.fail(`must be 1 to ${ROUTE_BYTES_MAX} bytes without control characters`);
  }
  return route;
}

function readSettings(field: Field) {
  const unit = field('unit').text('token');
  if (!/^[a-z][a-z0-9-]{0,31}$/.test(unit)) {
    field('unit').fail('must be lower-case letters, digits and dashes: it ends names of headers');
  }
  return {
    region: field('region').text(''),
    unit,
    startedBy: field('startedBy').choice(['gateway', 'executor'], 'gateway'),
    settledAgain: field('settledAgain').choice(['refuse', 'reserve'], 'refuse'),
    plainResponses: field('plainResponses').flag(true),
  };
}

function readTimes(field: Field) {
  const epochMs = field('epoch').duration('24h');
  if (epochMs < 1000) field('epoch').fail('must be at least 1s: each epoch is a page of its own');
  const holdTtlMs = field('holdTtl').duration('30s');
  const usageDeadlineMs = field('usageDeadline').duration('10m');
  const retentionMs = field('receiptRetention').duration('24h');
  const onBreach = field('onBreach').choice(['freezeRoute', 'freezeLine', 'mark'], 'freezeRoute');
  const byOperator = !field('freezeFor').present || field('freezeFor').is('operator');
  const freezeForMs = byOperator ? 0 : field('freezeFor').duration(undefined, 'operator or ');
  const terms = { epochMs, holdTtlMs, usageDeadlineMs, retentionMs, onBreach, freezeForMs };
  const canonical = {
    epoch: formatDuration(epochMs),
    holdTtl: formatDuration(holdTtlMs),
    usageDeadline: formatDuration(usageDeadlineMs),
    receiptRetention: formatDuration(retentionMs),
    onBreach,
    freezeFor: byOperator ? 'operator' : formatDuration(freezeForMs),
  };
  return { terms, canonical };
}

function warn(
  field: Field,
  limits: readonly ReadLimit[],
  costs: readonly Cost[],
  rules: EstimateRules,
  plans: ReadonlyMap<string, Factor>,
): void {
  for (const [plan, factor] of plans) {
    const { fixed } = rules;
    const short = limits.some(
      ({ terms }) => !terms.ownCost && scaleUnits(terms.maxReservation, factor) < (fixed ?? 0),
    );
    if (short) {
      field('estimate').warn(
        `fixed is above what plan ${plan} leaves of maxReservation: all of its requests are refused`,
      );
    }
  }
  const short = limits.find(
    ({ terms }, i) =>
      !terms.ownCost &&
      (outputThatFits(costs[i]!, 0, terms.maxReservation) ?? Infinity) < rules.completion,
  );
  if (rules.fixed === undefined && short) {
    field('estimate').warn(
      `the completion default of ${rules.completion} tokens costs more than maxReservation ${short.terms.maxReservation}: a request without a maximum of its own holds all that one reservation may`,
    );
  }
  const caps = limits.some(
    ({ terms }) => terms.maxOverdraft !== null || terms.executionHardCap !== null,
  );
  const freezesRoute = !field('onBreach').present || field('onBreach').is('freezeRoute');
  if (caps && freezesRoute) {
    field('onBreach').warn(
      'freezeRoute: a breach by one subject stops every subject of the route; freezeLine stops that subject alone',
    );
  }
}
