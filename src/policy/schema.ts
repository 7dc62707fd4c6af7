/** What documents may say: names, choices and defaults (the contract's policy.yaml shows each of them). */

export const POLICY_KEYS = ['schema', 'generation', 'unmatched', 'plans', 'prices', 'budgets'];

export const BUDGET_KEYS = [
  'route',
  'match',
  'subject',
  'plan',
  'key',
  'retry',
  'region',
  'unit',
  'burst',
  'refill',
  'limits',
  'epoch',
  'cost',
  'estimate',
  'usage',
  'maxReservation',
  'oversize',
  'holdTtl',
  'usageDeadline',
  'receiptRetention',
  'maxOverdraft',
  'executionHardCap',
  'onBreach',
  'freezeFor',
  'startedBy',
  'settledAgain',
  'plainResponses',
  'priority',
  'weight',
  'emergency',
];

export const LIMIT_KEYS = ['name', 'burst', 'refill', 'cost'];
export const LIMITS_MAX = 8;
export const BUDGETS_MAX = 1000;

export const USAGE_KEYS = [
  'from',
  'fields',
  'namespaces',
  'partial',
  'freeStatuses',
  'retriesBeforeSendingOnly',
  'unreported',
  'lookup',
];

export const USAGE_FIELDS = {
  input: 'x-usage-input-tokens',
  output: 'x-usage-output-tokens',
  total: 'x-usage-total-tokens',
  cached: 'x-usage-cached-tokens',
} as const;

export const FREE_STATUSES = [400, 401, 403, 404, 405, 409, 413, 415, 422, 429];

/** Windows as documents write them; a month has no fixed length, so it has a name. */
export const WINDOWS = {
  '1m': 'minute',
  '1h': 'hour',
  '1d': 'day',
  '1w': 'week',
  month: 'month',
} as const;

export const DEFAULT_PLAN = '"standard"';
export const DEFAULT_KEY = 'request.headers["idempotency-key"]';
