/**
 * Lines on a real server, under a clock that the test moves. After each call what is stored is held against the answer
 * (an answer that moved nothing left every byte as it was), and after each test every line must add up.
 */
import { createHash } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, vi } from 'vitest';
import { lineTag, receiptId, reservationId } from '../../src/core/ids.js';
import { auditLine } from '../../src/ledger/audit.js';
import { Ledger } from '../../src/ledger/ledger.js';
import type {
  BookCounters,
  BudgetRef,
  EvidenceMetadata,
  Grade,
  LimitTerms,
  LineDump,
  Outcome,
  ReceiptDump,
  ReserveRequest,
  SweepReply,
  Terms,
} from '../../src/ledger/types.js';
import { redis7Server, redis8Server, valkeyServer } from './binaries.js';
import { startRedis, type TestRedis } from './redis.js';

// Some tests ask a real server thousands of times, on a machine that others use too.
vi.setConfig({ testTimeout: 90_000 });

/** Every kind of server that a ledger may stand on; Redis 7 where PATH has one. */
export const SERVERS: readonly (readonly [name: string, binary: string])[] = [
  ['Valkey 8', valkeyServer()] as const,
  ['Redis 8', redis8Server()] as const,
  ...[redis7Server()].flatMap((binary) => (binary ? [['Redis 7', binary] as const] : [])),
];

/** Noon in UTC of a Tuesday in a month of 31 days. */
export const T0 = Date.UTC(2030, 0, 15, 12);
export const DAY = 86_400_000;
export const HOLD = 30_000;
export const DEADLINE = 600_000;
export const RETENTION = 7 * DAY;

export function limit(some: Partial<LimitTerms> = {}): LimitTerms {
  const burst = some.burst ?? 1000;
  const none = { refill: null, maxOverdraft: null, executionHardCap: null, ownCost: false };
  return { name: '', burst, maxReservation: burst, ...none, ...some };
}

/** Terms with one limit, unless `limits` gives others. */
export function termsOf(some: Partial<Terms> & { limit?: Partial<LimitTerms> } = {}): Terms {
  const { limit: only, ...rest } = some;
  return {
    limits: [limit(only)],
    epochMs: 365 * DAY,
    holdTtlMs: HOLD,
    usageDeadlineMs: DEADLINE,
    retentionMs: RETENTION,
    onBreach: 'mark',
    freezeForMs: 0,
    ...rest,
  };
}

export function budgetOf(terms: Terms, some: Partial<BudgetRef> = {}): BudgetRef {
  const generation = some.generation ?? 1;
  const factor = { numerator: 1, denominator: 1 };
  return { generation, content: `content ${generation}`, factor, ...some, terms };
}

/** An outcome in a few words: `moved STARTED`, `limited capacity`, `refused bound`. */
export function told(outcome: Outcome): string {
  switch (outcome.kind) {
    case 'limited':
      return `limited ${outcome.by} ${outcome.limit}`.trim();
    case 'refused':
      return `refused ${outcome.why}`;
    default:
      return `${outcome.kind} ${outcome.receipt?.state ?? ''}`.trim();
  }
}

export type Asked = Partial<Omit<ReserveRequest, 'units' | 'key' | 'subject' | 'route'>>;

export interface Evidence {
  readonly operation?: string;
  readonly grade?: Grade;
  readonly attempt?: number;
  readonly metadata?: Partial<EvidenceMetadata>;
}

type Amounts = number | readonly number[];

function list(amounts: Amounts): readonly number[] {
  return typeof amounts === 'number' ? [amounts] : amounts;
}

/** A server of the file's own, a ledger on it, and the time. */
export class Bench {
  now = T0;
  server!: TestRedis;
  ledger!: Ledger;
  lines: Line[] = [];
  #drawn = 0;

  line(terms: Terms = termsOf(), budget: Partial<BudgetRef> = {}): Line {
    return this.named(`subject ${++this.#drawn}`, 'route', budgetOf(terms, budget));
  }

