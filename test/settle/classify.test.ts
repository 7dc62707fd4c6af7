/** The table of evidence: the first row that holds. */
import { describe, expect, test } from 'vitest';
import type { UsageRules } from '../../src/policy/types.js';
import { classifySent, classifyUnsent } from '../../src/settle/classify.js';
import type { Finding, LogEntry } from '../../src/settle/types.js';
import { readUsage } from '../../src/settle/usage.js';
import { logEntry, usage, usageRules } from '../support/entry.js';

function classify(some: Partial<LogEntry>, rules: Partial<UsageRules> = {}): Finding {
  const entry = logEntry(some);
  const all = usageRules(rules);
  return classifyUnsent(entry) ?? classifySent(entry, all, readUsage(entry, all));
}

const report = { metadata: { 'llm.usage': { total_tokens: 33 } } };
const used = usage({ output: 33, total: 33 });
const unsent = { upstreamBytesSent: 0, complete: false };

describe('no evidence', () => {
  test.each(['4', '5', '9', 'DownstreamStart'])('type %s', (type) => {
    expect(classify({ ...unsent, type })).toEqual({ kind: 'nothing', cause: 'not the end' });
  });
  test('an entry without a type is an end', () => {
    expect(classify({ ...unsent, type: '' }).kind).toBe('settle');
  });
  test('our own refusal', () => {
    const refused = { ...unsent, details: 'ext_authz_denied', status: 429 };
    expect(classify(refused)).toEqual({ kind: 'nothing', cause: 'own refusal' });
  });
  test('a refusal by another filter, after ours let it through: never sent', () => {
    const ours = { 'envoy.filters.http.ext_authz': { reservation: 'rl-a-b' } };
    const refused = { ...unsent, details: 'ext_authz_denied', status: 403, metadata: ours };
    expect(classify(refused)).toMatchObject({ kind: 'settle', grade: 'neverSent' });
  });
});

describe('rows, in their order', () => {
  const neverSent = { kind: 'settle', usage: undefined, grade: 'neverSent' };
  test('nothing was sent, whatever else the entry says', () => {
    expect(classify(unsent)).toEqual(neverSent);
    expect(classify({ ...unsent, attempts: 3, ...report, complete: true })).toEqual(neverSent);
  });

  test('several attempts', () => {
    const retried = { kind: 'unknown', cause: 'retried' };
    expect(classify({ attempts: 2, ...report })).toEqual({ ...retried, least: used });
    expect(classify({ attempts: 2, status: 429 })).toEqual({ ...retried, least: undefined });
    const rules = { retriesBeforeSendingOnly: true };
    expect(classify({ attempts: 2, ...report }, rules)).toMatchObject({ grade: 'reported' });
  });

  const reported = { kind: 'settle', usage: used, grade: 'reported' };
  test('a complete response with a report', () => {
    expect(classify(report)).toEqual(reported);
    expect(classify({ ...report, status: 500 })).toEqual(reported);
    expect(classify({ ...report, status: 429 })).toEqual(reported);
    expect(classify(report, { partial: 'atLeast' })).toEqual(reported);
  });

  test('a report of a stream that broke after it', () => {
    const broken = { ...report, complete: false };
    expect(classify(broken)).toEqual(reported);
    const least = { kind: 'unknown', least: used, cause: 'broken' };
    expect(classify(broken, { partial: 'atLeast' })).toEqual(least);
  });

  test('a report of a part is the least', () => {
    const part = { metadata: { 'llm.usage': { prompt_tokens: 12 } } };
    const least = usage({ input: 12, total: 12 });
    const finding = { kind: 'unknown', least, cause: 'incomplete report' };
    expect(classify(part)).toEqual(finding);
    expect(classify({ ...part, status: 429 })).toEqual(finding);
  });

  test('a free status of a complete response without a report', () => {
    const refused = { kind: 'settle', usage: undefined, grade: 'refused' };
    expect(classify({ status: 429 })).toEqual(refused);
    expect(classify({ status: 429 }, { freeStatuses: [400] }).kind).toBe('unknown');
    expect(classify({ status: 429, complete: false }).kind).toBe('unknown');
  });

  test.each([
    [{ status: 200 }, 'no report'],
    [{ status: 500 }, 'no report'],
    [{ status: 200, responseHeaders: { 'content-encoding': 'gzip' } }, 'compressed'],
    [{ status: 200, responseHeaders: { 'content-encoding': 'identity' } }, 'no report'],
    [{ status: 200, metadata: { 'llm.usage': { total_tokens: 'x' } } }, 'invalid report'],
    [{ status: 200, complete: false }, 'broken'],
    [{ status: 503, complete: false, details: 'response_timeout' }, 'broken'],
  ])('%j is unknown: %s', (some, cause) => {
    expect(classify(some)).toEqual({ kind: 'unknown', least: undefined, cause });
  });
});
