/** The ledger as the rest of the product uses it; `Ledger` in ledger.ts is the one that is real. */
import type {
  AdmitRequest,
  LineDump,
  LineRef,
  LineView,
  Outcome,
  Receipt,
  ReserveRequest,
  SettleRequest,
  SweepReply,
  UnknownRequest,
} from './types.js';

/**
 * Every method is one operation of docs/ledger.md, idempotent, one round trip; many that are asked for at once travel
 * together. Rejects with `LedgerUnavailable` where the answer is not known in time: ask again for the same.
 */
export interface LedgerApi {
  reserve(request: ReserveRequest): Promise<Outcome>;
  admit(request: AdmitRequest): Promise<Outcome>;
  start(reservation: string, operation: string): Promise<Outcome>;
  release(reservation: string): Promise<Outcome>;
  settle(request: SettleRequest): Promise<Outcome>;
  unknown(request: UnknownRequest): Promise<Outcome>;
  /** The receipt as it stands, and its line; undefined: no such receipt is kept. */
  get(reservation: string): Promise<{ receipt: Receipt; line: LineView } | undefined>;
  /** The Check a log entry without our metadata belongs to: exactly one had that request ID, method and path. */
  findCheck(
    requestId: string,
    methodPath: string,
  ): Promise<{ reservation: string; operation: string } | undefined>;
  freeze(line: LineRef, shadow: boolean, until: number): Promise<boolean>;
  unfreeze(line: LineRef, shadow: boolean): Promise<boolean>;
  sweep(tag: string, limit: number): Promise<SweepReply>;
  /** Both twins of a line as they are stored. */
  dump(tag: string): Promise<readonly LineDump[]>;
  /** Tags of all lines, page by page. */
  lines(): AsyncIterable<readonly string[]>;
  /** Ledger time as this process last heard it, moved on by its own clock; for guesses only. */
  estimatedNow(): number;
  /** 32 bytes made once in the ledger; signs our metadata. */
  macKey(): Promise<Buffer>;
}
