/** Reports of use: where they are looked for, and which values are one. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { readUsage } from '../../src/settle/usage.js';
import { logEntry, usage, usageRules } from '../support/entry.js';

const metadata = (raw: Record<string, unknown>) => logEntry({ metadata: { 'llm.usage': raw } });
const read = (raw: Record<string, unknown>) => readUsage(metadata(raw), usageRules());

describe('a value that is a count', () => {
  test.each([
    ['a number', 33, 33],
    ['a number as text', '33', 33],
    ['with spaces around it', ' 33 ', 33],
    ['with zeros before it', '0033', 33],
    ['zero', 0, 0],
    ['minus zero', -0, 0],
    ['the largest', Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER],
    ['the largest as text', '9007199254740991', Number.MAX_SAFE_INTEGER],
  ])('%s', (_what, value, total) => {
    const reading = read({ total_tokens: value });
    expect(reading).toEqual({ usage: usage({ output: total, total }), whole: true, invalid: [] });
  });
});

describe('a value that is there and is no count: no report, and told', () => {
  test.each([
    ['negative', -1],
    ['negative as text', '-1'],
    ['a fraction', 0.5],
    ['a fraction as text', '33.0'],
    ['not a number', Number.NaN],
    ['not a number as text', 'NaN'],
    ['endless', Number.POSITIVE_INFINITY],
    ['1e308', 1e308],
    ['1e3 as text', '1e3'],
    ['hexadecimal', '0x21'],
    ['2^53', 2 ** 53],
    ['2^53 as text', '9007199254740992'],
    ['two values', '11,22'],
    ['a space inside', '3 3'],
    ['empty', ''],
    ['a sign', '+33'],
    ['true', true],
    ['a list', [33]],
    ['an object', { n: 33 }],
  ])('%s', (_what, value) => {
    expect(read({ total_tokens: value })).toEqual({
      ...{ usage: undefined, whole: false },
      invalid: ['total_tokens'],
    });
    // The same value does not spoil what else is reported.
    expect(read({ total_tokens: value, prompt_tokens: 11, completion_tokens: 22 })).toEqual({
      usage: usage({ input: 11, output: 22, total: 33 }),
      whole: true,
      invalid: ['total_tokens'],
    });
  });

  test('input and output that together are no integer', () => {
    const reading = read({ prompt_tokens: Number.MAX_SAFE_INTEGER, completion_tokens: 1 });
    expect(reading).toEqual({ usage: undefined, whole: false, invalid: ['total'] });
  });
});

describe('null and missing are no report, never 0', () => {
  test.each([
    ['nothing at all', {}],
    ['nulls', { prompt_tokens: null, completion_tokens: null, total_tokens: null }],
    ['only the state of a stream that ended without', { usage_state: 'error' }],
    ['only details', { cached_tokens: 5, prompt_tokens_details: { audio_tokens: 1 } }],
  ])('%s', (_what, raw) => {
    expect(read(raw)).toEqual({ usage: undefined, whole: false, invalid: [] });
  });

  test.each([
    ['input', { prompt_tokens: 1200 }, { input: 1200, total: 1200 }],
    ['output', { completion_tokens: 30, prompt_tokens: null }, { output: 30, total: 30 }],
  ])('%s alone is the least, not the whole', (_what, raw, least) => {
    expect(read(raw)).toEqual({ usage: usage(least), whole: false, invalid: [] });
  });
});

describe('shapes', () => {
  test('OpenAI chat completions with details', () => {
    const reading = read({
      prompt_tokens: 1000,
      completion_tokens: 100,
      total_tokens: 1100,
      prompt_tokens_details: { cached_tokens: 900, audio_tokens: 3 },
      completion_tokens_details: { reasoning_tokens: 64, audio_tokens: 4 },
    });
    const parts = { input: 1000, output: 100, total: 1100, cached: 900, reasoning: 64, audio: 7 };
    expect(reading.usage).toEqual(usage(parts));
  });

  test('OpenAI responses', () => {
    const details = { output_tokens_details: { reasoning_tokens: 64 } };
    const reading = read({ input_tokens: 12, output_tokens: 80, total_tokens: 92, ...details });
    expect(reading.usage).toEqual(usage({ input: 12, output: 80, total: 92, reasoning: 64 }));
  });

  test('details that Envoy wrote flat', () => {
    const flat = { cached_tokens: 5, reasoning_tokens: 6, audio_tokens: 7 };
    const reading = read({ prompt_tokens: 10, completion_tokens: 20, ...flat });
    const parts = { input: 10, output: 20, total: 30, cached: 5, reasoning: 6, audio: 7 };
    expect(reading.usage).toEqual(usage(parts));
  });

  test('caches that stand beside the input are input too', () => {
    const caches = { cache_read_input_tokens: 900, cache_creation_input_tokens: 50 };
    const reading = read({ input_tokens: 100, output_tokens: 10, ...caches });
    const parts = { input: 1050, output: 10, total: 1060, cached: 900, cacheWritten: 50 };
    expect(reading.usage).toEqual(usage(parts));
  });

  const gemini = {
    ...{ promptTokenCount: 1000, toolUsePromptTokenCount: 50, cachedContentTokenCount: 900 },
    ...{ candidatesTokenCount: 36, thoughtsTokenCount: 64, totalTokenCount: 1150 },
  };

  test('Gemini: thoughts are output, what tools brought is input', () => {
    const parts = { input: 1050, output: 100, total: 1150, cached: 900, reasoning: 64 };
    expect(read(gemini)).toEqual({ usage: usage(parts), whole: true, invalid: [] });
  });

  test('Gemini leaves out a count of 0', () => {
    const { usage: found, whole } = read({ promptTokenCount: 7, totalTokenCount: 7 });
    expect([found, whole]).toEqual([usage({ input: 7, total: 7 }), true]);
  });

  test('Gemini without its total is the least, not the whole', () => {
    const { totalTokenCount: _, ...rest } = gemini;
    expect(read(rest)).toMatchObject({ usage: { total: 1150 }, whole: false });
  });

  test('Gemini with a count that is none', () => {
    const reading = read({ ...gemini, thoughtsTokenCount: -1 });
    expect(reading).toMatchObject({
      whole: true,
      usage: { input: 1050, output: 100, total: 1150 },
    });
    expect(new Set(reading.invalid)).toEqual(new Set(['thoughtsTokenCount']));
  });

  test('under the names of two vendors it counts once', () => {
    const both = { ...gemini, prompt_tokens: 1050, completion_tokens: 100, total_tokens: 1150 };
    expect(read(both).usage).toMatchObject({ input: 1050, output: 100, total: 1150 });
  });

  test('equal work costs the same under each protocol', () => {
    const parts = usage({ input: 1000, output: 100, total: 1100, cached: 900, reasoning: 64 });
    const details = { reasoning_tokens: 64, cached_tokens: 900 };
    const reports = [
      { prompt_tokens: 1000, completion_tokens: 100, total_tokens: 1100, ...details },
      { input_tokens: 1000, output_tokens: 100, total_tokens: 1100, ...details },
      {
        ...{ promptTokenCount: 1000, candidatesTokenCount: 36, thoughtsTokenCount: 64 },
        ...{ cachedContentTokenCount: 900, totalTokenCount: 1100 },
      },
    ];
    for (const report of reports) expect(read(report).usage).toEqual(parts);
    const anthropic = { input_tokens: 100, cache_read_input_tokens: 900, output_tokens: 100 };
    // It doesn't say what of the output was reasoning.
    expect(read(anthropic).usage).toEqual({ ...parts, reasoning: 0 });
  });

  test('what a total has above input and output counts as output', () => {
    const reading = read({ prompt_tokens: 10, completion_tokens: 20, total_tokens: 50 });
    expect(reading.usage).toEqual(usage({ input: 10, output: 40, total: 50 }));
  });

  test('a total below input and output is corrected', () => {
    const reading = read({ prompt_tokens: 10, completion_tokens: 20, total_tokens: 5 });
    expect(reading.usage).toEqual(usage({ input: 10, output: 20, total: 30 }));
  });

  test('a detail is never more than what it is a detail of', () => {
    const huge = { cached_tokens: 99, reasoning_tokens: 99, audio_tokens: 99 };
    const reading = read({ prompt_tokens: 10, completion_tokens: 20, ...huge });
    const parts = { input: 10, output: 20, total: 30, cached: 10, reasoning: 20, audio: 30 };
    expect(reading.usage).toEqual(usage(parts));
  });

  test('whatever is reported, the parts agree', () => {
    const count = fc.option(fc.nat(1000));
    const raw = fc.record({
      ...{ prompt_tokens: count, completion_tokens: count, total_tokens: count },
      ...{ cached_tokens: count, reasoning_tokens: count, audio_tokens: count },
      ...{ cache_read_input_tokens: count, cache_creation_input_tokens: count },
    });
    fc.assert(
      fc.property(raw, (any) => {
        const found = read(any).usage;
        if (found === undefined) return;
        expect(found.total).toBe(found.input + found.output);
        expect(found.cached + found.cacheWritten).toBeLessThanOrEqual(found.input);
        expect(found.reasoning).toBeLessThanOrEqual(found.output);
        expect(found.audio).toBeLessThanOrEqual(found.total);
      }),
    );
  });
});

describe('places, in the order of the policy', () => {
  const entry = logEntry({
    responseTrailers: { 'x-usage-total-tokens': '1' },
    responseHeaders: { 'x-usage-total-tokens': '2' },
    metadata: { 'llm.usage': { total_tokens: 3 }, 'other.usage': { total_tokens: 4 } },
  });
  test.each([
    [['trailers', 'headers', 'metadata'], ['llm.usage'], 1],
    [['headers', 'metadata'], ['llm.usage'], 2],
    [['metadata', 'trailers'], ['llm.usage', 'other.usage'], 3],
    [['metadata'], ['missing', 'other.usage'], 4],
  ] as const)('%j, %j', (from, namespaces, total) => {
    expect(readUsage(entry, usageRules({ from, namespaces })).usage?.total).toBe(total);
  });

  test('a place without a report is passed over, one with a part of it too', () => {
    const partly = { responseTrailers: { 'x-usage-input-tokens': '5' }, responseHeaders: {} };
    const whole = { metadata: { 'llm.usage': { total_tokens: 9 } } };
    expect(readUsage(logEntry({ ...partly, ...whole }), usageRules()).usage?.total).toBe(9);
    expect(readUsage(logEntry(partly), usageRules())).toMatchObject({
      usage: { input: 5 },
      whole: false,
    });
  });

  test('where the policy names only the output, the output is the whole', () => {
    const rules = usageRules({ fields: { output: 'X-Out' } });
    const reading = readUsage(logEntry({ responseHeaders: { 'x-out': '7' } }), rules);
    expect(reading).toMatchObject({ usage: { output: 7, total: 7 }, whole: true });
  });
});
