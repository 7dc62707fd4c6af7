/** What a budget says of amounts: the price of a report, and the estimate before there is one. */
import { type Decimal, formatDecimal, parseDecimal } from '../core/decimal.js';
import type { EstimateRules } from '../estimate/estimate.js';
import type { Json } from './canonical.js';
import { type Cost, compileCost } from './cost.js';
import { type ReadLimit, readPrices } from './limits.js';
import type { Cursor } from './source.js';

type Field = (key: string) => Cursor;

export function readCost(at: Cursor): { cost: Cost; canonical: Json } {
  if (at.is('prices'))
    at.fail('by prices is not available yet: write { input: 1, output: 1 } or the like');
  if (at.present && !at.is('prices')) {
    const { prices, canonical } = readPrices(at);
    return { cost: compileCost(prices), canonical };
  }
  const one = parseDecimal('1')!;
  return { cost: compileCost({ input: one, output: one }), canonical: { input: '1', output: '1' } };
}

export function readEstimate(at: Cursor, limits: readonly ReadLimit[], costs: readonly Cost[]) {
  const field = at.mapping(['prompt', 'completion', 'fixed']);
  const prompt = field('prompt').mapping(['bytesPerToken', 'tokenizer', 'header']);
  for (const key of ['tokenizer', 'header']) {
    if (prompt(key).present) {
      prompt(key).fail(
        `is not available yet: use { bytesPerToken: 4 }, or estimate: { fixed: 600 }`,
      );
    }
  }
  const bytesPerToken: Decimal = prompt('bytesPerToken').decimal('4');
  if (bytesPerToken.digits === 0n) prompt('bytesPerToken').fail('must be above 0');
  const completion = field('completion').mapping(['default'])('default').integer(0, 512);
  const fixed = field('fixed').present ? field('fixed').integer(1) : undefined;
  if (fixed !== undefined) checkFixed(field, fixed, limits);
  const rules: EstimateRules = {
    fixed,
    bytesPerToken,
    completion,
    limits: limits.map(({ terms }, i) => ({
      cost: costs[i]!,
      maxReservation: terms.maxReservation,
      ownCost: terms.ownCost,
    })),
  };
  const byTokens = {
    prompt: { bytesPerToken: formatDecimal(bytesPerToken) },
    completion: { default: completion },
  };
  return { rules, canonical: fixed === undefined ? byTokens : { fixed } };
}

function checkFixed(field: Field, fixed: number, limits: readonly ReadLimit[]): void {
  for (const key of ['prompt', 'completion']) {
    if (field(key).present)
      field(key).fail('stands beside fixed, which is the whole estimate: keep one');
  }
  const short = limits.find(({ terms }) => !terms.ownCost && terms.maxReservation < fixed);
  if (short) {
    field('fixed').fail(
      `is ${fixed}, above maxReservation ${short.terms.maxReservation}: every request would be refused`,
    );
  }
}
