/** Refill to the unit and waits to the ms, continuous and by windows; several limits at once: rules 2, 8 and 9. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Refill } from '../../src/ledger/types.js';
import { type Bench, DAY, HOLD, limit, onEachServer, termsOf, told } from '../support/ledger.js';

/** Every boundary of the window in UTC after `from`, by the calendar of the language. */
function nextBoundary(window: string, from: number): number {
  const date = new Date(from);
  const day = Date.UTC(date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate());
  switch (window) {
    case 'minute':
      return from - (from % 60_000) + 60_000;
    case 'hour':
      return from - (from % 3_600_000) + 3_600_000;
    case 'day':
      return day + DAY;
    case 'week':
      return day + DAY * (date.getUTCDay() === 0 ? 1 : 8 - date.getUTCDay());
    default:
      return Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1, 1);
  }
}

const WINDOWS = ['minute', 'hour', 'day', 'week', 'month'] as const;

const refills: fc.Arbitrary<Refill> = fc.oneof(
  fc.record({ units: fc.integer({ min: 1, max: 50 }), everyMs: fc.integer({ min: 1, max: 40 }) }),
  fc.record({ units: fc.integer({ min: 1, max: 50 }), window: fc.constantFrom(...WINDOWS) }),
);
const factors = fc.record({
  numerator: fc.integer({ min: 1, max: 5 }),
  denominator: fc.integer({ min: 1, max: 5 }),
});
const instants = fc.integer({ min: Date.UTC(2000, 0, 1), max: Date.UTC(2099, 11, 31) });

