/** Lines, pages and receipts as the scripts store them (lua/include): read here, never written. */
import { Packr } from 'msgpackr';
import { reservationId } from '../core/ids.js';
import type {
  BookCounters,
  BookDump,
  Grade,
  LineDump,
  LineRef,
  PageDump,
  Receipt,
  ReceiptDump,
  State,
} from './types.js';

/** Integers up to 2^53 - 1 are exact in it, both ways. */
const packr = new Packr({ useRecords: false, int64AsType: 'number' });

export function pack(value: unknown): Buffer {
  return packr.pack(value);
}

export function unpack(blob: Buffer): unknown {
  return packr.unpack(blob);
}

/** Some values, one after the other. */
function unpackAll(blob: Buffer): unknown[] {
  return packr.unpackMultiple(blob) as unknown[];
}

const HEAD = 12;
const BOOK = 13;
/** In the order in which receipts number them. */
export const STATES: readonly State[] = [
  'RESERVED',
  'STARTED',
  'SETTLED',
  'SETTLED_WITH_DEBT',
  'RELEASED',
  'EXPIRING',
  'EXPIRED',
  'USAGE_UNKNOWN',
];
const GRADES: readonly (Grade | '')[] = [
  '',
  'reported',
  'neverSent',
  'refused',
  'presumed',
  'operator',
];
const ENDED: ReadonlySet<State> = new Set(['SETTLED', 'SETTLED_WITH_DEBT', 'RELEASED', 'EXPIRED']);

export interface StoredLine {
  readonly seq: number;
  readonly clock: number;
  readonly generation: number;
  readonly epoch: number;
  readonly frozenUntil: number;
  readonly books: readonly BookCounters[];
}

function countersOf(list: readonly unknown[], at = 0): BookCounters {
  const numbers = list as readonly number[];
  return {
    opening: numbers[at]!,
    minted: numbers[at + 1]!,
    overdraftIssued: numbers[at + 2]!,
    available: numbers[at + 3]!,
    reserved: numbers[at + 4]!,
    spent: numbers[at + 5]!,
    retiredForEmergency: numbers[at + 6]!,
    overdraftRepaid: numbers[at + 7]!,
    carriedOut: numbers[at + 8]!,
    lapsed: numbers[at + 9]!,
  };
}

function headOf(f: readonly unknown[]): StoredLine {
  const books: BookCounters[] = [];
  for (let at = HEAD; at < f.length; at += BOOK) books.push(countersOf(f, at));
  const [, seq, clock, generation, epoch] = f as number[];
  const frozenUntil = f[8] as number;
  return {
    seq: seq!,
    clock: clock!,
    generation: generation!,
    epoch: epoch!,
    frozenUntil,
    books,
  };
}

/** A twin of the line as it is after an answer. */
export function readLineHead(bytes: Buffer): StoredLine {
  return headOf(unpackAll(bytes));
}

/** As the ledger keeps it: a list of two. */
export function readOwner(text: string): Owner {
  const [subject, route] = JSON.parse(text) as [string, string];
  return { subject, route };
}

export type Owner = LineRef;

function receiptOf(tag: string, field: string, f: readonly unknown[], line: Owner): Receipt {
  const state = STATES[(f[0] as number) - 1]!;
  const attempt = f[11] as number;
  const amounts = (value: unknown) => (Array.isArray(value) ? (value as number[]) : undefined);
  return {
    reservation: reservationId(tag, field.slice(2, 24)),
    subject: line.subject,
    route: line.route,
    shadow: f[15] === 'shadow',
    generation: f[1] as number,
    epoch: f[2] as number,
    digest: f[7] as string,
    units: f[3] as number[],
    actual: amounts(f[4]),
    least: amounts(f[5]),
    operation: f[6] as string,
    reservedAt: f[8] as number,
    expiresAt: f[9] as number,
    state,
    breach: f[13] === true,
    unstarted: f[14] === true,
    evidence: GRADES[f[12] as number]!,
    attempt,
    latest: (f[17] as number | undefined) ?? attempt,
    seq: f[16] as number,
  };
}

export function readReceipt(tag: string, field: string, bytes: Buffer, line: Owner): Receipt {
  return receiptOf(tag, field, unpackAll(bytes), line);
}

export function dumpReceipt(tag: string, field: string, bytes: Buffer, line: Owner): ReceiptDump {
  const f = unpackAll(bytes);
  const receipt = receiptOf(tag, field, f, line);
  const keepUntil = ENDED.has(receipt.state) ? (f[10] as number) : 0;
  return { own: field.startsWith('u:'), keepUntil, ...receipt };
}

type Row = readonly [limit: string, ...numbers: number[]];

function bookDump(limit: string, numbers: readonly number[]): BookDump {
  return {
    limit,
    counters: countersOf(numbers),
    archiveCount: numbers[10]!,
    archiveSum: numbers[11]!,
  };
}

function booksOf(rows: unknown): BookDump[] {
  const list = Array.isArray(rows) ? (rows as Row[]) : [];
  return list.map(([limit, ...numbers]) => bookDump(limit, numbers));
}

/** `field`: `b:G:E` or `sb:G:E`. */
export function readPage(field: string, bytes: Buffer): PageDump {
  const [, generation, epoch] = field.split(':').map(Number);
  const [kept, books] = unpack(bytes) as [number, unknown];
  return { generation: generation!, epoch: epoch!, closed: true, kept, books: booksOf(books) };
}

/** A twin of the line without its closed pages and receipts. `rules`: its content and its terms. */
export function readLine(
  tag: string,
  shadow: boolean,
  bytes: Buffer,
  rules: Buffer,
  owner: Owner,
): LineDump {
  const f = unpackAll(bytes);
  const { seq, clock, generation, epoch, frozenUntil } = headOf(f);
  const [content, json] = unpackAll(rules) as [string, string];
  const terms = JSON.parse(json) as unknown[];
  const limits = (terms[6] as unknown[][]).map((limit) => limit[0] as string);
  const rows = limits.map((_, i) => f.slice(HEAD + i * BOOK, HEAD + (i + 1) * BOOK) as number[]);
  const books = limits.map((limit, i) => bookDump(limit, rows[i]!));
  return {
    ...{ tag, shadow, ...owner, seq, clock, generation, epoch, content, frozenUntil },
    factor: { numerator: f[6] as number, denominator: f[7] as number },
    foldedTo: f[9] as number,
    remainders: rows.map((row) => row[12]!),
    pages: [{ generation, epoch, closed: false, kept: f[5] as number, books }],
    archive: booksOf(f[11]),
    receipts: [],
  };
}
