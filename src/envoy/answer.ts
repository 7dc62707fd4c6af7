/** The answers of a Check, as the README tells clients. Pure. */
import type { LimitView, LineView, Outcome, Receipt } from '../ledger/types.js';
import type { WireMetadata } from '../settle/metadata.js';
import type { Plan, Reject } from './plan.js';
import type { Header, Metadata, Passed, Refused } from './types.js';

/** Whoever waits longer should not hold a connection open for it, and OpenAI's client would not wait at all. */
const WAIT_MS_MAX = 60_000;

const FAMILY = 'x-earmark-';
const RESERVATION = `${FAMILY}reservation`;
const OPERATION = `${FAMILY}operation`;

const NO_RETRY: Header = ['x-should-retry', 'false'];
const JSON_BODY: Header = ['content-type', 'application/json'];

const TYPES: Readonly<Record<number, string>> = {
  400: 'invalid_request_error',
  403: 'permission_error',
  409: 'conflict_error',
  422: 'invalid_request_error',
  429: 'rate_limit_error',
  503: 'overloaded_error',
};

type Limited = Extract<Outcome, { kind: 'limited' }>;

/** What clients must not send on: names of our own family, but for those that the answer sets. */
function removedHeaders(
  headers: Readonly<Record<string, string>>,
  set: readonly Header[],
  plainResponses: boolean,
): string[] {
  const removed: string[] = [];
  for (const name in headers) {
    if (name.startsWith(FAMILY) && !set.some(([ours]) => ours === name)) removed.push(name);
    else if (plainResponses && name === 'accept-encoding') removed.push(name);
  }
  return removed;
}

/** The limit with the least left of its burst. */
function tightest(limits: readonly LimitView[]): LimitView | undefined {
  let found: LimitView | undefined;
  let least = Number.POSITIVE_INFINITY;
  for (const limit of limits) {
    const left = (limit.counters.available - limit.debt) / limit.burst;
    if (left < least) [found, least] = [limit, left];
  }
  return found;
}

function rateHeaders(line: LineView): Header[] {
  const headers: Header[] = [generationHeader(line.generation)];
  const limit = tightest(line.limits);
  if (limit === undefined) return headers;
  headers.push(['x-ratelimit-limit-tokens', String(limit.burst)]);
  headers.push(['x-ratelimit-remaining-tokens', String(limit.counters.available)]);
  if (limit.resetMs >= 0) {
    headers.push(['x-ratelimit-reset-tokens', String(Math.ceil(limit.resetMs / 1000))]);
  }
  return headers;
}

/** OK with a reservation; `line` is undefined where the ledger did not say. */
export function reserved(
  plan: Plan,
  headers: Readonly<Record<string, string>>,
  metadata: WireMetadata,
  line: LineView | undefined,
): Passed {
  const requestHeaders: Header[] = [
    [RESERVATION, String(metadata.reservation)],
    [OPERATION, String(metadata.operation)],
  ];
  return {
    kind: 'ok',
    requestHeaders,
    removed: removedHeaders(headers, requestHeaders, plan.budget.plainResponses),
    // A limit that is not enforced is not told: a client would hold back for it.
    responseHeaders: line === undefined || plan.request.shadow ? [] : rateHeaders(line),
    metadata,
  };
}

/** OK without a reservation. The metadata says so, that the log entry is known to be about none. */
export function passed(
  headers: Readonly<Record<string, string>>,
  metadata: Metadata,
  plainResponses = false,
): Passed {
  const removed = removedHeaders(headers, [], plainResponses);
  const marked = { reservation: '', ...metadata };
  return { kind: 'ok', requestHeaders: [], removed, responseHeaders: [], metadata: marked };
}

function refusal(
  kind: Refused['kind'],
  status: number,
  code: string,
  message: string,
  headers: readonly Header[],
  metadata: Metadata,
): Refused {
  const error = { type: TYPES[status] ?? 'api_error', code, message, param: null };
  const body = JSON.stringify({ type: 'error', error });
  return { kind, status, headers: [JSON_BODY, ...headers], body, metadata };
}

/** Under which policy it was refused: a client's own limiter, or the LLM's, says no such thing. */
function generationHeader(generation: number): Header {
  return [`${FAMILY}generation`, String(generation)];
}

