import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { formatDecimal, fraction, parseDecimal } from '../../src/core/decimal.js';
import {
  type CostPart,
  compileCost,
  costOf,
  outputThatFits,
  tokens,
} from '../../src/policy/cost.js';
import type { Usage } from '../../src/policy/types.js';

const cost = (prices: Partial<Record<CostPart, string>>) =>
  compileCost(
    Object.fromEntries(Object.entries(prices).map(([part, text]) => [part, parseDecimal(text)!])),
  );
const usage = (some: Partial<Usage>): Usage => {
  const { input = 0, output = 0 } = some;
  return { ...tokens(input, output), ...some };
};

describe('decimals are exact', () => {
  test.each([
    ['0.60', '0.6'],
    ['1', '1'],
    ['10', '10'],
    ['0', '0'],
    ['0.000', '0'],
    ['007.5', '7.5'],
    ['0.000000000000000001', '0.000000000000000001'],
  ])('%s is written %s', (text, canonical) => {
    expect(formatDecimal(parseDecimal(text)!)).toBe(canonical);
  });

  test.each(['-1', '1e3', '.5', '5.', '1,5', '', ' 1', '0x1', 'NaN', '1.0000000000000000001'])(
    '%j is none',
    (text) => expect(parseDecimal(text)).toBeUndefined(),
  );

  test('a fraction in lowest terms', () => {
    expect(fraction(parseDecimal('2.50')!)).toEqual({ numerator: 5n, denominator: 2n });
  });
});

describe('cost of a report', () => {
  test.each<[string, Partial<Record<CostPart, string>>, Partial<Usage>, number]>([
    ['input and output', { input: '1', output: '1' }, { input: 120, output: 80 }, 200],
    ['nothing used', { input: '1', output: '1' }, {}, 0],
    ['rounded up once', { input: '0.15', output: '0.6' }, { input: 1, output: 1 }, 1],
    ['not rounded for each part', { input: '0.4', output: '0.4' }, { input: 1, output: 1 }, 1],
    ['no float: 0.1 × 3', { input: '0.1' }, { input: 30 }, 3],
    ['no float: 1.1 × 10', { input: '1.1' }, { input: 10 }, 11],
    ['a part without a price', { output: '1' }, { input: 50, output: 7 }, 7],
    ['each call', { call: '1' }, { input: 50, output: 7 }, 1],
    ['call and tokens', { call: '2.5', input: '0.5' }, { input: 3 }, 4],
    ['cached taken out of input', { input: '1', cached: '0.1' }, { input: 100, cached: 90 }, 19],
    ['cached without a price of its own', { input: '1' }, { input: 100, cached: 90 }, 100],
    ['cached for nothing', { input: '1', cached: '0' }, { input: 100, cached: 90 }, 10],
    [
      'cached and written',
      { input: '1', cached: '0.1', cacheWritten: '1.25' },
      { input: 100, cached: 20, cacheWritten: 40 },
      92,
    ],
    [
      'reasoning taken out of output',
      { output: '1', reasoning: '2' },
      { output: 10, reasoning: 4 },
      14,
    ],
    ['more cached than input', { input: '1', cached: '0.5' }, { input: 10, cached: 90 }, 5],
    [
      'audio out of the cheaper side first',
      { input: '1', output: '4', audio: '10' },
      { input: 10, output: 10, audio: 4 },
      6 + 40 + 40,
    ],
    [
      'audio beyond the cheaper side',
      { input: '1', output: '4', audio: '10' },
      { input: 3, output: 10, audio: 5 },
      8 * 4 + 50,
    ],
    [
      'audio where output is the cheaper side',
      { input: '4', output: '1', audio: '10' },
      { input: 10, output: 3, audio: 5 },
      8 * 4 + 50,
    ],
    [
      'a total above both counts as output',
      { input: '1', output: '3' },
      { input: 10, output: 5, total: 20 },
      40,
    ],
    ['a total alone is output', { input: '1', output: '3' }, { total: 20 }, 60],
    ['the largest', { input: '1' }, { input: Number.MAX_SAFE_INTEGER }, Number.MAX_SAFE_INTEGER],
  ])('%s', (_name, prices, report, units) => {
    expect(costOf(cost(prices), usage(report))).toBe(units);
  });

  test('above 2^53 - 1 is an error, not a rounded amount', () => {
    const report = usage({ input: Number.MAX_SAFE_INTEGER });
    expect(() => costOf(cost({ input: '1.000000000000001' }), report)).toThrow(
      /above 9007199254740991/,
    );
  });
});

test('the output that fits is the most that costs no more', () => {
  const price = fc
    .integer({ min: 1, max: 5000 })
    .map((thousandths) => (thousandths / 1000).toFixed(3));
  fc.assert(
    fc.property(price, price, fc.nat(10_000), fc.nat(20_000), (input, output, prompt, units) => {
      const prices = cost({ input, output, call: '1' });
      const most = outputThatFits(prices, prompt, units)!;
      if (most > 0) expect(costOf(prices, tokens(prompt, most))).toBeLessThanOrEqual(units);
      expect(costOf(prices, tokens(prompt, most + 1))).toBeGreaterThan(units);
    }),
  );
});
