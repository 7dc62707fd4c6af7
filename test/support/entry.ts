/** Access-log entries as a test wants them, the rest filled in as Envoy would. */
import type { Usage, UsageRules } from '../../src/policy/types.js';
import type { LogEntry } from '../../src/settle/types.js';

export function logEntry(some: Partial<LogEntry> = {}): LogEntry {
  return {
    type: 'DownstreamEnd',
    startedAt: '',
    requestId: 'request-1',
    method: 'POST',
    path: '/v1/chat/completions',
    upstreamBytesSent: 300,
    attempts: 1,
    complete: true,
    status: 200,
    details: 'via_upstream',
    responseHeaders: {},
    responseTrailers: {},
    metadata: {},
    ...some,
  };
}

/** The defaults of a policy. */
export function usageRules(some: Partial<UsageRules> = {}): UsageRules {
  return {
    from: ['trailers', 'headers', 'metadata'],
    fields: {
      input: 'x-usage-input-tokens',
      output: 'x-usage-output-tokens',
      total: 'x-usage-total-tokens',
      cached: 'x-usage-cached-tokens',
    },
    namespaces: ['llm.usage'],
    partial: 'trust',
    freeStatuses: [400, 401, 403, 404, 405, 409, 413, 415, 422, 429],
    retriesBeforeSendingOnly: false,
    ...some,
  };
}

export function usage(some: Partial<Usage>): Usage {
  const none = {
    input: 0,
    output: 0,
    total: 0,
    cached: 0,
    cacheWritten: 0,
    reasoning: 0,
    audio: 0,
  };
  return { ...none, ...some };
}
