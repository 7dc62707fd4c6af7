/** Lines, pages and receipts as the scripts store them (lua/include): read here, never written. */
import { Packr } from 'msgpackr';
import { reservationId } from '../core/ids.js';
import type {
  BookCounters,
  BookDump,
  Grade,
  LineDump,
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

const HEAD_DOUBLES = 11;
const BOOK_DOUBLES = 13;
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
  readonly subject: string;
  readonly route: string;
  readonly content: string;
  /** Names of the limits in force, in their order. */
  readonly bytes: Buffer;
  readonly rest: readonly unknown[];
}

function doubles(bytes: Buffer, from: number, count: number): number[] {
  const list = new Array<number>(count);
  for (let i = 0; i < count; i++) list[i] = bytes.readDoubleBE(8 * (from + i));
  return list;
}

function countersOf(list: readonly number[]): BookCounters {
  return {
    opening: list[0]!,
    minted: list[1]!,
    overdraftIssued: list[2]!,
    available: list[3]!,
    reserved: list[4]!,
    spent: list[5]!,
    retiredForEmergency: list[6]!,
    overdraftRepaid: list[7]!,
    carriedOut: list[8]!,
    lapsed: list[9]!,
  };
}

export function readLineHead(bytes: Buffer): StoredLine {
  const head = doubles(bytes, 0, HEAD_DOUBLES);
  const limits = head[10]!;
  const books = Array.from({ length: limits }, (_, i) =>
    countersOf(doubles(bytes, HEAD_DOUBLES + i * BOOK_DOUBLES, 10)),
  );
  const rest = unpack(bytes.subarray(8 * (HEAD_DOUBLES + limits * BOOK_DOUBLES))) as unknown[];
  return {
    seq: head[1]!,
    clock: head[2]!,
    generation: head[3]!,
    epoch: head[4]!,
    frozenUntil: head[8]!,
    books,
    subject: rest[0] as string,
    route: rest[1] as string,
    content: rest[2] as string,
    bytes,
    rest,
  };
}

type Owner = { readonly subject: string; readonly route: string };

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
  return receiptOf(tag, field, unpack(bytes) as unknown[], line);
}

export function dumpReceipt(tag: string, field: string, bytes: Buffer, line: Owner): ReceiptDump {
  const f = unpack(bytes) as unknown[];
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

/** A twin of the line without its closed pages and receipts. */
export function readLine(tag: string, shadow: boolean, bytes: Buffer): LineDump {
  const head = doubles(bytes, 0, HEAD_DOUBLES);
  const { seq, clock, generation, epoch, frozenUntil, subject, route, content, rest } =
    readLineHead(bytes);
  const terms = JSON.parse(rest[3] as string) as unknown[];
  const limits = (terms[6] as unknown[][]).map((limit) => limit[0] as string);
  const rows = limits.map((_, i) => doubles(bytes, HEAD_DOUBLES + i * BOOK_DOUBLES, BOOK_DOUBLES));
  const books = limits.map((limit, i) => bookDump(limit, rows[i]!));
  return {
    ...{ tag, shadow, subject, route, seq, clock, generation, epoch, content, frozenUntil },
    factor: { numerator: head[6]!, denominator: head[7]! },
    foldedTo: head[9]!,
    remainders: rows.map((row) => row[12]!),
    pages: [{ generation, epoch, closed: false, kept: head[5]!, books }],
    archive: booksOf(rest[5]),
    receipts: [],
  };
}
