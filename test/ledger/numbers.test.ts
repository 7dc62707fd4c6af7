/** Whole numbers up to 2^53 - 1, exactly or not at all: what Lua, its printing and its division would round. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { DAY, type Line, onEachServer, RETENTION, T0, termsOf, told } from '../support/ledger.js';

const MAX = Number.MAX_SAFE_INTEGER;

/** Given where a whole number belongs; the types forbid some of them. */
const NO_AMOUNTS: readonly unknown[] = [
  ...[2 ** 53, 2 ** 53 + 2, 1e300, Number.POSITIVE_INFINITY, Number.NaN, -1, -0.5, 0.5, 1.5],
  ...['5', '', true, null, [1], {}],
];

onEachServer('numbers', (bench) => {
  describe.each([1e14, 1e14 + 1, 123_456_789_012_345, MAX - 1, MAX])('up to %d', (most) => {
    const terms = termsOf({ limit: { burst: most, maxOverdraft: most } });

    it('are reserved, settled, archived and read back to the unit', async () => {
      const line = bench.line(terms);
      const reserved = await line.admit('a', most);
      expect(reserved).toMatchObject({
        receipt: { units: [most] },
        line: { limits: [{ burst: most }] },
      });
      expect(await line.open()).toMatchObject({ opening: most, available: 0, reserved: most });
      await line.unknown('a', most - 3);
      expect(await line.receipt('a')).toMatchObject({ units: [most], least: [most - 3] });
      const settled = await line.settle('a', most - 1);
      expect(settled).toMatchObject({ receipt: { actual: [most - 1] } });
      expect(await line.open()).toMatchObject({ available: 1, reserved: 0, spent: most - 1 });
      bench.now += RETENTION;
      await line.settleDown();
      const [page] = (await line.dump()).pages;
      expect(page!.books).toMatchObject([{ archiveCount: 1, archiveSum: most - 1 }]);
      line.budget = { ...line.budget, generation: 2, content: 'content 2' };
      await line.reserve('b', 1);
      expect((await line.dump()).archive).toMatchObject([
        { counters: { opening: most, spent: most - 1, carriedOut: 1 }, archiveSum: most - 1 },
      ]);
    });

    it('are owed, said in a wait, and repaid', async () => {
      const line = bench.line(terms);
      await line.reserve('a', 1);
      await line.release('a');
      await line.settle('a', most, { operation: 'all' });
      const over = await line.settle('a', 0 + most, { operation: 'over' });
      // spent would pass the largest there is, unless it is not that large.
      expect(told(over)).toBe(2 * most > MAX ? 'refused overflow' : 'moved SETTLED_WITH_DEBT');
      const debt = 2 * most > MAX ? 0 : most;
      expect(over.line.limits[0]?.debt ?? 0).toBe(debt);
      if (debt === 0) return;
      await line.credit(most - 1);
      expect(await line.reserve('x', 1)).toMatchObject({ by: 'debt' });
      expect((await line.open()).overdraftRepaid).toBe(most - 1);
    });
  });

  describe.each(NO_AMOUNTS.map((value) => [value]))('%j', (value) => {
    const wrong = value as number;
    async function started(): Promise<Line> {
      const line = bench.line();
      await line.admit('a', 10);
      return line;
    }

    it('is refused by name, and moves nothing', async () => {
      const line = await started();
      const whole =
        value === null || value === undefined ? /./ : /must be a whole number from 0 to/;
      const refused = { kind: 'refused', why: 'invalid', detail: expect.stringMatching(whole) };
      expect(await line.reserve('b', [wrong])).toMatchObject(refused);
      expect(await line.admit('b', [wrong])).toMatchObject(refused);
      expect(await line.settle('a', [wrong])).toMatchObject(refused);
      expect(await line.credit(wrong)).toMatchObject(refused);
      if (value !== null) expect(await line.unknown('a', [wrong])).toMatchObject(refused);
    });
  });

  it('names the field that is wrong', async () => {
    const line = bench.line();
    await line.admit('a', 10);
    const detail = async (asked: ReturnType<Line['settle']>) => {
      const outcome = await asked;
      return outcome.kind === 'refused' ? outcome.detail.split(/[ :]/)[0] : told(outcome);
    };
    expect(await detail(line.reserve('b', 0.5))).toBe('units');
    expect(await detail(line.reserve('b', [1, 1]))).toBe('units');
    expect(await detail(line.reserve('b', []))).toBe('units');
    expect(await detail(line.reserve('b', 1, { attempt: 1.5 }))).toBe('attempt');
    expect(await detail(line.settle('a', 0.5))).toBe('actual');
    expect(await detail(line.settle('a', []))).toBe('actual');
    expect(await detail(line.unknown('a', 0.5))).toBe('least');
    expect(await detail(line.settle('b', 1, { metadata: { reservedAt: 0.5 } }))).toBe('reservedAt');
    expect(await detail(line.credit(0.5))).toBe('units');
    const generation = { ...line.budget, generation: 0.5 };
    expect(await detail(line.reserve('b', 1, { budget: generation }))).toBe('generation');
    const factor = { ...line.budget, factor: { numerator: 0.5, denominator: 1 } };
    expect(await detail(line.reserve('b', 1, { budget: factor }))).toBe('factor');
    await expect(line.sweep(0.5)).rejects.toThrow('limit');
  });

  describe('an overflow', () => {
    it('of a counter is refused, and everything else goes on', async () => {
      const line = bench.line(termsOf({ limit: { burst: MAX } }));
      await line.admit('a', 10);
      await line.credit(MAX - 20);
      expect(told(await line.credit(21))).toBe('refused overflow');
      expect(told(await line.credit(20))).toBe('moved');
      expect(told(await line.settle('a', 4))).toBe('moved SETTLED');
      expect(await line.open()).toMatchObject({ minted: MAX, spent: 4, available: MAX });
    });

    it('of what is spent refuses that settlement; the hold stays as it was', async () => {
      const line = bench.line(termsOf({ limit: { burst: MAX } }));
      await line.admit('a', 10);
      await line.settle('a', MAX - 5, { operation: 'other' });
      expect(told(await line.settle('a', 6))).toBe('refused overflow');
      expect(await line.receipt('a')).toMatchObject({ state: 'STARTED' });
      expect(told(await line.settle('a', 5))).toBe('moved SETTLED');
      expect((await line.open()).spent).toBe(MAX);
    });

    it('of the archive leaves the page where it is', async () => {
      const line = bench.line(termsOf({ limit: { burst: MAX } }));
      for (let generation = 1; generation < 5; generation++) {
        line.budget = { ...line.budget, generation, content: `content ${generation}` };
        await line.reserve('a', MAX);
        await line.release('a');
        bench.now += RETENTION;
        await line.settleDown();
      }
      const { pages, archive } = await line.dump();
      expect(pages.map(({ generation }) => generation)).toEqual([2, 3, 4]);
      expect(archive).toMatchObject([{ counters: { opening: MAX, carriedOut: MAX } }]);
    });

    it('of a product with the plan is refused', async () => {
      const factor = { numerator: 2 ** 50, denominator: 1 };
      const line = bench.line(termsOf(), { factor });
      expect(told(await line.reserve('a', 1))).toBe('refused overflow');
      await expect(line.dump()).rejects.toThrow('no such line');
    });

    it('of a time is refused', async () => {
      const line = bench.line(termsOf({ holdTtlMs: MAX }));
      expect(told(await line.reserve('a', 1))).toBe('refused overflow');
    });
  });

  it('prints them in full where they stand in a name', async () => {
    const line = bench.line(termsOf(), { generation: MAX - 1, content: 'older' });
    await line.reserve('a', 1);
    const older = line.budget;
    line.budget = { ...older, generation: MAX, content: 'newer' };
    await line.reserve('b', 1);
    expect((await line.dump()).pages.map(({ generation }) => generation)).toEqual([MAX - 1, MAX]);
    const stale = await line.reserve('c', 1, { budget: older });
    expect(stale).toMatchObject({ why: 'stale', detail: '9007199254740991' });
    expect(told(await line.release('a'))).toBe('moved RELEASED');
  });

  it('divides exactly where doubles would round', async () => {
    const rates = fc
      .tuple(fc.integer({ min: 1, max: 2 ** 31 }), fc.integer({ min: 1, max: 2 ** 31 }))
      .filter(([units, everyMs]) => units * everyMs <= MAX);
    const elapsed = fc.array(fc.integer({ min: 1, max: 1000 * DAY }), {
      minLength: 1,
      maxLength: 3,
    });
    await fc.assert(
      fc.asyncProperty(rates, elapsed, async ([units, everyMs], steps) => {
        bench.now = T0;
        const limit = { burst: MAX, refill: { units, everyMs } };
        const line = bench.line(termsOf({ epochMs: 10_000 * DAY, limit }));
        await line.settle('a', MAX, { metadata: { budget: line.budget } });
        let expected = 0n;
        let total = 0n;
        for (const step of steps) {
          bench.now += step;
          total += BigInt(step);
          expected = (total * BigInt(units)) / BigInt(everyMs);
          if (expected > BigInt(MAX)) return;
          expect(told(await line.credit(0))).toBe('moved');
          expect(BigInt((await line.open()).minted)).toBe(expected);
        }
        const remainder = (total * BigInt(units)) % BigInt(everyMs);
        expect((await line.dump()).remainders).toEqual([Number(remainder)]);
      }),
      { numRuns: 40 },
    );
  });

  it('scales by a plan exactly', async () => {
    const parts = fc.tuple(fc.integer({ min: 1, max: MAX }), fc.integer({ min: 1, max: 1e6 }));
    await fc.assert(
      fc.asyncProperty(parts, fc.integer({ min: 1, max: 1e6 }), async ([burst, over], by) => {
        if (BigInt(burst) * BigInt(by) > BigInt(MAX)) return;
        const factor = { numerator: by, denominator: over };
        const line = bench.line(termsOf({ limit: { burst } }), { factor });
        const scaled = (BigInt(burst) * BigInt(by)) / BigInt(over);
        await line.reserve('a', 1);
        expect((await line.open()).opening).toBe(Math.max(1, Number(scaled)));
      }),
      { numRuns: 40 },
    );
  });
});
