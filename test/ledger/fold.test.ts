/** How ended receipts fold into the archive, group by group, and closed pages after them. */
import { describe, expect, it } from 'vitest';
import {
  DAY,
  HOLD,
  type Line,
  onEachServer,
  RETENTION,
  T0,
  termsOf,
  told,
} from '../support/ledger.js';

onEachServer('folding', (bench) => {
  async function ended(line: Line, key: string, actual: number): Promise<void> {
    await line.admit(key, 100);
    await line.settle(key, actual);
  }

  async function states(line: Line): Promise<string[]> {
    return (await line.receipts()).map(({ state, own }) => (own ? `own ${state}` : state)).sort();
  }

  it('happens at keepUntil and not before; number and sum stay', async () => {
    const line = bench.line();
    await ended(line, 'a', 30);
    bench.now += 1;
    await ended(line, 'b', 40);
    expect((await line.receipt('a')).keepUntil).toBe(T0 + RETENTION);
    bench.now = T0 + RETENTION - 1;
    expect(await line.sweep()).toMatchObject({ folded: 0, nextDue: T0 + RETENTION });
    bench.now += 1;
    expect(await line.sweep()).toMatchObject({ folded: 1, nextDue: T0 + RETENTION + 1 });
    const { pages, foldedTo } = await line.dump();
    expect(pages).toMatchObject([{ kept: 1, books: [{ archiveCount: 1, archiveSum: 30 }] }]);
    expect(foldedTo).toBe(T0);
    expect((await line.open()).spent).toBe(70);
    expect(await bench.ledger.get(line.id('a'))).toBeUndefined();
    bench.now += 1;
    expect(await line.sweep()).toMatchObject({ folded: 1, nextDue: 0 });
    expect((await line.dump()).foldedTo).toBe(T0 + 1);
    expect(await line.sweep()).toMatchObject({ folded: 0, nextDue: 0 });
  });

  it('counts what ended without a use as 0', async () => {
    const line = bench.line();
    await line.reserve('a', 100);
    await line.release('a');
    await line.reserve('b', 100);
    bench.now += HOLD;
    await line.settleDown();
    bench.now += RETENTION;
    expect(await line.settleDown()).toMatchObject({ folded: 2 });
    const { pages } = await line.dump();
    expect(pages[0]!.books[0]).toMatchObject({ archiveCount: 2, archiveSum: 0 });
  });

  it('never takes what is open', async () => {
    const line = bench.line();
    await line.admit('a', 100);
    await line.unknown('a');
    await ended(line, 'b', 1);
    bench.now += 10 * RETENTION;
    expect(await line.settleDown()).toMatchObject({ folded: 1 });
    expect(await states(line)).toEqual(['USAGE_UNKNOWN']);
  });

  it('takes the attempts of a key together, when the newest may go', async () => {
    const line = bench.line();
    await ended(line, 'a', 0);
    bench.now += DAY;
    await line.admit('a', 100, { attempt: 2 });
    await line.settle('a', 0, { attempt: 2 });
    bench.now += DAY;
    await line.admit('a', 100, { attempt: 3 });
    bench.now = T0 + RETENTION;
    expect((await line.settleDown()).folded).toBe(0);
    await line.settle('a', 25, { attempt: 3 });
    bench.now += RETENTION - 1;
    expect((await line.settleDown()).folded).toBe(0);
    expect((await states(line)).length).toBe(3);
    bench.now += 1;
    expect(await line.settleDown()).toMatchObject({ folded: 3, nextDue: 0 });
    const { pages, foldedTo } = await line.dump();
    expect(pages[0]!.books[0]).toMatchObject({ archiveCount: 3, archiveSum: 25 });
    expect(foldedTo).toBe(T0 + 2 * DAY);
  });

  it('does not let others wait for a group that ended again later', async () => {
    const line = bench.line();
    await ended(line, 'a', 0);
    bench.now += 1;
    await ended(line, 'b', 1);
    bench.now += DAY;
    await line.admit('a', 100, { attempt: 2 });
    await line.settle('a', 5, { attempt: 2 });
    bench.now = T0 + RETENTION + 1;
    expect((await line.settleDown()).folded).toBe(1);
    expect((await line.receipts()).map(({ reservation }) => reservation)).not.toContain(
      line.id('b'),
    );
  });

  it('takes a receipt of its own with the reservation it belongs to', async () => {
    const line = bench.line();
    await line.reserve('a', 100);
    await line.release('a');
    bench.now += DAY;
    await line.settle('a', 5, { operation: 'late' });
    await line.unknown('a', [], { operation: 'later' });
    bench.now = T0 + 3 * RETENTION;
    expect((await line.settleDown()).folded).toBe(0);
    await line.settle('a', 7, { operation: 'later' });
    bench.now += RETENTION - 1;
    expect((await line.settleDown()).folded).toBe(0);
    bench.now += 1;
    expect(await line.settleDown()).toMatchObject({ folded: 3, nextDue: 0 });
    const { pages } = await line.dump();
    expect(pages[0]!.books[0]).toMatchObject({ archiveCount: 3, archiveSum: 12 });
  });

  it('waits for one of its own of an earlier attempt', async () => {
    const line = bench.line();
    await ended(line, 'a', 0);
    await line.unknown('a', [], { operation: 'late' });
    await line.reserve('a', 100, { attempt: 2 });
    await line.release('a', 2);
    await line.settle('a', 3, { operation: 'other', attempt: 2 });
    bench.now += RETENTION;
    expect((await line.settleDown()).folded).toBe(0);
    await line.settle('a', 9, { operation: 'late' });
    bench.now += RETENTION;
    expect(await line.settleDown()).toMatchObject({ folded: 4, nextDue: 0 });
    expect((await line.dump()).pages[0]!.books[0]).toMatchObject({ archiveSum: 12 });
  });

  it('takes one of its own that has no reservation by itself', async () => {
    const line = bench.line();
    await line.settle('a', 5, { metadata: { budget: line.budget } });
    bench.now += RETENTION;
    expect(await line.settleDown()).toMatchObject({ folded: 1, nextDue: 0 });
  });

  it('does not take a younger reservation with the forgotten one of its key', async () => {
    const line = bench.line();
    bench.now += 1000;
    await line.admit('a', 100);
    await line.settle('a', 5, { operation: 'older', metadata: { reservedAt: T0 } });
    bench.now += RETENTION;
    expect((await line.settleDown()).folded).toBe(1);
    expect(await states(line)).toEqual(['USAGE_UNKNOWN']);
  });

  it('keeps a replaced one as long as the presumed one would have been', async () => {
    const line = bench.line();
    await line.admit('a', 100);
    await line.settle('a', 100, { grade: 'presumed' });
    bench.now += DAY;
    await line.settle('a', 60);
    bench.now = T0 + RETENTION;
    expect(await line.settleDown()).toMatchObject({ folded: 1, nextDue: 0 });
    expect((await line.dump()).pages[0]!.books[0]).toMatchObject({ archiveSum: 60 });
  });

  it('takes at most so many groups in one sweep', async () => {
    const line = bench.line();
    for (const key of ['a', 'b', 'c']) await ended(line, key, 1);
    bench.now += RETENTION;
    expect(await line.sweep(2)).toMatchObject({ folded: 2, nextDue: T0 + RETENTION });
    expect(await line.sweep(2)).toMatchObject({ folded: 1, nextDue: 0 });
  });

  it('takes thousands of receipts of a few keys at once', async () => {
    const line = bench.line(termsOf({ limit: { burst: 100_000 } }));
    const { ledger } = bench;
    const keys = Array.from({ length: 100 }, (_, i) => `key ${i}`);
    for (let attempt = 1; attempt <= 85; attempt++) {
      const asked = { attempt };
      await Promise.all(keys.map((key) => ledger.reserve(line.request(key, 1, asked))));
      await Promise.all(keys.map((key) => ledger.release(line.id(key, attempt))));
    }
    bench.now += RETENTION;
    expect((await line.sweep()).folded).toBe(8500);
    expect(await line.receipts()).toEqual([]);
  });

  it('is by the retention of the receipt’s own generation', async () => {
    const line = bench.line();
    await line.admit('a', 100);
    const terms = termsOf({ retentionMs: DAY });
    line.budget = { ...line.budget, generation: 2, content: 'content 2', terms };
    await ended(line, 'b', 1);
    await line.settle('a', 1);
    expect((await line.receipt('a')).keepUntil).toBe(T0 + RETENTION);
    expect((await line.receipt('b')).keepUntil).toBe(T0 + DAY);
    bench.now += DAY;
    expect((await line.settleDown()).folded).toBe(1);
    expect(await states(line)).toEqual(['SETTLED']);
  });

  describe('of a closed page', () => {
    const next = (line: Line) => {
      const generation = line.budget.generation + 1;
      line.budget = { ...line.budget, generation, content: `content ${generation}` };
    };

    it('waits for its holds, its debt and its receipts', async () => {
      const line = bench.line();
      await line.admit('a', 600);
      await line.reserve('b', 400);
      await line.settle('a', 700);
      next(line);
      await line.reserve('x', 1);
      expect((await line.dump()).pages.length).toBe(2);
      await line.release('b');
      expect((await line.dump()).pages.length).toBe(2);
      bench.now += RETENTION;
      expect((await line.settleDown()).folded).toBe(2);
      const { pages, archive, seq } = await line.dump();
      expect(pages.length).toBe(1);
      expect(archive).toMatchObject([
        {
          ...{ limit: '', archiveCount: 2, archiveSum: 700 },
          counters: {
            ...{ opening: 1000, minted: 0, overdraftIssued: 100, available: 0, reserved: 0 },
            ...{ spent: 700, overdraftRepaid: 100, carriedOut: 300, lapsed: 0 },
          },
        },
      ]);
      expect(seq).toBe(6);
    });

    it('follows at once when its last debt is repaid', async () => {
      const line = bench.line();
      await line.admit('a', 600);
      await line.settle('a', 1100);
      next(line);
      await line.reserve('x', 1);
      bench.now += RETENTION;
      await line.settleDown();
      expect((await line.dump()).pages.length).toBe(2);
      await line.credit(99);
      expect((await line.dump()).pages.length).toBe(2);
      await line.credit(1);
      expect((await line.dump()).pages.length).toBe(1);
    });

    it('leaves what came before it alone, and sums up by limit', async () => {
      const line = bench.line();
      for (let generation = 2; generation < 6; generation++) {
        await line.reserve('x', 5000);
        next(line);
      }
      await line.reserve('y', 1);
      const { pages, archive } = await line.dump();
      expect(pages.length).toBe(1);
      expect(archive).toMatchObject([{ counters: { opening: 4000, carriedOut: 4000 } }]);
    });
  });

  it('tells an old answer from a new question', async () => {
    const line = bench.line();
    await ended(line, 'a', 30);
    bench.now += RETENTION;
    await line.settleDown();
    expect(told(await line.admit('a', 100))).toBe('moved STARTED');
    expect((await line.open()).spent).toBe(30);
  });
});