  named(subject: string, route: string, budget: BudgetRef): Line {
    const line = new Line(this, subject, route, budget);
    this.lines.push(line);
    return line;
  }

  /** A connection without any of the ledger's own care, to look behind it or to break something. */
  get redis(): Ledger['redis'] {
    return this.ledger.redis;
  }

  async open(prefix = 'earmark:', timeoutMs = 5000): Promise<Ledger> {
    const redis = { path: this.server.socket };
    const ledger = new Ledger({ redis, prefix, timeoutMs, clock: () => this.now });
    await ready(ledger);
    return ledger;
  }
}

export async function ready(ledger: Ledger): Promise<void> {
  if (ledger.redis.status !== 'ready') {
    await new Promise((resolve) => ledger.redis.once('ready', resolve));
  }
}

/** One account of one subject. Keys name reservations, and an operation is named as its key unless it is said. */
export class Line {
  readonly subject: string;
  readonly route: string;
  readonly tag: string;
  budget: BudgetRef;
  readonly #bench: Bench;

  constructor(bench: Bench, subject: string, route: string, budget: BudgetRef) {
    this.#bench = bench;
    this.subject = subject;
    this.route = route;
    this.tag = lineTag(subject, route);
    this.budget = budget;
  }

  id(key: string, attempt = 1): string {
    return reservationId(this.tag, receiptId(this.subject, this.route, key, attempt));
  }

  request(key: string, units: Amounts, some: Asked = {}): ReserveRequest {
    const { subject, route, budget } = this;
    const none = { attempt: 1, shadow: false, closed: false, routeFrozenUntil: 0, again: false };
    const digest = key.padEnd(43, '-');
    return { subject, route, key, digest, budget, units: list(units), ...none, ...some };
  }

  reserve(key: string, units: Amounts, some: Asked = {}): Promise<Outcome> {
    return this.#watched(() => this.#ledger.reserve(this.request(key, units, some)));
  }

  admit(key: string, units: Amounts, some: Asked & { operation?: string } = {}): Promise<Outcome> {
    const { operation = key, ...asked } = some;
    const request = { ...this.request(key, units, asked), operation };
    return this.#watched(() => this.#ledger.admit(request));
  }

  start(key: string, operation = key, attempt = 1): Promise<Outcome> {
    return this.#watched(() => this.#ledger.start(this.id(key, attempt), operation));
  }

  release(key: string, attempt = 1): Promise<Outcome> {
    return this.#watched(() => this.#ledger.release(this.id(key, attempt)));
  }

