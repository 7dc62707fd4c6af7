/** The audit on lines that real scripts wrote, and on each of them with one thing wrong. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import { auditLine } from '../../src/ledger/audit.js';
import { Ledger } from '../../src/ledger/ledger.js';
import type { LimitTerms, LineDump, ReserveRequest, Terms } from '../../src/ledger/types.js';
import { startRedis, type TestRedis } from '../support/redis.js';

let redis: TestRedis;
let ledger: Ledger;
let now = 1_000_000_000_000;

beforeAll(async () => {
  redis = await startRedis();
  ledger = new Ledger({
    redis: { path: redis.socket },
    prefix: 'p:',
    timeoutMs: 2000,
    clock: () => now,
  });
  await new Promise((resolve) => ledger.redis.once('ready', resolve));
});
afterAll(async () => {
  await ledger.stop();
  await redis.stop();
});

function limit(name: string, burst: number): LimitTerms {
  const none = { refill: null, maxOverdraft: null, executionHardCap: null, ownCost: false };
  return { name, burst, maxReservation: burst, ...none };
}

function terms(...limits: LimitTerms[]): Terms {
  return {
    limits,
    epochMs: 3_600_000,
    holdTtlMs: 1000,
    usageDeadlineMs: 5000,
    retentionMs: 10_000,
    onBreach: 'mark',
    freezeForMs: 0,
  };
}

function asks(subject: string, key: string, units: number[], generation: number, of: Terms) {
  const request: ReserveRequest = {
    subject,
    route: 'r',
    key,
    attempt: 1,
    digest: key.padEnd(43, 'x'),
    units,
    budget: {
      generation,
      content: `c${generation}`,
      terms: of,
      factor: { numerator: 1, denominator: 1 },
    },
    shadow: false,
    closed: false,
    routeFrozenUntil: 0,
    again: false,
  };
  return request;
}

async function hold(request: ReserveRequest, operation?: string): Promise<string> {
  const outcome =
    operation === undefined
      ? await ledger.reserve(request)
      : await ledger.admit({ ...request, operation });
  if (outcome.kind !== 'moved') throw new Error(`not moved: ${JSON.stringify(outcome)}`);
  return outcome.receipt.reservation;
}

/** Two generations, debt, open and ended receipts, one of its own, one folded. */
async function busyLine(): Promise<LineDump> {
  const subject = 'busy';
  const one = terms(limit('', 1000));
  const folded = await hold(asks(subject, 'fold', [10], 1, one), 'op');
  await ledger.settle({ reservation: folded, operation: 'op', actual: [10], grade: 'reported' });
  now += 20_000;
  await ledger.sweep(lineTag(subject, 'r'), 100);
  const used = await hold(asks(subject, 'used', [100], 1, one), 'op');
  await ledger.settle({ reservation: used, operation: 'op', actual: [40], grade: 'reported' });
  const back = await hold(asks(subject, 'back', [100], 1, one));
  await ledger.release(back);
  await ledger.settle({ reservation: back, operation: 'late', actual: [5], grade: 'reported' });
  const over = await hold(asks(subject, 'over', [100], 2, one), 'op');
  await hold(asks(subject, 'open', [50], 2, one));
  await ledger.settle({ reservation: over, operation: 'op', actual: [5000], grade: 'reported' });
  const [dump] = await ledger.dump(lineTag(subject, 'r'));
  return dump!;
}

/** A copy with one thing changed; the types say that nobody may. */
function changed(dump: LineDump, change: (copy: Changeable) => void): LineDump {
  const copy = structuredClone(dump) as unknown as Changeable;
  change(copy);
  return copy as unknown as LineDump;
}

// biome-ignore lint/suspicious/noExplicitAny: every field of a dump, writable
type Changeable = any;

it('passes a line that the scripts wrote, and says what is in it', async () => {
  const dump = await busyLine();
  const { line, problems } = auditLine(dump, false);
  expect(problems).toEqual([]);
  expect(line).toMatchObject({
    subject: 'busy',
    route: 'r',
    shadow: false,
    seq: dump.seq,
    suspended: 'debt',
    archive: { count: 1, sum: 10 },
    reservations: { SETTLED: 1, RELEASED: 1, UNSTARTED: 1, RESERVED: 1, SETTLED_WITH_DEBT: 1 },
  });
  expect(line.books.map(({ generation, closed }) => [generation, closed])).toEqual([
    [1, true],
    [2, false],
  ]);
  expect(line.books.every(({ difference }) => difference === 0)).toBe(true);
  // 1000 + 0 - 55 spent before, then 5000 used of it.
  expect(line.debt).toBe(5000 + 50 - (1000 - 55));
  expect(auditLine(dump, true).line.suspended).toBe('frozen');
});

