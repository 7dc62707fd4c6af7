/** Evidence: what an access-log entry says about an operation. */
import type { EvidenceMetadata, Grade } from '../ledger/types.js';
import type { Usage } from '../policy/types.js';

/** The part of an access-log entry that is looked at, whatever brought it (gRPC stream or file). */
export interface LogEntry {
  /** '' where the entry has none; only '' and 'DownstreamEnd' are evidence. */
  readonly type: string;
  /** When the request began, in Envoy's bytes: the same as in its Check. '' where the entry has none. */
  readonly startedAt: string;
  readonly requestId: string;
  readonly method: string;
  /** original_path where the entry has one. */
  readonly path: string;
  readonly upstreamBytesSent: number;
  readonly attempts: number;
  /** time_to_last_upstream_rx_byte is present: the response was complete. */
  readonly complete: boolean;
  readonly status: number;
  readonly details: string;
  readonly responseHeaders: Readonly<Record<string, string>>;
  readonly responseTrailers: Readonly<Record<string, string>>;
  /** filter_metadata by namespace, as plain values. */
  readonly metadata: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
}

/** What the first row that holds says. Usage, not units: the cost is the policy's. */
export type Finding =
  | { readonly kind: 'settle'; readonly usage: Usage | undefined; readonly grade: Grade }
  | { readonly kind: 'unknown'; readonly least: Usage | undefined; readonly cause: string }
  | { readonly kind: 'nothing'; readonly cause: string };

/** Our metadata of an OK or an error_response, as it returned in the entry; the MAC is checked elsewhere. */
export interface OwnMetadata extends EvidenceMetadata {
  readonly reservation: string;
  readonly operation: string;
  readonly generation: number;
  readonly epoch: string;
  readonly units: readonly number[];
  readonly mac: string;
}
