/** Credit, excess, debt, breach and freezes: rules 3, 4 and 6. */
import { describe, expect, it } from 'vitest';
import { limit, onEachServer, RETENTION, T0, termsOf, told } from '../support/ledger.js';

onEachServer('the account', (bench) => {
  describe('settlement', () => {
    it('three ask for 600 of 1000 at once; one is admitted, 200 used leave 800', async () => {
      const line = bench.line();
      const { ledger } = bench;
      const asked = ['a', 'b', 'c'].map((key) =>
        ledger.admit({ ...line.request(key, 600), operation: key }),
      );
      const answers = (await Promise.all(asked)).map(told).sort();
      expect(answers).toEqual(['limited capacity', 'limited capacity', 'moved STARTED']);
      const [won] = await line.receipts();
      const { reservation, operation } = won!;
      await ledger.settle({ reservation, operation, actual: [200], grade: 'reported' });
      expect(await line.open()).toMatchObject({ available: 800, reserved: 0, spent: 200 });
    });

    it.each([0, 1, 599, 600])('of %d of 600 held gives the rest back', async (actual) => {
      const line = bench.line();
      await line.admit('a', 600);
      const settled = await line.settle('a', actual);
      expect(settled).toMatchObject({
        receipt: { state: 'SETTLED', actual: [actual], evidence: 'reported', breach: false },
      });
      const book = await line.open();
      expect(book).toMatchObject({ available: 1000 - actual, reserved: 0, spent: actual });
    });

    it.each([
      [601, 399, 0, 'SETTLED'],
      [1000, 0, 0, 'SETTLED'],
      [1001, 0, 1, 'SETTLED_WITH_DEBT'],
    ])('of %d of 600 held leaves %d and a debt of %d', async (actual, available, debt, state) => {
      const line = bench.line();
      await line.admit('a', 600);
      expect(await line.settle('a', actual)).toMatchObject({ receipt: { state, breach: false } });
      const book = await line.open();
      expect(book).toMatchObject({ available, reserved: 0, spent: actual, overdraftIssued: debt });
    });

    it('ends USAGE_UNKNOWN only by a receipt; the least known is kept, the greatest of both', async () => {
      const line = bench.line();
      await line.admit('a', 600);
      expect(await line.unknown('a')).toMatchObject({ receipt: { least: undefined } });
      expect((await line.sweep()).nextDue).toBe(0);
      expect(await line.unknown('a', 50)).toMatchObject({ receipt: { least: [50] } });
      expect(told(await line.unknown('a', 50))).toBe('same USAGE_UNKNOWN');
      expect(told(await line.unknown('a', 49))).toBe('same USAGE_UNKNOWN');
      expect(told(await line.unknown('a'))).toBe('same USAGE_UNKNOWN');
      expect(await line.unknown('a', 51)).toMatchObject({ receipt: { least: [51] } });
      expect(await line.open()).toMatchObject({ available: 400, reserved: 600, spent: 0 });
      expect(told(await line.settle('a', 700))).toBe('moved SETTLED');
      expect(await line.open()).toMatchObject({ available: 300, reserved: 0, spent: 700 });
    });

    it('once: another amount is refused, the same one changes nothing', async () => {
      const line = bench.line();
      await line.admit('a', 600);
      await line.settle('a', 200);
      expect(told(await line.settle('a', 200, { grade: 'operator' }))).toBe('same SETTLED');
      expect(told(await line.settle('a', 201))).toBe('refused conflict');
      expect(told(await line.settle('a', 200, { grade: 'presumed' }))).toBe('same SETTLED');
      expect(told(await line.settle('a', 1, { grade: 'presumed' }))).toBe('same SETTLED');
      expect((await line.open()).spent).toBe(200);
    });
  });

  describe('presumed evidence', () => {
    const presumed = { grade: 'presumed' } as const;

    it.each([
      [200, 800, 'SETTLED', 0],
      [600, 400, 'SETTLED', 0],
      [900, 100, 'SETTLED', 0],
      [1100, 0, 'SETTLED_WITH_DEBT', 100],
    ])('of 600 is replaced once by a real %d', async (actual, available, state, debt) => {
      const line = bench.line();
      await line.admit('a', 600);
      await line.settle('a', 600, presumed);
      expect(told(await line.settle('a', 600, presumed))).toBe('same SETTLED');
      expect(told(await line.settle('a', 601, presumed))).toBe('refused conflict');
      const until = (await line.receipt('a')).keepUntil;
      bench.now += 5;
      expect(told(await line.settle('a', actual))).toBe(`moved ${state}`);
      const book = await line.open();
      expect(book).toMatchObject({ available, spent: actual, reserved: 0, overdraftIssued: debt });
      expect(await line.receipt('a')).toMatchObject({ evidence: 'reported', keepUntil: until });
      expect(told(await line.settle('a', actual + 1))).toBe('refused conflict');
      expect(told(await line.settle('a', actual))).toBe(`same ${state}`);
    });

    it('with debt: a lower amount repays it, and then there is none', async () => {
      const line = bench.line();
      await line.admit('a', 600);
      await line.settle('a', 1300, presumed);
      expect(told(await line.settle('a', 1200))).toBe('moved SETTLED');
      const book = await line.open();
      expect(book).toMatchObject({ spent: 1200, overdraftIssued: 300, overdraftRepaid: 100 });
    });

    it('with debt: the same amount leaves it a debt', async () => {
      const line = bench.line();
      await line.admit('a', 600);
      await line.settle('a', 1300, presumed);
      expect(told(await line.settle('a', 1300))).toBe('moved SETTLED_WITH_DEBT');
      expect((await line.receipt('a')).evidence).toBe('reported');
    });
  });

  describe('debt', () => {
    it('suspends the line until every unit is repaid, a refund first', async () => {
      const line = bench.line();
      await line.admit('a', 300);
      await line.admit('b', 700);
      await line.settle('a', 1000);
      expect((await line.open()).overdraftIssued).toBe(700);
      expect(told(await line.reserve('x', 1))).toBe('limited debt');
      await line.settle('b', 100);
      const book = await line.open();
      expect(book).toMatchObject({ overdraftRepaid: 600, available: 0, spent: 1100 });
      await line.credit(99);
      expect(told(await line.reserve('x', 1))).toBe('limited debt');
      await line.credit(1);
      expect(told(await line.reserve('x', 1))).toBe('limited capacity');
      await line.credit(1);
      expect(told(await line.reserve('x', 1))).toBe('moved RESERVED');
    });

    it('is repaid by refill to the unit, with the remainder kept', async () => {
      const refill = { units: 3, everyMs: 7 };
      const line = bench.line(termsOf({ limit: { refill, maxOverdraft: 1000 } }));
      await line.admit('a', 600);
      await line.settle('a', 1010);
      // 10 units at 3 in 7 ms: 24 ms, and the 2 sevenths of a unit that are too much stay.
      expect(await line.reserve('x', 1)).toMatchObject({ by: 'debt', waitMs: 26 });
      bench.now += 24;
      expect(await line.reserve('x', 1)).toMatchObject({ by: 'capacity', waitMs: 2 });
      const { remainders, pages } = await line.dump();
      expect(remainders).toEqual([2]);
      expect(pages[0]!.books[0]!.counters).toMatchObject({ minted: 10, overdraftRepaid: 10 });
      bench.now += 2;
      expect(told(await line.reserve('x', 1))).toBe('moved RESERVED');
      expect((await line.dump()).remainders).toEqual([1]);
    });

    it('is repaid by the sweep where nobody asks, which wants to come again', async () => {
      const refill = { units: 1, everyMs: 100 };
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.admit('a', 600);
      await line.settle('a', 1010);
      bench.now += 999;
      expect((await line.sweep()).nextDue).toBe(bench.now + 1000);
      expect((await line.open()).overdraftRepaid).toBe(9);
      bench.now += 1;
      expect((await line.sweep()).nextDue).toBe(T0 + RETENTION);
      expect((await line.open()).overdraftRepaid).toBe(10);
    });

    it('does not stop what runs: start, release and settlement go on', async () => {
      const line = bench.line();
      for (const key of ['a', 'b', 'c']) await line.reserve(key, 100);
      await line.start('a');
      await line.settle('a', 5000);
      expect(told(await line.start('b'))).toBe('moved STARTED');
      expect(told(await line.release('c'))).toBe('moved RELEASED');
      expect(told(await line.settle('b', 50))).toBe('moved SETTLED');
    });
  });

  describe('a credit', () => {
    it('fills up to the burst, and the rest lapses', async () => {
      const line = bench.line();
      await line.reserve('a', 300);
      expect(told(await line.credit(301))).toBe('moved');
      expect(await line.open()).toMatchObject({ available: 1000, minted: 301, lapsed: 1 });
      await line.release('a');
      expect(await line.open()).toMatchObject({ available: 1000, reserved: 0, lapsed: 301 });
    });

    it('sets the remainder to 0 where it fills the bucket', async () => {
      const refill = { units: 3, everyMs: 7 };
      const line = bench.line(termsOf({ limit: { refill } }));
      await line.reserve('a', 300);
      bench.now += 1;
      await line.credit(299);
      expect((await line.dump()).remainders).toEqual([3]);
      await line.credit(1);
      expect((await line.dump()).remainders).toEqual([0]);
    });

    it('of no such limit or line is refused', async () => {
      const line = bench.line();
      expect(told(await line.credit(1))).toBe('refused not-found');
      await line.reserve('a', 1);
      const refused = await line.credit(1, 'other');
      expect(refused).toMatchObject({ why: 'not-found', detail: 'no such limit' });
    });
  });

  describe('a breach', () => {
    const strict = { maxOverdraft: 100, executionHardCap: 1500 };
    it.each([
      ['freezeLine', 1101, true, -1],
      ['freezeRoute', 1101, true, -1],
      ['mark', 1101, true, 0],
      ['freezeLine', 1100, false, 0],
      ['freezeRoute', 1100, false, 0],
    ] as const)('with %s at %d used of 1000', async (onBreach, actual, breach, frozenUntil) => {
      const line = bench.line(termsOf({ limit: strict, onBreach }));
      await line.admit('a', 600);
      expect(await line.settle('a', actual)).toMatchObject({
        freezeRoute: breach && onBreach === 'freezeRoute',
        receipt: { state: 'SETTLED_WITH_DEBT', breach },
        line: { frozenUntil, limits: [{ debt: actual - 1000 }] },
      });
      expect((await line.open()).spent).toBe(actual);
      expect(told(await line.reserve('x', 1))).toBe(
        frozenUntil === 0 ? 'limited debt' : 'limited frozen',
      );
    });

    it.each([
      [1500, false],
      [1501, true],
    ])('by the hard cap alone: %d of a burst of 5000', async (actual, breach) => {
      const line = bench.line(termsOf({ limit: { ...strict, burst: 5000 } }));
      await line.admit('a', 600);
      expect(await line.settle('a', actual)).toMatchObject({
        receipt: { state: 'SETTLED', breach },
      });
    });

    it('is none where this settlement issued no overdraft', async () => {
      const line = bench.line(termsOf({ limit: { maxOverdraft: 100 } }));
      await line.admit('a', 500);
      await line.admit('b', 500);
      expect(await line.settle('a', 1200)).toMatchObject({ receipt: { breach: true } });
      const settled = await line.settle('b', 500);
      expect(settled).toMatchObject({ receipt: { state: 'SETTLED', breach: false } });
    });

    it('freezes for its time, and a longer freeze stands', async () => {
      const line = bench.line(
        termsOf({ limit: strict, onBreach: 'freezeLine', freezeForMs: 5000 }),
      );
      await line.admit('a', 500);
      await line.admit('b', 500);
      await line.settle('a', 1200);
      expect((await line.dump()).frozenUntil).toBe(T0 + 5000);
      bench.now += 1000;
      await line.settle('b', 1000);
      expect((await line.dump()).frozenUntil).toBe(T0 + 6000);
      await line.freeze(T0 + 60_000);
      await line.settle('b', 2000, { operation: 'late' });
      expect((await line.dump()).frozenUntil).toBe(T0 + 60_000);
      await line.freeze(-1);
      await line.settle('b', 2000, { operation: 'later' });
      expect((await line.dump()).frozenUntil).toBe(-1);
    });

    it('stays marked when real evidence replaces the presumed', async () => {
      const line = bench.line(termsOf({ limit: strict }));
      await line.admit('a', 600);
      await line.settle('a', 1600, { grade: 'presumed' });
      const settled = await line.settle('a', 100);
      expect(settled).toMatchObject({ receipt: { state: 'SETTLED', breach: true } });
      expect((await line.open()).available).toBe(900);
    });

    it('is judged by the limits of the reservation, not by those that came after', async () => {
      const line = bench.line(termsOf({ limit: { executionHardCap: 700 } }));
      await line.admit('a', 600);
      const loose = termsOf({ limits: [limit({ executionHardCap: null })] });
      line.budget = { ...line.budget, generation: 2, content: 'content 2', terms: loose };
      await line.reserve('b', 1);
      expect(await line.settle('a', 701)).toMatchObject({ receipt: { breach: true } });
    });
  });

  describe('a freeze', () => {
    it('until a time ends by itself, to the ms', async () => {
      const line = bench.line();
      await line.reserve('a', 1);
      expect(await line.freeze(T0 + 100)).toBe(true);
      expect(await line.freeze(T0 + 100)).toBe(false);
      bench.now += 99;
      expect(await line.reserve('x', 1)).toMatchObject({ by: 'frozen', waitMs: undefined });
      bench.now += 1;
      expect(await line.unfreeze()).toBe(false);
      expect(told(await line.reserve('x', 1))).toBe('moved RESERVED');
      expect((await line.dump()).frozenUntil).toBe(0);
      expect(await line.unfreeze()).toBe(false);
      expect(await line.freeze(bench.now)).toBe(false);
    });

    it('of an operator stands until an operator ends it', async () => {
      const line = bench.line();
      await line.reserve('a', 1);
      expect([await line.freeze(), await line.freeze()]).toEqual([true, false]);
      bench.now += 10 * RETENTION;
      expect(told(await line.reserve('x', 1))).toBe('limited frozen');
      expect(told(await line.start('a'))).toBe('refused expired');
      expect([await line.unfreeze(), await line.unfreeze()]).toEqual([true, false]);
      expect(told(await line.reserve('x', 1))).toBe('moved RESERVED');
    });

    it('of a line that is not there is an error', async () => {
      const line = bench.line();
      await expect(line.freeze()).rejects.toThrow(`no such line: route ${line.subject}`);
      await expect(line.unfreeze()).rejects.toThrow('no such line');
    });
  });
});
