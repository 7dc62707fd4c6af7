/** Reads a whole line, page by page, as the audit and the proof need it: nothing is added up here. */
import type { Redis } from 'ioredis';
import { run } from './batcher.js';
import type { Script } from './scripts.js';
import type { BookDump, LineDump, PageDump, ReceiptDump } from './types.js';
import { COUNTERS, decodeReceipt } from './wire.js';

/** Fields of the line's hash read in one run. */
const FIELDS_A_RUN = 500;
/** A line that moves while it is read is read again so often. */
const TRIES = 5;

type Row = readonly unknown[];

function bookOf(row: Row): BookDump {
  const counters = Object.fromEntries(
    COUNTERS.map((name, i) => [name, row[i + 1] as number]),
  ) as unknown as BookDump['counters'];
  return {
    limit: row[0] as string,
    counters,
    archiveCount: row[COUNTERS.length + 1] as number,
    archiveSum: row[COUNTERS.length + 2] as number,
  };
}

function pageOf(row: Row): PageDump {
  const [generation, epoch, closed, kept] = row as number[];
  return {
    generation: generation!,
    epoch: epoch!,
    closed: closed === 1,
    kept: kept!,
    books: row.slice(4).map((book) => bookOf(book as Row)),
  };
}

function lineOf(
  row: Row,
  tag: string,
  closed: readonly PageDump[],
  all: readonly ReceiptDump[],
): LineDump {
  const shadow = row[0] === 'shadow';
  const open = pageOf(row[12] as Row);
  return {
    tag,
    shadow,
    subject: row[1] as string,
    route: row[2] as string,
    seq: row[3] as number,
    clock: row[4] as number,
    generation: row[5] as number,
    content: row[6] as string,
    factor: { numerator: row[7] as number, denominator: row[8] as number },
    frozenUntil: row[9] as number,
    foldedTo: row[10] as number,
    remainders: row[11] as number[],
    epoch: open.epoch,
    pages: [...closed, open],
    archive: (row[13] as Row[]).map(bookOf),
    receipts: all.filter((receipt) => receipt.shadow === shadow),
  };
}

interface Reading {
  readonly seqs: string;
  readonly lines: readonly LineDump[];
  readonly moved: boolean;
}

async function readOnce(redis: Redis, look: Script, key: string, tag: string): Promise<Reading> {
  const pages = new Map<string, { twin: string; page: PageDump }>();
  const receipts = new Map<string, ReceiptDump>();
  let twins: readonly Row[] = [];
  let seqs: string | undefined;
  let moved = false;
  let cursor = '0';
  do {
    const args = ['page', cursor, String(FIELDS_A_RUN)];
    const reply = (await run(redis, look, [key], args)) as [string, Row[], Row[], Row[]];
    cursor = reply[0];
    twins = reply[1];
    const current = twins.map((row) => row[3]).join();
    moved ||= seqs !== undefined && seqs !== current;
    seqs = current;
    for (const [twin, ...row] of reply[2]) {
      const page = pageOf(row);
      pages.set(`${twin} ${page.generation} ${page.epoch}`, { twin: twin as string, page });
    }
    for (const row of reply[3]) receipts.set(row[0] as string, decodeReceipt(tag, row));
  } while (cursor !== '0');
  const ordered = [...pages.values()].sort(
    (a, b) => a.page.generation - b.page.generation || a.page.epoch - b.page.epoch,
  );
  const lines = twins.map((row) => {
    const closed = ordered.filter(({ twin }) => twin === row[0]).map(({ page }) => page);
    return lineOf(row, tag, closed, [...receipts.values()]);
  });
  return { seqs, lines, moved };
}

/** Both twins as of one instant; throws where the line does not hold still. */
export async function readLine(
  redis: Redis,
  look: Script,
  key: string,
  tag: string,
): Promise<readonly LineDump[]> {
  for (let tries = 0; tries < TRIES; tries++) {
    const reading = await readOnce(redis, look, key, tag);
    if (!reading.moved) return reading.lines;
  }
  throw new Error(`the line moved during each of ${TRIES} readings: ask again when it is quieter`);
}
