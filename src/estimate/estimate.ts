/** What a request will use at most, as far as anybody can tell before it runs (docs/policy.md, "Estimates"). */
import { ceilDivide, type Decimal } from '../core/decimal.js';
import { UNITS_MAX } from '../core/limits.js';
import type { Factor } from '../ledger/types.js';
import { type Cost, costOf, outputThatFits, tokens } from '../policy/cost.js';
import type { EstimateInput } from '../policy/types.js';

/** One limit as an estimate sees it. */
export interface EstimateLimit {
  readonly cost: Cost;
  /** Unscaled. */
  readonly maxReservation: number;
  /** The limit counts in units of its own, which `fixed` says nothing about. */
  readonly ownCost: boolean;
}

export interface EstimateRules {
  /** Units of the whole estimate; undefined: by tokens. */
  readonly fixed: number | undefined;
  readonly bytesPerToken: Decimal;
  /** Tokens of a completion whose request names no maximum. */
  readonly completion: number;
  readonly limits: readonly EstimateLimit[];
}

/** Rule 7: a plan's factor, rounded down, at least 1. */
export function scaleUnits(units: number, factor: Factor): number {
  const scaled = (BigInt(units) * BigInt(factor.numerator)) / BigInt(factor.denominator);
  return Math.max(1, Number(scaled));
}

/** Units to hold in each limit: at least 1, at most 2^53 - 1; never throws, whatever the body is. */
export function estimate(rules: EstimateRules, request: EstimateInput): readonly number[] {
  const prompt = promptTokens(rules, request.bodyBytes);
  const completion = completionTokens(rules, request, prompt);
  return rules.limits.map((limit) =>
    rules.fixed !== undefined && !limit.ownCost ? rules.fixed : units(limit, prompt, completion),
  );
}

function units(limit: EstimateLimit, prompt: number, completion: number): number {
  try {
    return Math.max(1, costOf(limit.cost, tokens(prompt, completion)));
  } catch {
    // Above every maxReservation that can be published with a refill: refused, not held.
    return UNITS_MAX;
  }
}

function promptTokens(rules: EstimateRules, bodyBytes: number): number {
  if (!Number.isSafeInteger(bodyBytes) || bodyBytes < 0) return UNITS_MAX;
  const { digits, scale } = rules.bytesPerToken;
  const count = ceilDivide(BigInt(bodyBytes) * 10n ** BigInt(scale), digits);
  return count > BigInt(UNITS_MAX) ? UNITS_MAX : Number(count);
}

function completionTokens(rules: EstimateRules, request: EstimateInput, prompt: number): number {
  const { json } = request;
  // What can't be read may ask for anything: it holds all that one reservation may.
  if (json === undefined && request.bodyBytes > 0)
    return fits(rules, request.factor, prompt, UNITS_MAX);
  const choices = wholeNumber(json?.n) ?? 1;
  const own = ownMaximum(json);
  if (own !== undefined) return Math.min(UNITS_MAX, own * choices);
  if (json !== undefined && isEmbedding(request)) return 0;
  return fits(rules, request.factor, prompt, Math.min(UNITS_MAX, rules.completion * choices));
}

/** A default is cut to what maxReservation leaves, so that it never refuses what the prompt alone would not. */
function fits(rules: EstimateRules, factor: Factor, prompt: number, wanted: number): number {
  const most = rules.limits.map((limit) =>
    outputThatFits(limit.cost, prompt, scaleUnits(limit.maxReservation, factor)),
  );
  return Math.min(wanted, ...most.map((tokens) => tokens ?? wanted));
}

/** The largest where several are given: which one a backend obeys is its own affair. */
function ownMaximum(json: EstimateInput['json']): number | undefined {
  const named = [json?.max_completion_tokens, json?.max_tokens, json?.max_output_tokens]
    .map(wholeNumber)
    .filter((value) => value !== undefined);
  return named.length === 0 ? undefined : Math.max(...named);
}

function isEmbedding({ json, facts }: EstimateInput): boolean {
  const generates = /\/responses(\?|\/|$)/.test(facts.path);
  return json?.input !== undefined && json.messages === undefined && !generates;
}

/** A count that a request names, rounded up; what is no count says nothing. */
function wholeNumber(value: unknown): number | undefined {
  if (typeof value !== 'number' || !(value >= 1)) return undefined;
  return Math.min(UNITS_MAX, Math.ceil(value));
}
