import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { formatProblem, loadPolicy, parsePolicy } from '../../src/policy/parse.js';
import { type Budget, PolicyEvaluationError } from '../../src/policy/types.js';
import { facts } from '../support/facts.js';

const folder = fileURLToPath(new URL('./', import.meta.url));
const read = (name: string): string => readFileSync(`${folder}${name}`, 'utf8');

function parsed(text: string) {
  const { policy, problems } = parsePolicy(text, 'p.yaml');
  expect(problems.map(formatProblem)).toEqual([]);
  return policy!;
}

/** A small document with something more in its only budget. */
function document(more: readonly string[] = [], amount = 'burst: 1000', head = ''): string {
  const lines = ['route: chat', 'subject: request.headers["x-tenant"]', amount, ...more];
  return `schema: admissionBudget.v1\ngeneration: 1\nunmatched: refuse\n${head}budgets:\n  - ${lines.join('\n    ')}\n`;
}

function budget(more: readonly string[] = [], amount?: string, head?: string): Budget {
  return parsed(document(more, amount, head)).budgets[0]!;
}

describe('one broken document for each error, with its message as the first comment', () => {
  const bad = readdirSync(`${folder}bad`);
  test('they are there', () => expect(bad.length).toBeGreaterThan(80));
  test.each(bad)('%s', (name) => {
    const text = read(`bad/${name}`);
    const { policy, problems } = parsePolicy(text, name);
    expect(problems.map((problem) => `# ${formatProblem(problem)}`)).toEqual([text.split('\n')[0]]);
    expect(policy).toBeUndefined();
  });
});

test('all errors at once, each at its place', () => {
  const { problems } = parsePolicy(document(['holdTtl: soon', 'weight: 3'], 'burst: 0'), 'p.yaml');
  expect(problems.map(({ line, column, path }) => `${line}:${column} ${path}`)).toEqual([
    '7:12 budgets[0].burst',
    '8:14 budgets[0].holdTtl',
    '9:13 budgets[0].weight',
  ]);
});

describe('the documents that users are shown', () => {
  test('the whole one', () => {
    const { policy, problems, warnings } = parsePolicy(read('good/policy.yaml'), 'policy.yaml');
    expect(problems).toEqual([]);
    expect(policy).toMatchObject({ generation: 31, unmatched: 'refuse' });
    expect(policy!.budgets[0]!.terms).toEqual({
      limits: [
        {
          name: '',
          burst: 1000,
          refill: { units: 100, everyMs: 1000 },
          maxReservation: 800,
          maxOverdraft: 500,
          executionHardCap: 2000,
          ownCost: false,
        },
      ],
      epochMs: 86_400_000,
      holdTtlMs: 30_000,
      usageDeadlineMs: 600_000,
      retentionMs: 86_400_000,
      onBreach: 'freezeRoute',
      freezeForMs: 0,
    });
    expect(warnings.map(({ path }) => path)).toEqual(['budgets[0].onBreach']);
  });

  test('the small one has the defaults that the whole one shows', () => {
    const small = parsed(read('good/policy-small.yaml')).budgets[0]!;
    const whole = parsed(read('good/policy.yaml')).budgets[0]!;
    expect(small.usage).toEqual(whole.usage);
    expect(small.terms).toEqual({
      ...whole.terms,
      limits: [
        {
          name: '',
          burst: 60_000,
          refill: { units: 60_000, everyMs: 60_000 },
          maxReservation: 60_000,
          maxOverdraft: null,
          executionHardCap: null,
          ownCost: false,
        },
      ],
    });
    const said = ({ region, unit, startedBy, settledAgain, plainResponses, oversize }: Budget) => ({
      region,
      unit,
      startedBy,
      settledAgain,
      plainResponses,
      oversize,
    });
    expect(said(small)).toEqual(said(whole));
    expect(said(small)).toEqual({
      region: '',
      unit: 'token',
      startedBy: 'gateway',
      settledAgain: 'refuse',
      plainResponses: true,
      oversize: 'refuse',
    });
    expect(small.match(facts())).toBe(true);
    expect(small.key(facts({ headers: { 'idempotency-key': 'k' } }))).toBe('k');
    expect(small.factor(facts())).toEqual({ numerator: 1, denominator: 1 });
  });
});

