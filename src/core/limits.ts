/** Bounds on what comes from outside, each with its reason. */

/** A tenant's name, a user's, a path of them; it stands in the line's hash and in every metadata. */
export const SUBJECT_BYTES_MAX = 1024;

/** Names of budgets are chosen by an operator. */
export const ROUTE_BYTES_MAX = 256;

/** Only its hash is kept, but it travels in a header. */
export const KEY_BYTES_MAX = 1024;

/** Stored with the receipt; ours are 22 characters, an executor may have longer ones. */
export const OPERATION_BYTES_MAX = 128;

/** A client that ends a thousand attempts of one key is broken. */
export const ATTEMPT_MAX = 1000;

/** The largest exact integer; every amount of the ledger stays at or below it. */
export const UNITS_MAX = Number.MAX_SAFE_INTEGER;

/** A CheckRequest with a 16 MiB body and its headers. */
export const GRPC_MESSAGE_BYTES_MAX = 17 * 1024 * 1024;

/** A receipt is three short fields. */
export const HTTP_BODY_BYTES_MAX = 64 * 1024;

/** What an orderly stop may take before whatever is left is cut. */
export const STOP_MS_MAX = 10_000;
