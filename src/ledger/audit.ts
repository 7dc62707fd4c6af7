/**
 * Whether a line adds up: written from docs/ledger.md against what is stored, sharing nothing with the scripts. Sums
 * are BigInt, so that no rounding can hide a difference.
 */
import { lineTag, parseReservation } from '../core/ids.js';
import type { BookCounters, BookDump, LineDump, PageDump, ReceiptDump, State } from './types.js';

export interface AuditBook extends BookCounters {
  readonly limit: string;
  readonly generation: number;
  readonly epoch: number;
  /** Left side of the equation less its right side: 0. */
  readonly difference: number;
  readonly closed: boolean;
}

export interface AuditLine {
  readonly subject: string;
  readonly route: string;
  readonly shadow: boolean;
  readonly seq: number;
  readonly debt: number;
  readonly suspended: null | 'debt' | 'frozen';
  readonly books: readonly AuditBook[];
  /** Receipts folded by now; their sum, by limit where there are several. */
  readonly archive: {
    readonly count: number;
    readonly sum: number | Readonly<Record<string, number>>;
  };
  /** Kept receipts by state; those of a use that no start won count as UNSTARTED. */
  readonly reservations: Readonly<Partial<Record<State | 'UNSTARTED', number>>>;
}

export interface AuditedLine {
  readonly line: AuditLine;
  readonly problems: readonly string[];
}

const LEFT = ['opening', 'minted', 'overdraftIssued'] as const;
const RIGHT = [
  'available',
  'reserved',
  'spent',
  'retiredForEmergency',
  'overdraftRepaid',
  'carriedOut',
  'lapsed',
] as const;
const OPEN: readonly State[] = ['RESERVED', 'STARTED', 'EXPIRING', 'USAGE_UNKNOWN'];
const USED: readonly State[] = ['SETTLED', 'SETTLED_WITH_DEBT'];

/** `frozen`: by the line itself or with its route, at this instant. */
export function auditLine(dump: LineDump, frozen: boolean): AuditedLine {
  const problems = [...identityProblems(dump), ...pageProblems(dump), ...receiptProblems(dump)];
  const pages = dump.pages.flatMap((page) => page.books.map((book) => bookOf(page, book)));
  const debt = [...pages, ...dump.archive.map(({ counters }) => counters)].reduce(
    (sum, book) => sum + book.overdraftIssued - book.overdraftRepaid,
    0,
  );
  const line: AuditLine = {
    subject: dump.subject,
    route: dump.route,
    shadow: dump.shadow,
    seq: dump.seq,
    debt,
    suspended: frozen ? 'frozen' : debt > 0 ? 'debt' : null,
    books: pages,
    archive: archiveOf(dump),
    reservations: countStates(dump.receipts),
  };
  return { line, problems };
}

function bookOf(page: PageDump, { limit, counters }: BookDump): AuditBook {
  const { generation, epoch, closed } = page;
  return {
    limit,
    generation,
    epoch,
    ...counters,
    difference: Number(differenceOf(counters)),
    closed,
  };
}

function sum(amounts: Iterable<number>): bigint {
  let total = 0n;
  // What is no whole number is named elsewhere; here it must only not throw.
  for (const amount of amounts) total += Number.isInteger(amount) ? BigInt(amount) : 0n;
  return total;
}

function differenceOf(counters: BookCounters): bigint {
  return sum(LEFT.map((name) => counters[name])) - sum(RIGHT.map((name) => counters[name]));
}

/** The line is the one whose key it is stored under. */
function identityProblems(dump: LineDump): string[] {
  const problems: string[] = [];
  if (lineTag(dump.subject, dump.route) !== dump.tag) {
    problems.push('is stored under the key of another line');
  }
  if (!isAmount(dump.seq)) problems.push(`its seq is ${dump.seq}`);
  for (const remainder of dump.remainders) {
    if (!isAmount(remainder)) problems.push(`a remainder of its refill is ${remainder}`);
  }
  return problems;
}

function isAmount(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 0;
}

function nameOf(page: PageDump, limit: string): string {
  return `book ${limit === '' ? '' : `${limit} `}of generation ${page.generation}, epoch ${page.epoch}`;
}

function counterProblems(name: string, { counters, archiveCount, archiveSum }: BookDump): string[] {
  const problems: string[] = [];
  const amounts = { ...counters, archiveCount, archiveSum };
  for (const [term, value] of Object.entries(amounts)) {
    if (!isAmount(value)) problems.push(`${name}: ${term} is ${value}`);
  }
  const difference = differenceOf(counters);
  if (difference !== 0n) problems.push(`${name}: the equation is off by ${difference}`);
  const debt = counters.overdraftIssued - counters.overdraftRepaid;
  if (debt < 0) problems.push(`${name}: more overdraft was repaid than issued, by ${-debt}`);
  return problems;
}