/** 400 and 403: what no ledger could change. */
export function rejected(reject: Reject, generation: number): Refused {
  const { status, code, message, subject, route } = reject;
  const metadata = { generation, subject, route, code };
  return refusal(
    'denied',
    status,
    code,
    message,
    [generationHeader(generation), NO_RETRY],
    metadata,
  );
}

function waitHeaders(waitMs: number | undefined): Header[] {
  if (waitMs === undefined) return [NO_RETRY];
  const ms = Math.max(1, Math.ceil(waitMs));
  const seconds = Math.max(1, Math.ceil(ms / 1000));
  const headers: Header[] = [
    ['retry-after', String(seconds)],
    ['retry-after-ms', String(ms)],
  ];
  return ms > WAIT_MS_MAX ? [...headers, NO_RETRY] : headers;
}

function limitedMessage(plan: Plan, limited: Limited, wait: string): string {
  const { route, unit } = plan.budget;
  const limit = limited.limit === '' ? route : `${route}, limit ${limited.limit}`;
  const { limits } = plan.request.budget.terms;
  // A limit with a cost of its own counts something else, and nobody named that.
  const ofItsOwn = limits.some(({ name, ownCost }) => ownCost && name === limited.limit);
  const units = ofItsOwn ? '' : ` ${unit}${limited.needed === 1 ? '' : 's'}`;
  const needed = `${limited.needed}${units}`;
  switch (limited.by) {
    case 'capacity':
      return `${limit}: ${needed} needed, more than is left now; ${wait}`;
    case 'debt':
      return `${limit}: ${needed} needed, but an earlier overrun must be repaid first; ${wait}`;
    case 'max-reservation':
      return `${limit}: ${needed} needed, more than a single request may reserve; ask for less`;
    case 'frozen':
      return `${limit}: frozen until an operator ends it, or its time is over`;
    case 'closed':
      return `${limit}: closed to new requests`;
    case 'queue':
      return `${limit}: ${needed} needed, and the queue is full; ${wait}`;
  }
}

/** 429. Says nothing of any line but the caller's own. */
export function limited(plan: Plan, outcome: Limited): Refused {
  const { by, limit } = outcome;
  const several = plan.request.budget.terms.limits.length > 1 && limit !== '';
  const limitedBy = several ? `${by}; limit=${limit}` : by;
  const waits = waitHeaders(outcome.waitMs);
  const after = waits.find(([name]) => name === 'retry-after-ms');
  const wait = after ? `enough in ${Number(after[1]) / 1000} s` : 'waiting does not help';
  const { subject, route, budget } = plan.request;
  const generation = generationHeader(budget.generation);
  const headers: Header[] = [[`${FAMILY}limited-by`, limitedBy], generation, ...waits];
  const code = 'rate_limit_exceeded';
  const metadata = { generation: budget.generation, subject, route, limitedBy, code };
  return refusal('denied', 429, code, limitedMessage(plan, outcome, wait), headers, metadata);
}

/** 409: it runs or is done, and is not forwarded again. */
export function duplicate(plan: Plan, receipt: Receipt): Refused {
  const { subject, route, budget } = plan.request;
  const code = 'duplicate_request';
  const message = `a request with this idempotency key was forwarded before: ${receipt.reservation} is ${receipt.state}`;
  const metadata = { generation: budget.generation, subject, route, code };
  return refusal(
    'denied',
    409,
    code,
    message,
    [generationHeader(budget.generation), NO_RETRY],
    metadata,
  );
}

/** 422: the key belongs to another request. */
export function otherDigest(plan: Plan): Refused {
  const { subject, route, budget } = plan.request;
  const code = 'idempotency_key_reused';
  const message =
    'idempotency key: it was used with another request (method, path or body differ); use a new key';
  const metadata = { generation: budget.generation, subject, route, code };
  return refusal(
    'denied',
    422,
    code,
    message,
    [generationHeader(budget.generation), NO_RETRY],
    metadata,
  );
}

/** 503 as an error, so that Envoy's failure_mode_allow decides. `jitter`: 0 to 1. */
export function unavailable(message: string, metadata: Metadata, jitter: number): Refused {
  const ms = 1000 + Math.floor(jitter * 3000);
  const headers: Header[] = [
    ['retry-after', String(Math.ceil(ms / 1000))],
    ['retry-after-ms', String(ms)],
  ];
  return refusal('error', 503, 'unavailable', message, headers, metadata);
}
