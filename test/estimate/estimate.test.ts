import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { scaleUnits } from '../../src/estimate/estimate.js';
import { formatProblem, parsePolicy } from '../../src/policy/parse.js';
import type { Budget } from '../../src/policy/types.js';
import { facts } from '../support/facts.js';

const ONE = { numerator: 1, denominator: 1 };

function budget(more: string): Budget {
  const text = `schema: admissionBudget.v1\ngeneration: 1\nunmatched: refuse\nbudgets:\n  - { route: chat, subject: request.host, ${more} }\n`;
  const { policy, problems } = parsePolicy(text, 'p.yaml');
  expect(problems.map(formatProblem)).toEqual([]);
  return policy!.budgets[0]!;
}

type Json = Record<string, unknown>;

/** Units for a JSON body of so many bytes. */
function units(
  of: Budget,
  json: Json | undefined,
  bodyBytes: number,
  factor = ONE,
  path = '/v1/chat/completions',
) {
  return of.estimate({ facts: facts({ path }), json, bodyBytes, factor });
}

const chat = { model: 'm', messages: [{ role: 'user', content: 'hi' }] };
const plain = budget('burst: 100000');

describe('tokens', () => {
  test.each<[string, Json, number, number]>([
    ['prompt bytes rounded up, the default completion', chat, 401, 101 + 512],
    ['max_tokens', { ...chat, max_tokens: 50 }, 400, 150],
    ['max_completion_tokens', { ...chat, max_completion_tokens: 70 }, 400, 170],
    ['the larger of both', { ...chat, max_completion_tokens: 70, max_tokens: 90 }, 400, 190],
    ['for each choice', { ...chat, max_tokens: 50, n: 3 }, 400, 250],
    ['the default for each choice', { ...chat, n: 2 }, 400, 1124],
    ['a fraction is rounded up', { ...chat, max_tokens: 50.2 }, 400, 151],
    ['null is no maximum', { ...chat, max_tokens: null }, 400, 612],
    ['text is no maximum', { ...chat, max_tokens: '9' }, 400, 612],
    ['0 and below are none', { ...chat, max_tokens: -5, n: 0 }, 400, 612],
    ['embeddings complete nothing', { model: 'e', input: ['a'] }, 400, 100],
    ['messages beside input are no embedding', { ...chat, input: 'a' }, 400, 612],
    ['input with a maximum is no embedding', { input: 'a', max_output_tokens: 5 }, 400, 105],
  ])('%s', (_name, json, bytes, expected) => {
    expect(units(plain, json, bytes)).toEqual([expected]);
  });

  test('a response is no embedding, though its body has an input', () => {
    expect(units(plain, { input: 'a' }, 400, ONE, '/v1/responses?x=1')).toEqual([612]);
  });

  test('bytes for a token, and prices', () => {
    const priced = budget(
      'burst: 100000, estimate: { prompt: { bytesPerToken: 3.5 } }, cost: { call: 0.5, input: 0.15, output: 0.6 }',
    );
    // 100 bytes: 29 tokens × 0.15 + 10 × 0.6 + 0.5 = 10.85
    expect(units(priced, { ...chat, max_tokens: 10 }, 100)).toEqual([11]);
  });
});