describe('content', () => {
  const whole = read('good/policy.yaml');
  const content = parsed(whole).content;

  test('comments, order of keys, units of time and written-out defaults do not matter', () => {
    const base = parsed(document(['refill: { units: 100, every: 1s }', 'holdTtl: 60s'])).content;
    const same = document([
      'priority: 0   # a comment',
      'holdTtl: 1m',
      'cost: { output: 1.0, input: "1" }',
      'maxReservation: 1000',
      'maxOverdraft: none',
      'refill: { every: 1000ms, units: 100 }',
      'limits: []',
      'epoch: 1d',
    ]);
    expect(parsed(same).content).toBe(base);
    const plans = (list: string) =>
      parsed(document([], 'burst: 1', `plans: { ${list} }\n`)).content;
    expect(plans('free: 0.1, standard: 1')).toBe(plans('standard: 1.0, free: 0.10'));
  });

  test.each([
    ['generation: 31', 'generation: 32'],
    ['unmatched: refuse', 'unmatched: allow'],
    ['free: 0.1', 'free: 0.2'],
    ['input: 0.15', 'input: 0.16'],
    ['context.route == "chat.generate"', 'context.route == "chat"'],
    ['request.headers["x-tenant"]', 'request.headers["x-user"]'],
    ['\'"standard"\'', '\'"free"\''],
    ['request.headers["idempotency-key"]', 'request.headers["x-key"]'],
    ['region: ""', 'region: eu'],
    ['unit: token', 'unit: usd'],
    ['burst: 1000', 'burst: 1001'],
    ['units: 100, every: 1s }', 'units: 101, every: 1s }'],
    ['units: 100, every: 1s }', 'units: 100, every: 2s }'],
    ['units: 100, every: 1s }', 'units: 100, window: 1m }'],
    ['epoch: 24h', 'epoch: 25h'],
    ['{ input: 1, output: 1 }', '{ input: 1, output: 2 }'],
    ['bytesPerToken: 4', 'bytesPerToken: 3'],
    ['default: 512', 'default: 511'],
    ['[trailers, headers, metadata]', '[headers, trailers, metadata]'],
    ['input: x-usage-input-tokens', 'input: x-input'],
    ['namespaces: [llm.usage]', 'namespaces: [llm]'],
    ['partial: trust ', 'partial: atLeast '],
    ['422, 429]', '422]'],
    ['retriesBeforeSendingOnly: false', 'retriesBeforeSendingOnly: true'],
    ['maxReservation: 800', 'maxReservation: 799'],
    ['holdTtl: 30s', 'holdTtl: 31s'],
    ['usageDeadline: 10m', 'usageDeadline: 11m'],
    ['receiptRetention: 24h', 'receiptRetention: 23h'],
    ['maxOverdraft: 500', 'maxOverdraft: 0'],
    ['executionHardCap: 2000', 'executionHardCap: none'],
    ['onBreach: freezeRoute', 'onBreach: freezeLine'],
    ['freezeFor: operator', 'freezeFor: 15m'],
    ['startedBy: gateway', 'startedBy: executor'],
    ['settledAgain: refuse', 'settledAgain: reserve'],
    ['plainResponses: true', 'plainResponses: false'],
  ])('%s matters', (from, to) => {
    expect(whole).toContain(from);
    expect(parsed(whole.replace(from, to)).content).not.toBe(content);
  });

  test('the canonical form is a document of its own, with the same content', () => {
    for (const text of [
      whole,
      read('good/policy-small.yaml'),
      severalLimits,
      document(['estimate: { fixed: 5 }']),
    ]) {
      const policy = parsed(text);
      expect(parsed(policy.canonical).canonical).toBe(policy.canonical);
      expect(loadPolicy(policy.canonical, policy.content)).toMatchObject({
        content: policy.content,
      });
    }
  });

  test('a stored document that was changed is refused', () => {
    const { canonical } = parsed(whole);
    expect(() => loadPolicy(canonical.replace('1000', '9000'), content)).toThrow(
      /not what was published/,
    );
  });

  test('a parsed policy can not be changed', () => {
    const policy = parsed(whole);
    expect(() => Object.assign(policy.budgets[0]!.terms.limits[0]!, { burst: 5 })).toThrow();
    expect(() => Object.assign(policy, { generation: 5 })).toThrow();
  });
});

const severalLimits = document(
  [
    'maxReservation: 50000',
    'maxOverdraft: 7',
    'executionHardCap: 60000',
    'limits:',
    '  - { name: minute, burst: 60000, refill: { units: 60000, every: 1m } }',
    '  - { name: day, burst: 5000000, refill: { units: 5000000, window: 1d } }',
    '  - { name: calls, burst: 60, refill: { units: 60, every: 1m }, cost: { call: 1 } }',
  ],
  'region: eu',
);

