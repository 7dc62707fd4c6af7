/** One line's least request, for tests that need no more. */

import { newOperation } from '../../src/core/ids.js';
import type { AdmitRequest, Terms } from '../../src/ledger/types.js';

export const terms: Terms = {
  limits: [
    {
      name: '',
      burst: 1000,
      refill: null,
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
  onBreach: 'freezeLine',
  freezeForMs: 0,
};

export function request(key: string, units: number): AdmitRequest {
  return {
    subject: 'acme',
    route: 'chat',
    key,
    attempt: 1,
    digest: key.padEnd(43, 'x'),
    units: [units],
    budget: {
      generation: 1,
      content: 'c',
      terms,
      factor: { numerator: 1, denominator: 1 },
    },
    shadow: false,
    closed: false,
    routeFrozenUntil: 0,
    again: false,
    operation: newOperation(),
  };
}