  settle(key: string, actual: Amounts, some: Evidence = {}): Promise<Outcome> {
    const { grade = 'reported' } = some;
    const request = { ...this.#evidence(key, some), actual: list(actual), grade };
    return this.#watched(() => this.#ledger.settle(request));
  }

  unknown(key: string, least: Amounts = [], some: Evidence = {}): Promise<Outcome> {
    const request = { ...this.#evidence(key, some), least: list(least) };
    return this.#watched(() => this.#ledger.unknown(request));
  }

  credit(units: number, name = '', shadow = false): Promise<Outcome> {
    return this.#watched(() => this.#ledger.credit(this, shadow, name, units));
  }

  freeze(until = -1, shadow = false): Promise<boolean> {
    return this.#ledger.freeze(this, shadow, until);
  }

  unfreeze(shadow = false): Promise<boolean> {
    return this.#ledger.unfreeze(this, shadow);
  }

  sweep(steps = 100): Promise<SweepReply> {
    return this.#ledger.sweep(this.tag, steps);
  }

  /** Sweeps until there is nothing more to do at this time. */
  async settleDown(): Promise<SweepReply> {
    let reply = await this.sweep();
    while (reply.nextDue > 0 && reply.nextDue <= reply.now) reply = await this.sweep();
    return reply;
  }

  async dump(shadow = false): Promise<LineDump> {
    const found = (await this.#ledger.dump(this.tag)).find((twin) => twin.shadow === shadow);
    if (found === undefined) throw new Error(`${this.subject} has no such line`);
    return found;
  }

  /** The books of the limit, the open one last. */
  async books(name = '', shadow = false): Promise<BookCounters[]> {
    const { pages } = await this.dump(shadow);
    return pages.flatMap(({ books }) =>
      books.filter((book) => book.limit === name).map(({ counters }) => counters),
    );
  }

  async open(name = '', shadow = false): Promise<BookCounters> {
    return (await this.books(name, shadow)).at(-1)!;
  }

  async receipts(): Promise<readonly ReceiptDump[]> {
    return (await this.#ledger.dump(this.tag)).flatMap(({ receipts }) => receipts);
  }

  /** The receipt, or with `own` that of a use that no start won. */
  async receipt(key: string, own?: string, attempt = 1): Promise<ReceiptDump> {
    const id = this.id(key, attempt);
    const found = (await this.receipts()).find(
      (each) => each.reservation === id && (own === undefined ? !each.own : each.operation === own),
    );
    if (found === undefined) throw new Error(`no receipt of ${key}`);
    return found;
  }

  /** Everything that is stored of the line, and its seq as of each twin. */
  async stored(): Promise<{ bytes: string; seqs: Map<boolean, number> }> {
    const { redis, keys } = this.#ledger;
    const fields = Object.entries(await redis.hgetallBuffer(keys.line(this.tag)))
      .map(([field, value]) => `${field} ${(value as Buffer).toString('hex')}`)
      .sort();
    const due = await redis.call('ZRANGE', keys.due(this.tag), 0, -1, 'WITHSCORES');
    const done = await redis.lrange(keys.done(this.tag), 0, -1);
    const dumps = await this.#ledger.dump(this.tag);
    return {
      bytes: createHash('sha256')
        .update(JSON.stringify([fields, due, done]))
        .digest('hex'),
      seqs: new Map(dumps.map(({ shadow, seq }) => [shadow, seq])),
    };
  }

  get #ledger(): Ledger {
    return this.#bench.ledger;
  }

  #evidence(key: string, { operation = key, attempt, metadata }: Evidence) {
    const { subject, route } = this;
    const reference = { reservation: this.id(key, attempt), operation };
    const known = { subject, route, shadow: false, reservedAt: this.#bench.now, unreserved: false };
    return metadata === undefined
      ? reference
      : { ...reference, metadata: { ...known, ...metadata } };
  }

  /** Moved: one write of one twin. Not moved: not one byte of the line. */
  async #watched(call: () => Promise<Outcome>): Promise<Outcome> {
    const before = await this.stored();
    const outcome = await call();
    const after = await this.stored();
    const wrote =
      outcome.kind === 'moved' ||
      outcome.kind === 'limited' ||
      (outcome.kind === 'refused' && outcome.why === 'expired');
    if (!wrote) expect(after.bytes, `${told(outcome)} moved something`).toBe(before.bytes);
    const rise = sum(after.seqs.values()) - sum(before.seqs.values());
    expect(rise, `seq after ${told(outcome)}`).toBe(wrote ? 1 : 0);
    if (outcome.line.seq > 0) expect([...after.seqs.values()]).toContain(outcome.line.seq);
    return outcome;
  }
}

function sum(values: Iterable<number>): number {
  return [...values].reduce((total, value) => total + value, 0);
}

/** Runs the tests on each server, and audits after each of them the lines it made. */
export function onEachServer(
  what: string,
  tests: (bench: Bench) => void,
  args: readonly string[] = [],
): void {
  describe.each(SERVERS)(`${what}, %s`, (_name, binary) => {
    const bench = new Bench();
    beforeAll(async () => {
      bench.server = await startRedis({ binary, args });
      bench.ledger = await bench.open();
    });
    beforeEach(() => {
      bench.now = T0;
      bench.lines = [];
    });
    afterEach(async () => {
      for (const line of bench.lines) {
        for (const dump of await bench.ledger.dump(line.tag)) {
          expect(auditLine(dump, false).problems).toEqual([]);
        }
      }
    });
    afterAll(async () => {
      await bench.ledger?.stop();
      await bench.server?.stop();
    });
    tests(bench);
  });
}