describe('limits', () => {
  test('caps go to the limits without a cost of their own', () => {
    const { limits } = parsed(severalLimits).budgets[0]!.terms;
    expect(limits).toEqual([
      {
        name: 'minute',
        burst: 60_000,
        refill: { units: 60_000, everyMs: 60_000 },
        maxReservation: 50_000,
        maxOverdraft: 7,
        executionHardCap: 60_000,
        ownCost: false,
      },
      {
        name: 'day',
        burst: 5_000_000,
        refill: { units: 5_000_000, window: 'day' },
        maxReservation: 50_000,
        maxOverdraft: 7,
        executionHardCap: 60_000,
        ownCost: false,
      },
      {
        name: 'calls',
        burst: 60,
        refill: { units: 60, everyMs: 60_000 },
        maxReservation: 60,
        maxOverdraft: null,
        executionHardCap: null,
        ownCost: true,
      },
    ]);
  });

  test('without maxReservation each limit has its burst', () => {
    const { terms } = budget(
      ['limits: [{ name: a, burst: 5 }, { name: b, burst: 9 }]'],
      'unit: token',
    );
    expect(terms.limits.map((limit) => limit.maxReservation)).toEqual([5, 9]);
  });

  test.each([
    ['1m', 'minute'],
    ['1h', 'hour'],
    ['1d', 'day'],
    ['1w', 'week'],
    ['month', 'month'],
  ])('window %s', (written, window) => {
    const { terms } = budget([`refill: { units: 5, window: ${written} }`]);
    expect(terms.limits[0]!.refill).toEqual({ units: 5, window });
  });

  test('the largest refill that can be computed exactly is accepted', () => {
    // (2^53 - 1) = 6361 × 69431 × 20394401: units × every + every is exactly 2^53 - 1.
    const units = 69431 * 20394401 - 1;
    const { terms } = budget([`refill: { units: ${units}, every: 6361ms }`, 'epoch: 1s']);
    expect(terms.limits[0]!.refill).toEqual({ units, everyMs: 6361 });
    const { problems } = parsePolicy(
      document([`refill: { units: ${units + 1}, every: 6361ms }`, 'epoch: 1s']),
      '',
    );
    expect(problems).toHaveLength(1);
  });

  test.each([
    ['{ units: 5, every: 100ms }', 0],
    ['{ units: 6, every: 100ms }', 1],
    ['{ units: 5, every: 99ms }', 1],
  ])('what a book counts in an epoch is exact: %s', (refill, count) => {
    const burst = `burst: ${Number.MAX_SAFE_INTEGER - 50}`;
    const { problems } = parsePolicy(document([`refill: ${refill}`, 'epoch: 1s'], burst), '');
    expect(problems).toHaveLength(count);
  });
});

describe('plans', () => {
  const plans = 'plans: { free: 0.1, third: 0.3333, enterprise: 10 }\n';
  const tiered = budget(['plan: request.headers["x-plan"]'], 'burst: 1000', plans);

  test.each([
    ['free', { numerator: 1, denominator: 10 }],
    ['third', { numerator: 3333, denominator: 10_000 }],
    ['enterprise', { numerator: 10, denominator: 1 }],
  ])('%s is an exact fraction in lowest terms', (plan, factor) => {
    expect(tiered.factor(facts({ headers: { 'x-plan': plan } }))).toEqual(factor);
  });

  test('an unknown plan refuses the request and names the plans', () => {
    const ask = () => tiered.factor(facts({ headers: { 'x-plan': 'gold' } }));
    expect(ask).toThrow(PolicyEvaluationError);
    expect(ask).toThrow(/no plan "gold": plans are free, third, enterprise/);
  });

  test('names of the language are no plans', () => {
    expect(() => tiered.factor(facts({ headers: { 'x-plan': 'constructor' } }))).toThrow(/no plan/);
  });
});

describe('an expression that fails', () => {
  const failing = budget(
    ['match: metadata.a.b > 5', 'key: metadata.a.b', 'plan: string(1 / request.maxTokens)'],
    'burst: 1000',
    'plans: { "1": 1 }\n',
  );
  const wrong = facts({ metadata: { a: { b: true } } });

  test.each(['match', 'key', 'factor'] as const)('%s names budget and field', (name) => {
    try {
      failing[name](wrong);
      expect.unreachable();
    } catch (error) {
      expect(error).toBeInstanceOf(PolicyEvaluationError);
      expect(error).toMatchObject({ route: 'chat', field: name === 'factor' ? 'plan' : name });
    }
  });
});

describe('warnings', () => {
  const warnings = (text: string) => parsePolicy(text, '').warnings.map(({ path }) => path);

  test('a completion default above maxReservation', () => {
    expect(warnings(document(['maxReservation: 512']))).toEqual([]);
    expect(warnings(document(['maxReservation: 511']))).toEqual(['budgets[0].estimate']);
    expect(warnings(document(['maxReservation: 800', 'cost: { output: 1.7 }']))).toEqual([
      'budgets[0].estimate',
    ]);
  });

  test('a fixed estimate that a plan can not hold', () => {
    const plans = 'plans: { standard: 1, free: 0.5, tiny: 0.1 }\n';
    const fixed = (units: number) =>
      document([`estimate: { fixed: ${units} }`], 'burst: 1000', plans);
    expect(warnings(fixed(100))).toEqual([]);
    expect(warnings(fixed(501))).toEqual(['budgets[0].estimate', 'budgets[0].estimate']);
  });

  test('freezeRoute, where there is something that breaches', () => {
    expect(warnings(document(['onBreach: freezeRoute']))).toEqual([]);
    expect(warnings(document(['maxOverdraft: 5']))).toEqual(['budgets[0].onBreach']);
    expect(warnings(document(['maxOverdraft: 5', 'onBreach: freezeLine']))).toEqual([]);
  });
});
