/** A Check as the rest of the product sees it: what Envoy asks, and what it is answered. */

/** The part of a CheckRequest that is looked at. */
export interface CheckRequest {
  /** When the request began, in Envoy's bytes: the same as in its log entry. '' where Envoy doesn't say. */
  readonly startedAt: string;
  readonly method: string;
  /** With query. */
  readonly path: string;
  readonly host: string;
  /** Lower-case names; several values of one name joined by a comma. */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Buffer;
  /** Envoy's context_extensions. */
  readonly context: Readonly<Record<string, string>>;
  readonly principal: string;
  /** Filter metadata by namespace. */
  readonly metadata: Readonly<Record<string, unknown>>;
}

/** What a Struct may hold. */
export type MetadataValue =
  | string
  | number
  | boolean
  | null
  | readonly MetadataValue[]
  | { readonly [name: string]: MetadataValue };

export type Metadata = Readonly<Record<string, MetadataValue>>;

export type Header = readonly [name: string, value: string];

/** The request goes on. */
export interface Passed {
  readonly kind: 'ok';
  /** Set on the request to the backend, in place of what the client sent. */
  readonly requestHeaders: readonly Header[];
  readonly removed: readonly string[];
  /** Set on the response to the client. */
  readonly responseHeaders: readonly Header[];
  readonly metadata: Metadata;
}

/**
 * The request does not go on. `denied` is final; at an `error` Envoy's failure_mode_allow decides, so that a platform
 * can let requests through while the ledger is away.
 */
export interface Refused {
  readonly kind: 'denied' | 'error';
  readonly status: number;
  readonly headers: readonly Header[];
  readonly body: string;
  readonly metadata: Metadata;
}

export type CheckAnswer = Passed | Refused;

/** What the handler may know of the gRPC call. */
export interface CheckCall {
  /** ms since 1970; undefined where Envoy gave none. */
  readonly deadline?: number;
  cancelled(): boolean;
}

export type CheckHandler = (request: CheckRequest, call: CheckCall) => Promise<CheckAnswer>;