onEachServer('refill', (bench) => {
  describe('a wait', () => {
    /** A line that is empty by `used`, at any instant, with any remainder. */
    async function usedLine(at: Bench, at0: number, refill: Refill, factor: object, used: number) {
      at.now = at0;
      const terms = termsOf({ epochMs: 1000 * 365 * DAY, limit: { burst: 100, refill } });
      const line = at.line(terms, { factor: factor as { numerator: 1; denominator: 1 } });
      await line.reserve('first', 1);
      await line.settle('first', used, { operation: 'op' });
      return line;
    }

    it('for capacity is exact: refused one ms before, admitted at its end', async () => {
      await fc.assert(
        fc.asyncProperty(
          ...[instants, refills, factors],
          ...[fc.integer({ min: 1, max: 20 }), fc.integer({ min: 0, max: 60 })],
          async (at0, refill, factor, units, ms) => {
            const burst = Math.max(1, Math.floor((100 * factor.numerator) / factor.denominator));
            const line = await usedLine(bench, at0, refill, factor, burst);
            bench.now += ms;
            const asked = await line.reserve('a', Math.min(units, burst));
            if (asked.kind === 'moved') return;
            if (asked.kind !== 'limited') throw new Error(told(asked));
            expect(asked.by).toBe('capacity');
            bench.now += asked.waitMs! - 1;
            const early = await line.reserve('a', Math.min(units, burst));
            expect(early).toMatchObject({ kind: 'limited', waitMs: 1 });
            bench.now += 1;
            expect(told(await line.reserve('a', Math.min(units, burst)))).toBe('moved RESERVED');
          },
        ),
        { numRuns: 30 },
      );
    });

    it('for debt is exact too: it repays, and leaves what was asked for', async () => {
      await fc.assert(
        fc.asyncProperty(
          ...[instants, refills, factors],
          ...[fc.integer({ min: 1, max: 300 }), fc.integer({ min: 0, max: 60 })],
          async (at0, refill, factor, debt, ms) => {
            const burst = Math.max(1, Math.floor((100 * factor.numerator) / factor.denominator));
            const line = await usedLine(bench, at0, refill, factor, burst + debt);
            bench.now += ms;
            const asked = await line.reserve('a', 1);
            if (asked.kind !== 'limited' || asked.by !== 'debt') return;
            bench.now += asked.waitMs! - 1;
            expect(await line.reserve('a', 1)).toMatchObject({ kind: 'limited', waitMs: 1 });
            bench.now += 1;
            expect(told(await line.reserve('a', 1))).toBe('moved RESERVED');
          },
        ),
        { numRuns: 25 },
      );
    });

    it('until the limit is full is said the same way', async () => {
      await fc.assert(
        fc.asyncProperty(
          instants,
          refills,
          fc.integer({ min: 1, max: 150 }),
          async (at, r, used) => {
            const line = await usedLine(bench, at, r, { numerator: 1, denominator: 1 }, used);
            const resetMs = (await bench.ledger.get(line.id('first')))!.line.limits[0]!.resetMs;
            bench.now += resetMs - 1;
            await line.credit(0);
            expect((await line.open()).available).toBeLessThan(100);
            bench.now += 1;
            await line.credit(0);
            expect(await line.open()).toMatchObject({ available: 100 });
          },
        ),
        { numRuns: 25 },
      );
    });

    it('without refill is the hold of those that hold it, else none', async () => {
      const line = bench.line();
      await line.admit('a', 900);
      expect(await line.reserve('x', 200)).toMatchObject({ by: 'capacity', waitMs: HOLD });
      await line.settle('a', 900);
      expect(await line.reserve('x', 200)).toMatchObject({ by: 'capacity', waitMs: undefined });
      expect(await line.reserve('x', 1001)).toMatchObject({ waitMs: undefined });
    });

    it('without refill sees also what a closed book holds', async () => {
      const line = bench.line();
      await line.admit('a', 900);
      line.budget = { ...line.budget, generation: 2, content: 'content 2' };
      expect(await line.reserve('x', 200)).toMatchObject({ by: 'capacity', waitMs: HOLD });
      await line.settle('a', 900);
      expect(await line.reserve('x', 200)).toMatchObject({ waitMs: undefined });
    });

    it('longer than can be said is none', async () => {
      const refill = { units: 1, everyMs: 2 ** 52 };
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.reserve('a', 1000);
      expect(await line.reserve('x', 1)).toMatchObject({ waitMs: 2 ** 52 });
      expect(await line.reserve('x', 2)).toMatchObject({ waitMs: undefined });
    });
  });

  describe('by windows', () => {
    it.each(WINDOWS)('credits at each %s of UTC, as the calendar has them', async (window) => {
      await fc.assert(
        fc.asyncProperty(instants, async (at) => {
          bench.now = at;
          const terms = termsOf({
            epochMs: 1000 * 365 * DAY,
            limit: { refill: { units: 7, window } },
          });
          const line = bench.line(terms);
          await line.reserve('a', 1000);
          const first = nextBoundary(window, at);
          expect(await line.reserve('x', 7)).toMatchObject({ waitMs: first - at });
          const second = nextBoundary(window, first);
          expect(await line.reserve('x', 8)).toMatchObject({ waitMs: second - at });
          bench.now = first - 1;
          await line.credit(0);
          expect((await line.open()).minted).toBe(0);
          bench.now = first;
          await line.credit(0);
          expect((await line.open()).minted).toBe(7);
          bench.now = nextBoundary(window, second);
          await line.credit(0);
          expect((await line.open()).minted).toBe(21);
        }),
        { numRuns: 10 },
      );
    });

    it.each([
      ['month', Date.UTC(2100, 1, 28), Date.UTC(2100, 2, 1)],
      ['month', Date.UTC(2000, 1, 29), Date.UTC(2000, 2, 1)],
      ['month', Date.UTC(2027, 11, 31, 23, 59, 59, 999), Date.UTC(2028, 0, 1)],
      ['week', Date.UTC(2026, 0, 4, 23, 59, 59, 999), Date.UTC(2026, 0, 5)],
      ['week', Date.UTC(2026, 0, 5), Date.UTC(2026, 0, 12)],
    ] as const)('%s at its edges', async (window, at, boundary) => {
      bench.now = at;
      const refill = { units: 7, window };
      const line = bench.line(termsOf({ epochMs: 1000 * 365 * DAY, limit: { refill } }));
      await line.reserve('a', 1000);
      expect(await line.reserve('x', 1)).toMatchObject({ waitMs: boundary - at });
    });

    it('clips what many windows bring at the burst and the debt', async () => {
      const refill = { units: 300, window: 'hour' } as const;
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.admit('a', 1000);
      await line.settle('a', 1500);
      bench.now += 100 * DAY;
      await line.reserve('b', 1);
      const book = await line.open();
      expect(book).toMatchObject({ minted: 1500, overdraftRepaid: 500, available: 999, lapsed: 0 });
    });
  });

  it.each([
    [3, 900],
    [4, 1000],
    [5, 1000],
  ])('%d times 300 of a burst of 1000 mint %d', async (times, minted) => {
    for (const refill of [{ units: 300, window: 'hour' } as const, { units: 300, everyMs: 10 }]) {
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.reserve('a', 1000);
      bench.now += times * ('window' in refill ? 3_600_000 : 10);
      await line.credit(0);
      expect(await line.open()).toMatchObject({ available: minted, minted, lapsed: 0 });
    }
  });

  describe('continuous', () => {
    it('loses no fraction of a unit, however often it is looked at', async () => {
      const refill = { units: 3, everyMs: 7 };
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.reserve('a', 1000);
      for (let ms = 1; ms <= 30; ms++) {
        bench.now += 1;
        await line.credit(0);
        expect((await line.open()).minted).toBe(Math.floor((3 * ms) / 7));
      }
    });

    it('clips a long absence at the burst, and a full bucket has no remainder', async () => {
      const refill = { units: 3, everyMs: 7 };
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.reserve('a', 500);
      bench.now += 100 * DAY + 4;
      await line.credit(0);
      const book = await line.open();
      expect(book).toMatchObject({ available: 1000, minted: 1002, lapsed: 502 });
      expect((await line.dump()).remainders).toEqual([0]);
      bench.now += 1;
      await line.reserve('b', 500);
      expect((await line.dump()).remainders).toEqual([0]);
    });

    it('mints nothing for a clock that went back', async () => {
      const refill = { units: 1, everyMs: 1 };
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.reserve('a', 500);
      bench.now -= 100;
      await line.credit(0);
      expect(await line.open()).toMatchObject({ available: 500, minted: 0 });
      bench.now += 150;
      await line.credit(0);
      expect(await line.open()).toMatchObject({ available: 550, minted: 50 });
    });
  });

  describe('several limits', () => {
    const minute = { name: 'minute', burst: 100, refill: { units: 10, everyMs: 7 } };
    const day = { name: 'day', burst: 50, refill: { units: 1, everyMs: 1000 } };
    const two = () => bench.line(termsOf({ limits: [limit(minute), limit(day)] }));

    it('admit all or none, and name the one with the longest wait', async () => {
      const line = two();
      await line.reserve('a', [90, 40]);
      const refused = await line.reserve('b', [30, 20]);
      expect(refused).toMatchObject({ by: 'capacity', limit: 'day', needed: 20, waitMs: 10_000 });
      expect(await line.open('minute')).toMatchObject({ available: 10, reserved: 90 });
      expect(await line.reserve('b', [30, 10])).toMatchObject({ limit: 'minute', needed: 30 });
      expect(told(await line.reserve('b', [10, 10]))).toBe('moved RESERVED');
      expect(await line.reserve('c', [101, 51])).toMatchObject({
        by: 'max-reservation',
        limit: 'minute',
        needed: 101,
      });
    });

    it('a wait that never ends is the longest; of equals it is the first', async () => {
      const limits = [limit(minute), limit({ name: 'total', burst: 10 })];
      const line = bench.line(termsOf({ limits }));
      await line.admit('a', [100, 10]);
      await line.settle('a', [100, 10]);
      const refused = await line.reserve('b', [100, 10]);
      expect(refused).toMatchObject({ limit: 'total', waitMs: undefined });
      const same = bench.line(
        termsOf({ limits: [limit(minute), limit({ ...minute, name: 'also' })] }),
      );
      await same.reserve('a', [100, 100]);
      expect(await same.reserve('b', [1, 1])).toMatchObject({ limit: 'minute', waitMs: 1 });
    });

    it('a debt in one stops all; one without debt does not count then', async () => {
      const line = two();
      await line.admit('a', [10, 10]);
      await line.settle('a', [105, 50]);
      const refused = await line.reserve('b', [1, 40]);
      expect(refused).toMatchObject({ by: 'debt', limit: 'minute', needed: 1, waitMs: 5 });
    });

    it('each transition moves all of them', async () => {
      const line = two();
      await line.reserve('a', [10, 20]);
      await line.release('a');
      await line.admit('b', [10, 20]);
      await line.settle('b', [15, 5]);
      expect(await line.open('minute')).toMatchObject({ available: 85, spent: 15, reserved: 0 });
      expect(await line.open('day')).toMatchObject({ available: 45, spent: 5, reserved: 0 });
    });

    it('one amount stands for those in the unit of the budget', async () => {
      const limits = [limit({ name: 'tokens' }), limit({ name: 'money', ownCost: true })];
      const line = bench.line(termsOf({ limits }));
      await line.admit('a', [100, 30]);
      expect(await line.settle('a', 50)).toMatchObject({ receipt: { actual: [50, 30] } });
      await line.admit('b', [100, 30]);
      expect(await line.settle('b', 0)).toMatchObject({ receipt: { actual: [0, 0] } });
      await line.admit('c', [100, 30]);
      expect(await line.unknown('c', 50)).toMatchObject({ receipt: { least: [50, 30] } });
      await line.settle('c', 60, { operation: 'other' });
      expect(await line.receipt('c', 'other')).toMatchObject({ actual: [60, 0] });
      expect(told(await line.settle('c', [1, 2, 3]))).toBe('refused invalid');
      expect(told(await line.unknown('c', [1, 2, 3]))).toBe('refused invalid');
    });

    it('a breach in one is a breach', async () => {
      const strict = limit({ name: 'day', burst: 50, executionHardCap: 40 });
      const line = bench.line(termsOf({ limits: [limit(minute), strict], onBreach: 'freezeLine' }));
      await line.admit('a', [10, 10]);
      expect(await line.settle('a', [10, 41])).toMatchObject({
        receipt: { breach: true, state: 'SETTLED' },
        line: { frozenUntil: -1 },
      });
    });

    it('eight of them', async () => {
      const limits = Array.from({ length: 8 }, (_, i) => limit({ name: `l${i}`, burst: 10 + i }));
      const line = bench.line(termsOf({ limits }));
      const units = limits.map(({ burst }) => burst);
      await line.admit('a', units);
      await line.settle('a', units);
      expect((await line.dump()).pages[0]!.books.map(({ counters }) => counters.spent)).toEqual(
        units,
      );
    });
  });
});
