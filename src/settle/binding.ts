/** Which operation an access-log entry is about: our signed metadata says, or the Check that its request ID finds. */
import { methodPath, requestName } from '../core/digest.js';
import type { LedgerApi } from '../ledger/api.js';
import type { EvidenceRef } from '../ledger/types.js';
import type { Budget, Policy } from '../policy/types.js';
import type { MacKey } from './mac-key.js';
import { OWN_NAMESPACE, readMetadata } from './metadata.js';
import type { LogEntry } from './types.js';

export interface Bound {
  readonly kind: 'bound';
  readonly ref: EvidenceRef;
  /** 0: not known, and not needed for what was never sent. */
  readonly generation: number;
  readonly route: string;
  /** The reserve may still be on its way to the ledger. */
  readonly unreserved: boolean;
}

export type Binding =
  | Bound
  /** About no operation, for ever. */
  | { readonly kind: 'none'; readonly cause: string }
  /** Nothing is found yet. */
  | { readonly kind: 'search' };

type Finder = Pick<LedgerApi, 'findCheck' | 'get'>;

/** `unsent`: the entry shows that nothing was sent, so its policy doesn't matter. */
export async function bind(
  ledger: Finder,
  macKey: MacKey,
  entry: LogEntry,
  unsent: boolean,
): Promise<Binding> {
  const raw = entry.metadata[OWN_NAMESPACE];
  if (raw?.reservation === undefined) return lookUp(ledger, entry, unsent);
  const own = readMetadata(await macKey.get(), raw);
  if (own === 'none') return { kind: 'none', cause: 'no reservation' };
  if (own === 'forged') return { kind: 'none', cause: 'forged' };
  const { reservation, operation, subject, route, shadow, reservedAt, unreserved } = own;
  const metadata = { subject, route, shadow, reservedAt, unreserved };
  const ref = { reservation, operation, metadata };
  return { kind: 'bound', ref, generation: own.generation, route, unreserved };
}

/** An answer that Envoy did not get leaves no metadata behind: only the request ID tells. */
async function lookUp(ledger: Finder, entry: LogEntry, unsent: boolean): Promise<Binding> {
  if (entry.requestId === '') return { kind: 'none', cause: 'no request ID' };
  const name = requestName(entry.requestId, entry.startedAt);
  const ref = await ledger.findCheck(name, methodPath(entry.method, entry.path));
  if (ref === undefined) return { kind: 'search' };
  if (unsent) return { kind: 'bound', ref, generation: 0, route: '', unreserved: true };
  const found = await ledger.get(ref.reservation);
  if (found === undefined) return { kind: 'search' };
  const { generation, route } = found.receipt;
  return { kind: 'bound', ref, generation, route, unreserved: true };
}

/** A line that the ledger forgot opens under the budget; the plan's factor is in no metadata, so it opens with 1. */
export function withBudget(ref: EvidenceRef, policy: Policy, budget: Budget): EvidenceRef {
  const { reservation, operation, metadata } = ref;
  if (metadata === undefined) return ref;
  const { subject, route, shadow, reservedAt, unreserved } = metadata;
  const { generation, content } = policy;
  const factor = { numerator: 1, denominator: 1 };
  const known = { generation, content, terms: budget.terms, factor };
  return {
    reservation,
    operation,
    metadata: { subject, route, shadow, reservedAt, unreserved, budget: known },
  };
}
