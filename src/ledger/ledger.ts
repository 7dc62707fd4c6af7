/** The ledger: one method for each operation, typed in, typed out. Nothing else talks to the account's scripts. */
import { randomBytes } from 'node:crypto';
import { Redis, type RedisOptions } from 'ioredis';
import { hash22, lineTag, reservationId } from '../core/ids.js';
import type { Log, Meter } from '../telemetry/meter.js';
import type { LedgerApi } from './api.js';
import { Batcher, type Replied, runPacked, runToBytes } from './batcher.js';
import { STEADY } from './connect.js';
import { dumpLine } from './dump.js';
import { type Height, Heights } from './heights.js';
import { type Keys, keysOf } from './keys.js';
import { reasonOf } from './reason.js';
import { type Closed, ensureOpen } from './schema.js';
import { loadScript, type Script } from './scripts.js';
import { unpack } from './stored.js';
import {
  type AdmitRequest,
  type EvidenceRef,
  LedgerUnavailable,
  type LineDump,
  type LineRef,
  type LineView,
  type Outcome,
  type Receipt,
  type ReserveRequest,
  type SettleRequest,
  type SweepReply,
  type UnknownRequest,
} from './types.js';
import {
  type Argument,
  decodeOutcome,
  decodeSweep,
  encodeRelease,
  encodeReserve,
  encodeSettle,
  encodeStart,
  encodeSweep,
  encodeUnknown,
  type Operation,
  ScriptFailure,
  Stored,
  splitReservation,
} from './wire.js';

/** How long a Check's record outlives the usage deadline, for log entries without our metadata. */
const RECORD_GRACE_MS = 3_600_000;
/** The oldest go first; each is counted and logged as well. */
const CONFLICTS_MAX = 10_000;

export interface LedgerOptions {
  readonly redis: RedisOptions;
  readonly prefix: string;
  /** After so long an answer counts as lost: what happened is not known, and the same is asked again. */
  readonly timeoutMs: number;
  /** Replaces the ledger's clock (tests only): ms, asked for each operation. */
  readonly clock?: () => number | undefined;
  readonly meter?: Meter;
  readonly log?: Log;
  readonly closed?: Closed;
}

/** A settlement that was refused, as it came. */
export interface Conflict {
  readonly operation: string;
  readonly actual: readonly number[];
  readonly grade: string;
  /** ms of the clock of the gateway that got it. */
  readonly at: number;
}

interface Announcement {
  readonly dueMs: number;
  readonly operation: string;
  readonly requestKey: string;
  readonly record: string;
  readonly keepMs: number;
}

/** Every operation of an admission carries what is announced ahead of it. */
interface Announced extends Operation {
  readonly announcement: Announcement;
}

/** For a line that something happened to which no sweeper waits for. */
const SWEEP_NOW: Announcement = { dueMs: 0, operation: '', requestKey: '', record: '', keepMs: 0 };

export class Ledger implements LedgerApi {
  readonly redis: Redis;
  readonly keys: Keys;
  readonly #options: LedgerOptions;
  readonly #admissions: Batcher;
  readonly #movements: Batcher;
  readonly #look: Script = loadScript('look');
  readonly #announce: Script = loadScript('announce');
  readonly #heights = new Heights();
  readonly #fallen = new Set<string>();
  #clockOffset = 0;
  #macKey: Buffer | undefined;

