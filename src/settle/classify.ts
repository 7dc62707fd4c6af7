/** What an access-log entry proves about the operation it belongs to: the first row that holds. Pure. */
import type { UsageRules } from '../policy/types.js';
import { OWN_NAMESPACE } from './metadata.js';
import type { Finding, LogEntry } from './types.js';
import type { UsageReading } from './usage.js';

/** The rows that no policy can change; undefined: it was sent, and the policy's rules say how to read it. */
export function classifyUnsent(entry: LogEntry): Finding | undefined {
  if (entry.type !== '' && entry.type !== 'DownstreamEnd') return nothing('not the end');
  // With a reservation it is another's, of a filter that came after ours.
  if (entry.details === 'ext_authz_denied' && !isReserved(entry)) return nothing('own refusal');
  if (entry.upstreamBytesSent <= 0) return { kind: 'settle', usage: undefined, grade: 'neverSent' };
  return undefined;
}

/** The rows of an entry that was sent to a backend. */
export function classifySent(entry: LogEntry, rules: UsageRules, reading: UsageReading): Finding {
  const { usage, whole } = reading;
  if (entry.attempts > 1 && !rules.retriesBeforeSendingOnly) {
    return { kind: 'unknown', least: usage, cause: 'retried' };
  }
  if (whole && (entry.complete || rules.partial === 'trust')) {
    return { kind: 'settle', usage, grade: 'reported' };
  }
  if (usage !== undefined) {
    return { kind: 'unknown', least: usage, cause: whole ? 'broken' : 'incomplete report' };
  }
  if (entry.complete && rules.freeStatuses.includes(entry.status)) {
    return { kind: 'settle', usage: undefined, grade: 'refused' };
  }
  return { kind: 'unknown', least: undefined, cause: causeOf(entry, reading) };
}

function isReserved({ metadata }: LogEntry): boolean {
  const reservation = metadata[OWN_NAMESPACE]?.reservation;
  return reservation !== undefined && reservation !== '';
}

function nothing(cause: string): Finding {
  return { kind: 'nothing', cause };
}

/** Why nobody said how much: for the metric, so that a platform can see what to repair. */
function causeOf(entry: LogEntry, reading: UsageReading): string {
  if (!entry.complete) return 'broken';
  if (reading.invalid.length > 0) return 'invalid report';
  const coding = entry.responseHeaders['content-encoding'] ?? 'identity';
  return coding === 'identity' ? 'no report' : 'compressed';
}