it('passes several limits, and sums their archive by name', async () => {
  const two = terms(limit('a', 100), limit('b', 1000));
  const reservation = await hold(asks('two', 'k', [10, 20], 1, two), 'op');
  await ledger.settle({ reservation, operation: 'op', actual: [7, 9], grade: 'reported' });
  now += 20_000;
  const tag = lineTag('two', 'r');
  await ledger.sweep(tag, 100);
  await hold(asks('two', 'k2', [1, 2], 1, two));
  const [dump] = await ledger.dump(tag);
  const { line, problems } = auditLine(dump!, false);
  expect(problems).toEqual([]);
  expect(line).toMatchObject({ archive: { count: 1, sum: { a: 7, b: 9 } }, suspended: null });
  expect(line.books.map(({ limit }) => limit)).toEqual(['a', 'b']);
});

const last = (copy: Changeable) => copy.pages.at(-1).books[0];
const receipt = (copy: Changeable, state: string) =>
  copy.receipts.find((each: { state: string; own: boolean }) => each.state === state && !each.own);

it.each<[string, (copy: Changeable) => void, RegExp]>([
  ['a unit made of nothing', (d) => last(d).counters.minted++, /the equation is off by 1$/],
  ['a unit lost', (d) => last(d).counters.lapsed++, /the equation is off by -1$/],
  [
    'a negative term',
    (d) => {
      last(d).counters.available = -1;
      last(d).counters.lapsed += 1;
    },
    /available is -1$/,
  ],
  [
    'a term beyond 2^53 - 1',
    (d) => {
      last(d).counters.minted = 2 ** 53;
    },
    /minted is 9007199254740992/,
  ],
  [
    'reserved and spent exchanged',
    (d) => {
      last(d).counters.reserved -= 1;
      last(d).counters.spent += 1;
    },
    /reserved is 49, open receipts hold 50$/,
  ],
  ['a receipt that holds more', (d) => receipt(d, 'RESERVED').units[0]++, /open receipts hold 51/],
  [
    'a receipt that used more',
    (d) => receipt(d, 'SETTLED').actual[0]++,
    /receipts and archive say/,
  ],
  ['a receipt gone', (d) => d.receipts.pop(), /counts \d kept receipts, there are/],
  ['an archive that grew', (d) => d.pages[0].books[0].archiveSum++, /receipts and archive say/],
  [
    'more repaid than issued',
    (d) => {
      last(d).counters.overdraftRepaid += last(d).counters.overdraftIssued + 1;
    },
    /more overdraft was repaid than issued, by 1/,
  ],
  [
    'a closed book with something available',
    (d) => {
      d.pages[0].books[0].counters.available += 1;
      d.pages[0].books[0].counters.lapsed -= 1;
    },
    /is closed and has 1 available/,
  ],
  [
    'an open page that is not the last',
    (d) => {
      d.pages[0].closed = false;
    },
    /generation 1, epoch \d+ is open/,
  ],
  [
    'no open page',
    (d) => {
      d.pages[1].closed = true;
    },
    /generation 2, epoch \d+ is closed/,
  ],
  [
    'another subject',
    (d) => {
      d.subject = 'other';
    },
    /under the key of another line/,
  ],
  [
    'a receipt of a book that is not there',
    (d) => {
      receipt(d, 'RELEASED').generation = 7;
    },
    /belongs to a book that is not there/,
  ],
  [
    'a receipt ahead of its line',
    (d) => {
      receipt(d, 'RESERVED').seq = d.seq + 1;
    },
    /above its line's/,
  ],
  [
    'settled without a use',
    (d) => {
      receipt(d, 'SETTLED').actual = undefined;
    },
    /is SETTLED without a use/,
  ],
  [
    'settled without an operation',
    (d) => {
      receipt(d, 'SETTLED').operation = '';
    },
    /is SETTLED without an operation/,
  ],
  [
    'one of its own that holds',
    (d) => {
      d.receipts.find((each: { own: boolean }) => each.own).units = [1];
    },
    /is of its own and holds units/,
  ],
  [
    'an open receipt that may fold',
    (d) => {
      receipt(d, 'RESERVED').keepUntil = 5;
    },
    /is RESERVED, kept until 5/,
  ],
])('names %s', async (_what, change, problem) => {
  const [dump] = await ledger.dump(lineTag('busy', 'r'));
  const { problems } = auditLine(changed(dump!, change), false);
  expect(
    problems.some((found) => problem.test(found)),
    problems.join('\n'),
  ).toBe(true);
});

it('adds up exactly where doubles do not', async () => {
  const [dump] = await ledger.dump(lineTag('busy', 'r'));
  const copy = changed(dump!, (d) => {
    // Beyond 2^53 a difference of one vanishes in a sum of doubles.
    last(d).counters.minted += 2 ** 53 - 20_000;
    last(d).counters.lapsed += 2 ** 53 - 20_001;
    last(d).counters.opening += 2 ** 52;
    last(d).counters.carriedOut += 2 ** 52;
  });
  expect(auditLine(copy, false).line.books.at(-1)!.difference).toBe(1);
});
