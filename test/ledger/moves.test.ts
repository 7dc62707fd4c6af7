/** Newer generations, later epochs, other plans: rules 5, 6 and 7. No move makes capacity or clears a debt. */
import { describe, expect, it } from 'vitest';
import type { LimitTerms } from '../../src/ledger/types.js';
import {
  DAY,
  type Line,
  limit,
  onEachServer,
  RETENTION,
  T0,
  termsOf,
  told,
} from '../support/ledger.js';

const half = { numerator: 1, denominator: 2 };
const double = { numerator: 2, denominator: 1 };
const one = { numerator: 1, denominator: 1 };

onEachServer('moves', (bench) => {
  /** From now on the line is asked under the next generation. */
  function publish(line: Line, ...limits: Partial<LimitTerms>[]): void {
    const generation = line.budget.generation + 1;
    const terms = { ...line.budget.terms, limits: limits.map(limit) };
    line.budget = { ...line.budget, generation, content: `content ${generation}`, terms };
  }

  /** What came into the line from outside: it must not change by a move. */
  async function brought(line: Line, name = ''): Promise<number> {
    const { archive } = await line.dump();
    const folded = archive.filter((book) => book.limit === name).map(({ counters }) => counters);
    return [...(await line.books(name)), ...folded].reduce(
      (total, { opening, minted, carriedOut }) => total + opening + minted - carriedOut,
      0,
    );
  }

  describe('to a newer generation', () => {
    it.each([
      [2000, 700, 0],
      [700, 700, 0],
      [500, 500, 200],
    ])('with a burst of %d takes over %d of 700; %d lapse', async (burst, opening, lapsed) => {
      const line = bench.line();
      await line.reserve('a', 300);
      publish(line, { burst });
      expect(told(await line.reserve('b', 1))).toBe('moved RESERVED');
      const [old, open] = await line.books();
      expect(old).toMatchObject({ available: 0, reserved: 300, carriedOut: opening, lapsed });
      expect(open).toMatchObject({ opening, available: opening - 1, reserved: 1 });
      expect(await brought(line)).toBe(1000);
    });

    it('happens also where the request is refused', async () => {
      const line = bench.line();
      await line.reserve('a', 300);
      publish(line, { burst: 500 });
      expect(told(await line.reserve('b', 501))).toBe('limited max-reservation');
      expect(await line.dump()).toMatchObject({ generation: 2, pages: [{ closed: true }, {}] });
    });

    it('refuses the older one as stale, and answers what is known first', async () => {
      const line = bench.line();
      const older = line.budget;
      await line.reserve('a', 300);
      publish(line, { burst: 500 });
      await line.reserve('b', 1);
      const stale = await line.reserve('c', 1, { budget: older });
      expect(stale).toMatchObject({ kind: 'refused', why: 'stale', detail: '2' });
      expect(told(await line.reserve('a', 300, { budget: older }))).toBe('same RESERVED');
      expect(told(await line.start('a'))).toBe('moved STARTED');
    });

    it('refuses other content of the same generation', async () => {
      const line = bench.line();
      await line.reserve('a', 300);
      const other = { ...line.budget, content: 'other' };
      const refused = await line.reserve('b', 1, { budget: other });
      expect(refused).toMatchObject({ why: 'content', detail: 'content 1' });
    });

    it('takes what is there to the last unit, also beside holds of a closed book', async () => {
      const line = bench.line();
      await line.reserve('a', 300);
      publish(line, {});
      expect(told(await line.reserve('b', 701))).toBe('limited capacity');
      expect(told(await line.reserve('b', 700))).toBe('moved RESERVED');
      expect((await line.open()).available).toBe(0);
    });

    it('settles what is open in its own book; excess comes from the open one first', async () => {
      const line = bench.line();
      await line.admit('a', 300);
      publish(line, {});
      await line.reserve('b', 100);
      await line.settle('a', 950);
      const [old, open] = await line.books();
      expect(old).toMatchObject({ reserved: 0, spent: 950, minted: 600, overdraftIssued: 50 });
      expect(open).toMatchObject({ available: 0, reserved: 100, carriedOut: 600 });
      expect(told(await line.reserve('c', 1))).toBe('limited debt');
      expect(await brought(line)).toBe(1000);
    });

    it('credits a refund of a closed book to the open one, up to its burst', async () => {
      const line = bench.line();
      await line.admit('a', 900);
      publish(line, { burst: 200 });
      await line.reserve('b', 50);
      await line.settle('a', 100);
      const [old, open] = await line.books();
      expect(old).toMatchObject({ reserved: 0, spent: 100, lapsed: 650, carriedOut: 250 });
      expect(open).toMatchObject({ opening: 100, minted: 150, available: 200, reserved: 50 });
      expect(await brought(line)).toBe(1000);
    });

    it('carries a debt along, and the oldest is repaid first', async () => {
      const line = bench.line();
      await line.admit('a', 500);
      await line.reserve('b', 500);
      await line.settle('a', 600);
      publish(line, {});
      expect(told(await line.reserve('x', 1))).toBe('limited debt');
      await line.settle('x', 30, { metadata: {} });
      expect(await line.books()).toMatchObject([
        { overdraftIssued: 100, overdraftRepaid: 0 },
        { overdraftIssued: 30, overdraftRepaid: 0 },
      ]);
      await line.credit(110);
      const [old, open] = await line.books();
      expect(old).toMatchObject({ minted: 100, overdraftRepaid: 100 });
      expect(open).toMatchObject({ minted: 110, carriedOut: 100, overdraftRepaid: 10 });
      await line.release('b');
      const [first, last] = await line.books();
      expect(first).toMatchObject({ reserved: 0, carriedOut: 500 });
      expect(last).toMatchObject({ overdraftRepaid: 30, available: 480 });
    });

    it.each(['epoch', 'generation'])('of several by %s the oldest is repaid first', async (by) => {
      const line = bench.line(termsOf({ epochMs: DAY }));
      const move = async (key: string) => {
        if (by === 'epoch') bench.now += DAY;
        else publish(line, {});
        await line.reserve(key, 1000);
      };
      await line.reserve('a', 10);
      await line.release('a');
      await move('x');
      await line.release('x');
      await line.settle('x', 1100, { operation: 'late' });
      await move('y');
      expect((await line.books()).length).toBe(3);
      // The older book comes to its debt later.
      await line.settle('a', 50, { operation: 'late' });
      await line.credit(60);
      const [oldest, older] = await line.books();
      expect(oldest).toMatchObject({ overdraftIssued: 50, overdraftRepaid: 50 });
      expect(older).toMatchObject({ overdraftIssued: 100, overdraftRepaid: 10 });
    });

    it('repays in its own book without a way round', async () => {
      const line = bench.line();
      await line.admit('a', 500);
      await line.reserve('b', 500);
      await line.settle('a', 600);
      publish(line, {});
      await line.reserve('x', 1);
      await line.release('b');
      const [old, open] = await line.books();
      expect(old).toMatchObject({ overdraftRepaid: 100, carriedOut: 400, minted: 0 });
      expect(open).toMatchObject({ minted: 400, available: 400 });
    });

    it('accrues to that instant under the old rule and drops the remainder', async () => {
      const refill = { units: 3, everyMs: 7 };
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.reserve('a', 600);
      bench.now += 10;
      publish(line, { refill: { units: 1, everyMs: 5 } });
      await line.reserve('b', 1);
      const [old, open] = await line.books();
      expect(old).toMatchObject({ minted: 4, carriedOut: 404 });
      expect(open).toMatchObject({ opening: 404 });
      expect((await line.dump()).remainders).toEqual([0]);
      bench.now += 5;
      await line.reserve('c', 1);
      expect((await line.open()).minted).toBe(1);
    });

    it('opens a limit that is new full, and one that is gone lapses', async () => {
      const line = bench.line(termsOf({ limits: [limit({ name: 'm' }), limit({ name: 'd' })] }));
      await line.reserve('a', [100, 200]);
      publish(line, { name: 'd', burst: 500 }, { name: 'n', burst: 50 });
      await line.reserve('b', [1, 2]);
      expect((await line.books('m'))[0]).toMatchObject({
        available: 0,
        lapsed: 900,
        reserved: 100,
      });
      expect((await line.books('d'))[0]).toMatchObject({ carriedOut: 500, lapsed: 300 });
      expect(await line.open('d')).toMatchObject({ opening: 500, available: 499 });
      expect(await line.open('n')).toMatchObject({ opening: 50, available: 48 });
      // A refund of the limit that is gone can go nowhere.
      await line.release('a');
      expect((await line.dump()).archive).toEqual([]);
      expect((await line.books('m'))[0]).toMatchObject({ reserved: 0, lapsed: 1000 });
    });

    it('a debt of a limit that is gone still suspends, until its refunds repay it', async () => {
      const line = bench.line(termsOf({ limits: [limit({ name: 'm' }), limit({ name: 'd' })] }));
      await line.admit('a', [500, 1]);
      await line.reserve('b', [500, 1]);
      await line.settle('a', [700, 1]);
      publish(line, { name: 'd' });
      const refused = await line.reserve('c', 3);
      expect(refused).toMatchObject({ by: 'debt', limit: 'm', waitMs: undefined, needed: 3 });
      await line.release('b');
      expect((await line.books('m'))[0]).toMatchObject({ overdraftRepaid: 200, lapsed: 300 });
      expect(told(await line.reserve('c', 3))).toBe('moved RESERVED');
    });
  });

  describe('to a later epoch', () => {
    const daily = { epochMs: DAY };

    it('at the first request in it, and not before', async () => {
      const line = bench.line(termsOf(daily));
      await line.reserve('a', 300);
      bench.now = T0 + DAY / 2 - 1;
      await line.reserve('b', 1);
      expect((await line.books()).length).toBe(1);
      bench.now += 1;
      await line.start('a');
      await line.sweep();
      expect((await line.books()).length).toBe(1);
      await line.reserve('c', 1);
      expect(await line.dump()).toMatchObject({ epoch: T0 + DAY / 2, generation: 1 });
      const [old, open] = await line.books();
      expect(old).toMatchObject({ available: 0, reserved: 1, carriedOut: 999 });
      expect(open).toMatchObject({ opening: 999, available: 998 });
      expect(await brought(line)).toBe(1000);
    });

    it('keeps the remainder, but where the line is full', async () => {
      const refill = { units: 3, everyMs: 7 };
      const line = bench.line(termsOf({ ...daily, limit: { refill } }));
      bench.now = T0 + DAY / 2 - 1;
      await line.reserve('a', 600);
      bench.now += 1;
      await line.reserve('b', 1);
      expect((await line.dump()).remainders).toEqual([3]);
      await line.release('a');
      await line.release('b');
      bench.now += DAY;
      await line.reserve('c', 600);
      expect((await line.dump()).remainders).toEqual([0]);
    });

    it('never goes back, not under a newer generation either', async () => {
      const line = bench.line(termsOf(daily));
      await line.reserve('a', 300);
      bench.now += DAY;
      await line.reserve('b', 300);
      bench.now -= DAY;
      await line.reserve('c', 1);
      expect((await line.books()).length).toBe(2);
      publish(line, {});
      await line.reserve('d', 1);
      expect((await line.dump()).pages.map(({ generation }) => generation)).toEqual([1, 1, 2]);
    });

    it('folds a closed page that nothing needs', async () => {
      const line = bench.line(termsOf(daily));
      await line.reserve('a', 2000);
      bench.now += DAY;
      await line.reserve('b', 100);
      const { pages, archive } = await line.dump();
      expect(pages.length).toBe(1);
      expect(archive).toMatchObject([
        { limit: '', counters: { opening: 1000, carriedOut: 1000 }, archiveCount: 0 },
      ]);
      await line.admit('c', 100);
      await line.settle('c', 70);
      bench.now += DAY;
      await line.reserve('d', 1);
      await line.release('b');
      await line.release('d');
      bench.now += RETENTION;
      expect(await line.settleDown()).toMatchObject({ folded: 3, nextDue: 0 });
      const last = await line.dump();
      expect(last.pages.length).toBe(1);
      expect(last.archive).toMatchObject([
        { counters: { opening: 2000, spent: 70 }, archiveCount: 2, archiveSum: 70 },
      ]);
      expect(await brought(line)).toBe(1000);
    });
  });

  describe('to another plan', () => {
    it('smaller: what is above the new burst lapses', async () => {
      const line = bench.line();
      await line.reserve('a', 100);
      line.budget = { ...line.budget, factor: half };
      expect(told(await line.reserve('b', 501))).toBe('limited max-reservation');
      expect(await line.open()).toMatchObject({ available: 500, lapsed: 400 });
      expect((await line.reserve('b', 500)).line.limits[0]).toMatchObject({ burst: 500 });
      await line.release('b');
      await line.release('a');
      expect(await line.open()).toMatchObject({ available: 500, lapsed: 500 });
    });

    it('larger: nothing is minted at once, refill goes on to the new burst', async () => {
      const refill = { units: 1, everyMs: 10 };
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.reserve('a', 100);
      line.budget = { ...line.budget, factor: double };
      expect(told(await line.reserve('b', 1200))).toBe('limited capacity');
      expect(await line.open()).toMatchObject({ available: 900, minted: 0 });
      bench.now += 1000;
      await line.reserve('c', 1);
      expect(await line.open()).toMatchObject({ available: 1099, minted: 200 });
    });

    it('refills up to that instant under the old factor, and drops the remainder', async () => {
      const refill = { units: 3, everyMs: 7 };
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.reserve('a', 900);
      bench.now += 8;
      line.budget = { ...line.budget, factor: double };
      await line.reserve('b', 1);
      expect((await line.open()).minted).toBe(3);
      expect((await line.dump()).remainders).toEqual([0]);
      bench.now += 7;
      await line.reserve('c', 1);
      expect((await line.open()).minted).toBe(9);
    });

    it('of the same value is the same plan', async () => {
      const refill = { units: 3, everyMs: 7 };
      const line = bench.line(termsOf({ limit: { refill } }), { factor: half });
      await line.reserve('a', 300);
      bench.now += 2;
      line.budget = { ...line.budget, factor: { numerator: 2, denominator: 4 } };
      await line.reserve('b', 1);
      // One unit (half of 3, rounded down) in 7 ms: two sevenths by now.
      expect((await line.dump()).remainders).toEqual([2]);
    });

    it('scales down to no less than 1', async () => {
      const terms = termsOf({ limit: { burst: 10, refill: { units: 3, everyMs: 10 } } });
      const line = bench.line(terms, { factor: { numerator: 1, denominator: 100 } });
      expect(told(await line.reserve('a', 2))).toBe('limited max-reservation');
      expect(told(await line.reserve('a', 1))).toBe('moved RESERVED');
      expect(await line.reserve('b', 1)).toMatchObject({ waitMs: 10 });
    });

    it('together with an epoch drops the remainder', async () => {
      const refill = { units: 3, everyMs: 7 };
      const line = bench.line(termsOf({ epochMs: DAY, limit: { refill } }));
      bench.now = T0 + DAY / 2 - 1;
      await line.reserve('a', 900);
      bench.now += 1;
      line.budget = { ...line.budget, factor: double };
      await line.reserve('b', 1);
      expect((await line.books()).length).toBe(2);
      expect((await line.dump()).remainders).toEqual([0]);
    });

    it('together with an epoch takes the new burst into the move', async () => {
      const line = bench.line(termsOf({ epochMs: DAY }));
      await line.reserve('a', 100);
      bench.now += DAY;
      line.budget = { ...line.budget, factor: half };
      await line.reserve('b', 1);
      const [old, open] = await line.books();
      expect(old).toMatchObject({ carriedOut: 500, lapsed: 400 });
      expect(open).toMatchObject({ opening: 500, available: 499 });
      line.budget = { ...line.budget, factor: one };
      expect(told(await line.reserve('c', 600))).toBe('limited capacity');
    });
  });
});
