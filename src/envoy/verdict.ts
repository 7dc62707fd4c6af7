/** What a reply of the ledger means for the request that asked. Pure. */
import type { Outcome, Receipt } from '../ledger/types.js';
import type { Plan } from './plan.js';

export type Verdict =
  | { readonly kind: 'forward'; readonly receipt: Receipt }
  | { readonly kind: 'limited'; readonly outcome: Extract<Outcome, { kind: 'limited' }> }
  | { readonly kind: 'duplicate'; readonly receipt: Receipt }
  | { readonly kind: 'otherDigest'; readonly shadow: boolean }
  /** The policy that spoke is older than the line's. */
  | { readonly kind: 'stale' }
  /** It can't be said now, and a repeat may do better. */
  | { readonly kind: 'busy'; readonly message: string }
  /** The ledger refuses what no correct gateway asks. */
  | { readonly kind: 'broken'; readonly message: string };

const real = (receipt: Receipt): boolean =>
  receipt.evidence !== '' && receipt.evidence !== 'presumed';

function settled(receipt: Receipt): boolean {
  return receipt.state === 'SETTLED' || receipt.state === 'SETTLED_WITH_DEBT';
}

function unused(receipt: Receipt): boolean {
  if (receipt.state === 'RELEASED' || receipt.state === 'EXPIRED') return true;
  return settled(receipt) && real(receipt) && (receipt.actual ?? []).every((units) => units === 0);
}

function forwards(plan: Plan, receipt: Receipt, now: number): boolean {
  if (plan.budget.startedBy === 'executor') {
    return receipt.state === 'RESERVED' && now < receipt.expiresAt;
  }
  return receipt.state === 'STARTED' && receipt.operation === plan.request.operation;
}

/**
 * The attempt to ask for next, where the one asked for has ended without execution; the script checks that it has.
 * Undefined: the reply stands.
 */
export function nextAttempt(outcome: Outcome, attempt: number, again: boolean): number | undefined {
  if (outcome.kind !== 'same' || outcome.receipt === undefined) return undefined;
  const { receipt } = outcome;
  if (receipt.latest > attempt) return receipt.latest;
  const mayFollow = unused(receipt) || (again && settled(receipt) && real(receipt));
  return mayFollow ? attempt + 1 : undefined;
}

function verdictOfKnown(plan: Plan, receipt: Receipt | undefined, now: number): Verdict {
  if (receipt === undefined) return { kind: 'broken', message: 'known, but without a receipt' };
  if (forwards(plan, receipt, now)) return { kind: 'forward', receipt };
  if (receipt.state === 'RESERVED' || receipt.state === 'EXPIRING') return EXPIRING;
  if (unused(receipt)) return RACED;
  return { kind: 'duplicate', receipt };
}

const EXPIRING: Verdict = { kind: 'busy', message: 'an earlier attempt is about to expire' };
const RACED: Verdict = { kind: 'busy', message: 'other attempts of this key are under way' };

export function verdictOf(plan: Plan, outcome: Outcome): Verdict {
  switch (outcome.kind) {
    case 'moved':
      return { kind: 'forward', receipt: outcome.receipt };
    case 'same':
      return verdictOfKnown(plan, outcome.receipt, outcome.line.now);
    case 'limited':
      return { kind: 'limited', outcome };
    case 'refused':
      if (outcome.why === 'digest') {
        return { kind: 'otherDigest', shadow: outcome.receipt?.shadow ?? plan.request.shadow };
      }
      if (outcome.why === 'stale') return { kind: 'stale' };
      if (outcome.why === 'expired') return EXPIRING;
      if (outcome.why === 'attempt') return RACED;
      return { kind: 'broken', message: `${outcome.why}: ${outcome.detail}` };
  }
}