function pageProblems(dump: LineDump): string[] {
  const problems: string[] = [];
  dump.pages.forEach((page, at) => {
    const last = at === dump.pages.length - 1;
    const title = `generation ${page.generation}, epoch ${page.epoch}`;
    if (page.closed === last) problems.push(`${title} is ${last ? 'closed' : 'open'}`);
    const kept = dump.receipts.filter((receipt) => isOf(receipt, page));
    if (kept.length !== page.kept) {
      problems.push(`${title} counts ${page.kept} kept receipts, there are ${kept.length}`);
    }
    page.books.forEach((book, limit) => {
      const name = nameOf(page, book.limit);
      problems.push(...counterProblems(name, book), ...sumProblems(name, book, kept, limit));
      if (page.closed && book.counters.available !== 0) {
        problems.push(`${name}: is closed and has ${book.counters.available} available`);
      }
    });
  });
  for (const book of dump.archive) {
    const name = `the archive${book.limit === '' ? '' : ` of ${book.limit}`}`;
    problems.push(...counterProblems(name, book), ...sumProblems(name, book, [], 0));
    const { available, overdraftIssued, overdraftRepaid } = book.counters;
    if (available !== 0) problems.push(`${name} has ${available} available`);
    if (overdraftIssued !== overdraftRepaid) problems.push(`${name} has debt`);
  }
  return problems;
}

function isOf(receipt: ReceiptDump, page: PageDump): boolean {
  return receipt.generation === page.generation && receipt.epoch === page.epoch;
}

/** reserved and spent are what the receipts say. */
function sumProblems(
  name: string,
  { counters, archiveSum }: BookDump,
  kept: readonly ReceiptDump[],
  limit: number,
): string[] {
  const open = kept.filter(({ state }) => OPEN.includes(state));
  const reserved = sum(open.map(({ units }) => units[limit] ?? 0));
  const spent = sum([...kept.map(({ actual }) => actual?.[limit] ?? 0), archiveSum]);
  const problems: string[] = [];
  if (reserved !== sum([counters.reserved])) {
    problems.push(`${name}: reserved is ${counters.reserved}, open receipts hold ${reserved}`);
  }
  if (spent !== sum([counters.spent])) {
    problems.push(`${name}: spent is ${counters.spent}, receipts and archive say ${spent}`);
  }
  return problems;
}

function receiptProblems(dump: LineDump): string[] {
  const problems: string[] = [];
  for (const receipt of dump.receipts) {
    const { reservation, state, units, actual, operation } = receipt;
    const say = (text: string): void => void problems.push(`${reservation} ${text}`);
    const page = dump.pages.find((candidate) => isOf(receipt, candidate));
    if (page === undefined) say('belongs to a book that is not there');
    else if (units.length !== page.books.length) say('holds units of other limits than its book');
    if (parseReservation(reservation)?.tag !== dump.tag) say('belongs to another line');
    if (receipt.seq > dump.seq) say(`has seq ${receipt.seq}, above its line's ${dump.seq}`);
    for (const amount of [...units, ...(actual ?? []), ...(receipt.least ?? [])]) {
      if (!isAmount(amount)) say(`holds the amount ${amount}`);
    }
    if (USED.includes(state) !== (actual !== undefined && actual.length > 0)) {
      say(`is ${state} ${actual === undefined ? 'without' : 'with'} a use`);
    }
    if (receipt.own && units.some((amount) => amount !== 0)) say('is of its own and holds units');
    const ran = state === 'STARTED' || state === 'USAGE_UNKNOWN' || USED.includes(state);
    if (ran && operation === '') say(`is ${state} without an operation`);
    if (OPEN.includes(state) !== (receipt.keepUntil === 0))
      say(`is ${state}, kept until ${receipt.keepUntil}`);
  }
  return problems;
}

function archiveOf(dump: LineDump): AuditLine['archive'] {
  const books = [...dump.pages.flatMap((page) => page.books), ...dump.archive];
  const counts: Record<string, number> = {};
  const sums: Record<string, number> = {};
  for (const { limit, archiveCount, archiveSum } of books) {
    counts[limit] = (counts[limit] ?? 0) + archiveCount;
    sums[limit] = (sums[limit] ?? 0) + archiveSum;
  }
  // Each receipt counts in every limit it had, so the largest number is that of receipts.
  const count = Math.max(0, ...Object.values(counts));
  const names = Object.keys(sums);
  return { count, sum: names.length === 1 && names[0] === '' ? sums['']! : sums };
}

function countStates(receipts: readonly ReceiptDump[]): AuditLine['reservations'] {
  const counts: Partial<Record<State | 'UNSTARTED', number>> = {};
  for (const { own, state } of receipts) {
    const name = own ? 'UNSTARTED' : state;
    counts[name] = (counts[name] ?? 0) + 1;
  }
  return counts;
}