  constructor(options: LedgerOptions) {
    this.#options = options;
    this.keys = keysOf(options.prefix);
    // A command is never sent twice by the client: whether it ran is the caller's question to the ledger.
    this.redis = new Redis({
      ...options.redis,
      ...STEADY,
      enableOfflineQueue: false,
      maxRetriesPerRequest: 0,
      retryStrategy: (times: number) => Math.min(50 * times, 1000),
    });
    this.redis.on('error', () => {
      options.meter?.count('earmark_ledger_errors_total', { kind: 'connection' });
    });
    const shared = { redis: this.redis, keys: this.keys, timeoutMs: options.timeoutMs };
    const onRun = (kind: string) => (size: number) =>
      options.meter?.observe('earmark_ledger_batch_size', { kind }, size);
    this.#admissions = new Batcher({
      ...shared,
      script: loadScript('admissions'),
      ahead: (operations) => this.#announceAll(operations as Announced[]),
      onRun: onRun('admissions'),
    });
    this.#movements = new Batcher({
      ...shared,
      script: loadScript('movements'),
      onRun: onRun('movements'),
    });
  }

  async stop(): Promise<void> {
    this.redis.disconnect();
  }

  reserve(request: ReserveRequest): Promise<Outcome> {
    return this.#admission(request);
  }

  admit(request: AdmitRequest): Promise<Outcome> {
    return this.#admission(request);
  }

  start(reservation: string, operation: string): Promise<Outcome> {
    return this.#movement(encodeStart(reservation, operation));
  }

  release(reservation: string): Promise<Outcome> {
    return this.#movement(encodeRelease(reservation));
  }

  async settle(request: SettleRequest): Promise<Outcome> {
    const outcome = await this.#evidence(request, encodeSettle);
    if (outcome.kind === 'refused' && outcome.why === 'conflict') this.#keepConflict(request);
    return outcome;
  }

  unknown(request: UnknownRequest): Promise<Outcome> {
    return this.#evidence(request, encodeUnknown);
  }

  /** What a line would be opened under is sent only where the ledger has none: it is most of what evidence weighs. */
  async #evidence<R extends EvidenceRef>(
    request: R,
    encode: (request: R) => Operation,
  ): Promise<Outcome> {
    const { metadata } = request;
    if (metadata?.budget === undefined) return this.#movement(encode(request));
    const { budget: _, ...light } = metadata;
    const outcome = await this.#movement(encode({ ...request, metadata: light }));
    const missing = outcome.kind === 'refused' && outcome.why === 'not-found';
    return missing ? this.#movement(encode(request)) : outcome;
  }

  async freeze(line: LineRef, shadow: boolean, until: number): Promise<boolean> {
    return this.#onLine('freeze', line, { till: until, shadow });
  }

  async unfreeze(line: LineRef, shadow: boolean): Promise<boolean> {
    return this.#onLine('unfreeze', line, { shadow });
  }

  /** An operator's gift of units to one limit of a line. */
  credit(line: LineRef, shadow: boolean, limit: string, units: number): Promise<Outcome> {
    const args = { limit, units, shadow };
    return this.#movement({ name: 'credit', tag: lineTag(line.subject, line.route), args });
  }

  /** For whoever uses the connection past these methods. Throws where the ledger may not be touched. */
  ensureOpen(): void {
    ensureOpen(this.#options.closed);
  }

  async sweep(tag: string, limit: number): Promise<SweepReply> {
    const { reply } = await this.#submit(this.#movements, encodeSweep(tag, limit));
    return this.#named(tag, () => decodeSweep(reply));
  }

  async get(reservation: string): Promise<{ receipt: Receipt; line: LineView } | undefined> {
    const { tag, id } = splitReservation(reservation);
    const reply = await this.#ask(() =>
      runToBytes(this.redis, this.#look, [this.keys.line(tag)], `r:${id}`),
    );
    if (reply === null) return undefined;
    const [same, shown] = reply as [Buffer, Buffer];
    const outcome = decodeOutcome(tag, unpack(same) as unknown[], new Stored(shown));
    if (outcome.kind !== 'same' || outcome.receipt === undefined) return undefined;
    return { receipt: outcome.receipt, line: outcome.line };
  }

  async findCheck(
    requestId: string,
    methodPath: string,
  ): Promise<{ reservation: string; operation: string } | undefined> {
    const records = await this.#ask(() => this.redis.hgetall(this.keys.request(requestId)));
    const wanted = hash22(methodPath);
    const found = Object.entries(records)
      .map(([operation, record]) => ({ operation, parts: record.split(' ') }))
      .filter(({ parts }) => parts[1] === wanted);
    const only = found.length === 1 ? found[0] : undefined;
    return only && { reservation: only.parts[0]!, operation: only.operation };
  }

  /** Evidence that contradicted the receipt and was refused, oldest first; the operator decides. */
  async conflicts(reservation: string): Promise<readonly Conflict[]> {
    const entries = await this.#ask(() => this.redis.xrange(this.keys.conflicts, '-', '+'));
    return entries
      .map(([, fields]) => JSON.parse(fields[1]!) as Conflict & { reservation: string })
      .filter((conflict) => conflict.reservation === reservation);
  }

  #keepConflict({ reservation, operation, actual, grade }: SettleRequest): void {
    const conflict = JSON.stringify({ reservation, operation, actual, grade, at: Date.now() });
    const args = ['MAXLEN', '~', String(CONFLICTS_MAX), '*', 'conflict', conflict] as const;
    this.redis.xadd(this.keys.conflicts, ...args).catch(() => {
      this.#options.meter?.count('earmark_ledger_errors_total', { kind: 'conflict' });
    });
  }

  dump(tag: string): Promise<readonly LineDump[]> {
    return this.#ask(() => dumpLine(this.redis, this.keys.line(tag), tag));
  }

  async *lines(): AsyncIterable<readonly string[]> {
    let cursor = '0';
    do {
      const [next, found] = await this.#ask(() =>
        this.redis.scan(cursor, 'MATCH', this.keys.linePattern, 'COUNT', 1000),
      );
      cursor = next;
      const tags = found.map((key) => this.keys.tagOf(key)).filter((tag) => tag !== undefined);
      if (tags.length > 0) yield tags;
    } while (cursor !== '0');
  }

  estimatedNow(): number {
    return Date.now() + this.#clockOffset;
  }

  /** Drawn once in the ledger by whoever comes first, asked for once by each process. */
  async macKey(): Promise<Buffer> {
    this.#macKey ??= await this.#readMacKey();
    return this.#macKey;
  }

  async #readMacKey(): Promise<Buffer> {
    const drawn = randomBytes(32).toString('base64url');
    const kept = await this.#ask(async () => {
      // A full server refuses to set even what stands there already.
      const known = await this.redis.get(this.keys.macKey);
      if (known !== null) return known;
      await this.redis.set(this.keys.macKey, drawn, 'NX');
      return this.redis.get(this.keys.macKey);
    });
    return Buffer.from(kept!, 'base64url');
  }

  async #onLine(name: string, line: LineRef, args: Record<string, Argument>): Promise<boolean> {
    const tag = lineTag(line.subject, line.route);
    const outcome = await this.#movement({ name, tag, args });
    if (outcome.kind === 'refused') throw new Error(`no such line: ${line.route} ${line.subject}`);
    return outcome.kind === 'moved';
  }

  #admission(request: ReserveRequest | AdmitRequest): Promise<Outcome> {
    const encoded = encodeReserve(request);
    const { terms } = request.budget;
    const announce = request.announce;
    const bound = 'operation' in request ? request.operation : '';
    const announcement: Announcement = {
      dueMs: Math.min(terms.holdTtlMs, terms.usageDeadlineMs),
      operation: announce === undefined ? '' : bound,
      requestKey: announce === undefined ? '' : this.keys.request(announce.requestId),
      record:
        announce === undefined
          ? ''
          : `${reservationId(encoded.tag, encoded.args.id as string)} ${hash22(announce.methodPath)}`,
      keepMs: terms.usageDeadlineMs + RECORD_GRACE_MS,
    };
    const operation: Announced = { announcement, ...encoded };
    const before = this.#heights.of(operation.tag);
    return this.#submit(this.#admissions, operation).then((reply) =>
      this.#decode(operation, reply, before),
    );
  }

  async #movement(operation: Operation): Promise<Outcome> {
    const before = this.#heights.of(operation.tag);
    return this.#decode(operation, await this.#submit(this.#movements, operation), before);
  }

  #submit(batcher: Batcher, operation: Operation): Promise<Replied> {
    const closed = this.#options.closed?.();
    if (closed !== undefined) return Promise.reject(closed);
    const now = this.#options.clock?.();
    return batcher.submit(operation, now ?? -1);
  }

  #decode(operation: Operation, { reply, stored }: Replied, before: Height): Outcome {
    const { tag } = operation;
    const outcome = this.#named(tag, () => decodeOutcome(tag, reply, stored, operation.owner));
    if (outcome.kind === 'moved' && reply[4] === true) {
      this.#announceAll([{ announcement: SWEEP_NOW, ...operation }]);
    }
    if (outcome.line.now > 0) this.#clockOffset = outcome.line.now - Date.now();
    if (outcome.line.seq > 0) this.#watch(operation, outcome, before);
    return outcome;
  }

  /** A line that went back in time is frozen until an operator has reconciled it. */
  #watch({ tag, args }: Operation, outcome: Outcome, before: Height): void {
    const receipt = 'receipt' in outcome ? outcome.receipt : undefined;
    const shadow = receipt?.shadow ?? args.shadow === true;
    const { seq } = outcome.line;
    const from = this.#heights.see(tag, shadow, seq, before);
    if (from === undefined || this.#fallen.has(tag)) return;
    this.#fallen.add(tag);
    this.#options.meter?.count('earmark_ledger_lines_fallen_total', {});
    const line = this.keys.line(tag);
    const told = { line, shadow, from, to: seq };
    this.#options.log?.error(told, 'the ledger forgot writes of a line: it is frozen');
    this.#heights.forget(tag);
    this.#movement({ name: 'freeze', tag, args: { till: -1, shadow } })
      .catch((error: Error) => {
        // The next answer that shows it tries again.
        this.#heights.see(tag, shadow, from, before);
        this.#options.log?.error({ line, error: error.message }, 'the line could not be frozen');
      })
      .finally(() => this.#fallen.delete(tag));
  }

  /** A script that failed on what it found in a line names that line's key. */
  #named<T>(tag: string, decode: () => T): T {
    try {
      return decode();
    } catch (error) {
      if (!(error instanceof ScriptFailure)) throw error;
      throw new LedgerUnavailable(`${this.keys.line(tag)}: ${error.message}`);
    }
  }

  #announceAll(operations: readonly Announced[]): void {
    const keys: string[] = [];
    const hints = operations.map((operation) => {
      const hint = operation.announcement;
      const index = this.keys.dueLines(this.keys.shardOf(operation.tag));
      keys.push(index, hint.requestKey === '' ? index : hint.requestKey);
      return [operation.tag, hint.dueMs, hint.operation, hint.record, hint.keepMs];
    });
    runPacked(this.redis, this.#announce, keys, hints).catch(() => {
      this.#options.meter?.count('earmark_ledger_errors_total', { kind: 'announce' });
    });
  }

  /** Anything but a script: one question, one answer, in time or not at all. */
  async #ask<T>(question: () => Promise<T>): Promise<T> {
    this.ensureOpen();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_resolve, reject) => {
      const fail = (): void => reject(new LedgerUnavailable('no answer from the ledger in time'));
      timer = setTimeout(fail, Math.max(this.#options.timeoutMs, 1000));
    });
    try {
      return await Promise.race([question(), late]);
    } catch (error) {
      if (error instanceof LedgerUnavailable || error instanceof RangeError) throw error;
      throw new LedgerUnavailable(reasonOf(this.redis, error));
    } finally {
      clearTimeout(timer);
    }
  }
}