describe('a default never refuses', () => {
  const small = budget('burst: 1000, maxReservation: 300');
  test('it is cut to what maxReservation leaves', () => {
    expect(units(small, chat, 400)).toEqual([300]);
    expect(units(small, chat, 1200)).toEqual([300]);
  });
  test('a prompt that is too large by itself adds nothing', () => {
    expect(units(small, chat, 1204)).toEqual([301]);
  });
  test('a maximum of the request is never cut', () => {
    expect(units(small, { ...chat, max_tokens: 900 }, 400)).toEqual([1000]);
  });
  test('the plan scales what is left', () => {
    expect(units(small, chat, 400, { numerator: 1, denominator: 2 })).toEqual([150]);
    expect(units(small, chat, 400, { numerator: 2, denominator: 1 })).toEqual([600]);
  });

  test('whatever the prices, a prompt that fits is not refused', () => {
    const price = fc.integer({ min: 1, max: 3000 }).map((n) => (n / 1000).toFixed(3));
    fc.assert(
      fc.property(price, price, fc.nat(4000), fc.nat(3), (input, output, bytes, n) => {
        const priced = budget(
          `burst: 1000, maxReservation: 700, cost: { input: ${input}, output: ${output} }`,
        );
        const [prompt] = units(priced, { input: 'embedding' }, bytes);
        const [whole] = units(priced, { ...chat, n }, bytes);
        expect(whole).toBeLessThanOrEqual(Math.max(700, prompt!));
      }),
      { numRuns: 30 },
    );
  });
});

describe('several limits', () => {
  const several = budget(
    'maxReservation: 300, limits: [{ name: tokens, burst: 1000 }, { name: day, burst: 9000, cost: { output: 2 } }, { name: calls, burst: 60, cost: { call: 1 } }]',
  );
  test('each by its own cost', () => {
    expect(units(several, { ...chat, max_tokens: 20 }, 400)).toEqual([120, 40, 1]);
  });
  test('the tightest cuts the default', () => {
    expect(units(several, chat, 400)).toEqual([300, 400, 1]);
  });
  test('fixed speaks of limits without a cost of their own', () => {
    const fixed = budget(
      'estimate: { fixed: 250 }, limits: [{ name: tokens, burst: 1000 }, { name: calls, burst: 60, cost: { call: 1 } }]',
    );
    expect(units(fixed, chat, 400)).toEqual([250, 1]);
  });
});

describe('whatever the body is', () => {
  const bounded = budget('burst: 1000, maxReservation: 300');

  test('what can not be read holds all that one reservation may', () => {
    expect(units(plain, undefined, 400)).toEqual([100_000]);
    expect(units(bounded, undefined, 400)).toEqual([300]);
    expect(units(bounded, undefined, 4000)).toEqual([1000]);
  });

  test('no body has the default completion', () => {
    expect(units(plain, undefined, 0)).toEqual([512]);
  });

  test('a limit on calls is 1 for it', () => {
    const calls = budget('limits: [{ name: calls, burst: 60, cost: { call: 1 } }]');
    expect(units(calls, undefined, 400)).toEqual([1]);
  });

  test.each([Number.NaN, -1, 1e300, Number.POSITIVE_INFINITY, 1.5])(
    'a length of %s is refused by its size, not by an exception',
    (length) => expect(units(plain, chat, length)).toEqual([Number.MAX_SAFE_INTEGER]),
  );

  test('it is a whole number from 1 to 2^53 - 1', () => {
    const budgets = [plain, bounded, budget('burst: 9, cost: { output: 0.001 }')];
    fc.assert(
      fc.property(
        fc.constantFrom(...budgets),
        fc.option(
          fc.dictionary(
            fc.constantFrom('n', 'max_tokens', 'max_completion_tokens', 'input', 'messages'),
            fc.anything(),
          ),
        ),
        fc.oneof(fc.nat(), fc.double()),
        (of, json, bytes) => {
          for (const amount of units(of, json ?? undefined, bytes)) {
            expect(Number.isSafeInteger(amount)).toBe(true);
            expect(amount).toBeGreaterThanOrEqual(1);
          }
        },
      ),
      { numRuns: 500 },
    );
  });
});

test.each([
  [800, { numerator: 1, denominator: 10 }, 80],
  [800, { numerator: 1, denominator: 3 }, 266],
  [5, { numerator: 1, denominator: 10 }, 1],
  [Number.MAX_SAFE_INTEGER, { numerator: 1, denominator: 1 }, Number.MAX_SAFE_INTEGER],
])('%i scaled by %o is %i: rounded down, at least 1', (amount, factor, expected) => {
  expect(scaleUnits(amount, factor)).toBe(expected);
});
