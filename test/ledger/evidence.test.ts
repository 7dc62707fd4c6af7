/** Uses that no start won, reservations that the ledger forgot, attempts of one key, and the shadow beside the line. */
import { describe, expect, it } from 'vitest';
import type { EvidenceMetadata } from '../../src/ledger/types.js';
import {
  DAY,
  DEADLINE,
  HOLD,
  limit,
  onEachServer,
  RETENTION,
  T0,
  termsOf,
  told,
} from '../support/ledger.js';

onEachServer('evidence', (bench) => {
  describe('of a use that no start won', () => {
    it.each(['RESERVED', 'EXPIRING'])('settles a %s hold against its own units', async (state) => {
      const line = bench.line();
      await line.reserve('a', 600);
      if (state === 'EXPIRING') {
        bench.now += HOLD;
        await line.sweep();
      }
      const settled = await line.settle('a', 200, { operation: 'op' });
      expect(settled).toMatchObject({
        receipt: { state: 'SETTLED', operation: 'op', unstarted: true, units: [600] },
      });
      expect(await line.open()).toMatchObject({ available: 800, reserved: 0, spent: 200 });
      expect((await line.settleDown()).expired).toBe(0);
    });

    it.each(['RESERVED', 'EXPIRING'])('of unknown size binds a %s hold and keeps it', async (s) => {
      const line = bench.line();
      await line.reserve('a', 600);
      if (s === 'EXPIRING') {
        bench.now += HOLD;
        await line.sweep();
      }
      const unknown = await line.unknown('a', 7, { operation: 'op' });
      expect(unknown).toMatchObject({
        receipt: { state: 'USAGE_UNKNOWN', operation: 'op', unstarted: true, least: [7] },
      });
      bench.now += HOLD + DEADLINE;
      expect(await line.settleDown()).toMatchObject({ expired: 0, nextDue: 0 });
      expect((await line.open()).reserved).toBe(600);
      expect(told(await line.start('a', 'other'))).toBe('refused bound');
    });

    it('is a release where nothing was used, and binds nothing', async () => {
      const line = bench.line();
      await line.reserve('a', 600);
      const settled = await line.settle('a', 0, { operation: 'op', grade: 'neverSent' });
      expect(settled).toMatchObject({
        receipt: { state: 'RELEASED', operation: '', evidence: 'neverSent', unstarted: false },
      });
      expect((await line.open()).available).toBe(1000);
    });

    it('is all excess on a receipt of its own, once for each operation', async () => {
      const line = bench.line();
      await line.reserve('a', 600);
      await line.release('a');
      bench.now += 5;
      const settled = await line.settle('a', 300, { operation: 'late' });
      expect(settled).toMatchObject({
        receipt: {
          ...{ reservation: line.id('a'), state: 'SETTLED', operation: 'late', unstarted: true },
          ...{ units: [0], actual: [300], reservedAt: T0 },
        },
      });
      expect(told(await line.settle('a', 300, { operation: 'late' }))).toBe('same SETTLED');
      expect(told(await line.settle('a', 301, { operation: 'late' }))).toBe('refused conflict');
      expect(told(await line.settle('a', 0, { operation: 'late' }))).toBe('refused conflict');
      expect(await line.open()).toMatchObject({ available: 700, spent: 300 });
      expect(told(await line.settle('a', 800, { operation: 'later' }))).toBe(
        'moved SETTLED_WITH_DEBT',
      );
      expect(await line.open()).toMatchObject({ available: 0, spent: 1100, overdraftIssued: 100 });
      expect(await line.receipt('a')).toMatchObject({ state: 'RELEASED', operation: '' });
      const found = await bench.ledger.get(line.id('a'));
      expect(found?.receipt).toMatchObject({ state: 'RELEASED', actual: undefined });
    });

    it('by another operation than the bound one leaves the first receipt as it is', async () => {
      const line = bench.line();
      await line.admit('a', 600);
      await line.settle('a', 100, { operation: 'other' });
      expect(await line.open()).toMatchObject({ available: 300, reserved: 600, spent: 100 });
      expect(await line.receipt('a')).toMatchObject({ state: 'STARTED', operation: 'a' });
      expect(told(await line.settle('a', 600))).toBe('moved SETTLED');
    });

    it('of unknown size waits on a receipt of its own for its amount', async () => {
      const line = bench.line();
      await line.reserve('a', 600);
      await line.release('a');
      const late = { operation: 'late' };
      expect(await line.unknown('a', 5, late)).toMatchObject({
        receipt: { state: 'USAGE_UNKNOWN', units: [0], least: [5], unstarted: true },
      });
      expect(told(await line.unknown('a', 4, late))).toBe('same USAGE_UNKNOWN');
      expect(await line.unknown('a', 6, late)).toMatchObject({ receipt: { least: [6] } });
      expect(await line.open()).toMatchObject({ available: 1000, reserved: 0, spent: 0 });
      expect(told(await line.settle('a', 40, late))).toBe('moved SETTLED');
      expect(told(await line.unknown('a', 50, late))).toBe('same SETTLED');
      expect(await line.open()).toMatchObject({ available: 960, spent: 40 });
    });

    it('counts in the book of its reservation, though the line has moved on', async () => {
      const line = bench.line();
      await line.reserve('keep', 1);
      await line.reserve('a', 600);
      await line.release('a');
      line.budget = { ...line.budget, generation: 2, content: 'content 2' };
      await line.reserve('b', 100);
      await line.settle('a', 50, { operation: 'late' });
      const [old, open] = await line.books();
      expect(old).toMatchObject({ minted: 50, spent: 50 });
      expect(open).toMatchObject({ carriedOut: 50, spent: 0 });
      expect((await line.receipt('a', 'late')).generation).toBe(1);
    });
  });

  describe('of a reservation that the ledger forgot', () => {
    const ago = (ms: number): Partial<EvidenceMetadata> => ({ reservedAt: T0 - ms });

    it('is booked in full from the metadata, once, on the open book', async () => {
      const line = bench.line();
      await line.reserve('x', 100);
      bench.now += 5;
      const metadata = ago(1000);
      const settled = await line.settle('a', 300, { metadata });
      expect(settled).toMatchObject({
        receipt: {
          ...{ state: 'SETTLED', operation: 'a', unstarted: true, units: [0], actual: [300] },
          ...{ reservedAt: T0 - 1000, attempt: 1, digest: '' },
        },
      });
      expect(told(await line.settle('a', 300, { metadata }))).toBe('same SETTLED');
      expect(await line.open()).toMatchObject({ available: 600, reserved: 100, spent: 300 });
      expect(await bench.ledger.get(line.id('a'))).toBeUndefined();
    });

    it('opens a line that is not there, full, under the budget it names', async () => {
      const line = bench.line();
      expect(told(await line.settle('a', 300, { metadata: {} }))).toBe('refused not-found');
      expect(told(await line.settle('a', 300))).toBe('refused not-found');
      expect(told(await line.settle('a', 0, { metadata: { budget: line.budget } }))).toBe('same');
      expect(told(await line.settle('a', 300, { metadata: { budget: line.budget } }))).toBe(
        'moved SETTLED',
      );
      expect(await line.open()).toMatchObject({ opening: 1000, available: 700, spent: 300 });
    });

    it('of unknown size too, and never the same without a receipt', async () => {
      const line = bench.line();
      const metadata = { budget: line.budget };
      expect(await line.unknown('a', [], { metadata })).toMatchObject({
        receipt: { state: 'USAGE_UNKNOWN', units: [0], least: undefined },
      });
      expect(told(await line.settle('a', 30, { metadata }))).toBe('moved SETTLED');
      expect((await line.open()).available).toBe(970);
    });

    it('does not move a line to another generation', async () => {
      const line = bench.line();
      await line.reserve('x', 1);
      const budget = { ...line.budget, generation: 2, content: 'content 2' };
      await line.settle('a', 300, { metadata: { budget } });
      expect(await line.dump()).toMatchObject({ generation: 1, pages: [{ generation: 1 }] });
    });

    it('is too late once its time was folded', async () => {
      const line = bench.line();
      await line.admit('a', 600);
      await line.settle('a', 200);
      bench.now += RETENTION;
      expect((await line.sweep()).folded).toBe(1);
      expect((await line.dump()).foldedTo).toBe(T0);
      expect(told(await line.settle('a', 200))).toBe('refused not-found');
      const late = { metadata: ago(0) };
      expect(told(await line.settle('a', 200, late))).toBe('refused too-late');
      expect(told(await line.settle('a', 0, late))).toBe('refused too-late');
      expect(told(await line.unknown('a', 1, late))).toBe('refused too-late');
      expect(told(await line.settle('a', 200, { metadata: ago(-1) }))).toBe('moved SETTLED');
    });

    it('is not mixed up with a younger one of the same key', async () => {
      const line = bench.line();
      bench.now += 1000;
      await line.admit('a', 600);
      const older = { operation: 'older', metadata: ago(0) };
      expect(told(await line.settle('a', 50, older))).toBe('moved SETTLED');
      expect(await line.receipt('a', 'older')).toMatchObject({ digest: '', reservedAt: T0 });
      expect((await line.receipt('a')).state).toBe('STARTED');
      // What is bound to it is about it, and so is a guess of the gateway's.
      expect(told(await line.settle('a', 60, { metadata: ago(0) }))).toBe('moved SETTLED');
      expect(await line.receipt('a')).toMatchObject({ state: 'SETTLED', actual: [60], own: false });
      const guess = { operation: 'guess', metadata: { ...ago(0), unreserved: true } };
      expect(told(await line.settle('a', 70, guess))).toBe('moved SETTLED');
      expect((await line.receipt('a', 'guess')).reservedAt).toBe(T0 + 1000);
    });

    it('of the same ms is the one that is kept', async () => {
      const line = bench.line();
      await line.reserve('a', 600);
      const same = { operation: 'op', metadata: ago(0) };
      expect(told(await line.settle('a', 0, same))).toBe('moved RELEASED');
      await line.settle('a', 5, same);
      expect((await line.receipt('a', 'op')).digest).toBe('a'.padEnd(43, '-'));
    });

    it('does not release a younger one that is not started', async () => {
      const line = bench.line();
      bench.now += 1000;
      await line.reserve('a', 600);
      const older = { operation: 'older', metadata: ago(0) };
      expect(told(await line.settle('a', 0, older))).toBe('same');
      expect(told(await line.unknown('a', [], older))).toBe('moved USAGE_UNKNOWN');
      expect((await line.receipt('a')).state).toBe('RESERVED');
    });

    it('with amounts of another policy counts the greatest', async () => {
      const line = bench.line(termsOf({ limits: [limit({ name: 'm' }), limit({ name: 'd' })] }));
      await line.reserve('x', [1, 1]);
      await line.settle('a', [3, 9, 5], { metadata: {} });
      expect(await line.receipt('a', 'a')).toMatchObject({ actual: [9, 9] });
      await line.unknown('b', [4, 2, 3], { metadata: {} });
      expect(await line.receipt('b', 'b')).toMatchObject({ least: [4, 4] });
    });
  });

  describe('attempts of one key', () => {
    const second = { attempt: 2 };

    it.each(['RELEASED', 'EXPIRED', 'SETTLED 0'])('a %s one may be followed', async (how) => {
      const line = bench.line();
      if (how === 'SETTLED 0') await line.admit('a', 600);
      else await line.reserve('a', 600);
      expect(told(await line.reserve('a', 600, second))).toBe('refused attempt');
      if (how === 'SETTLED 0') await line.settle('a', 0);
      if (how === 'RELEASED') await line.release('a');
      if (how === 'EXPIRED') {
        bench.now += HOLD;
        await line.settleDown();
      }
      const other = { attempt: 2, digest: 'x'.repeat(43) };
      expect(told(await line.reserve('a', 600, other))).toBe('refused attempt');
      expect(await line.reserve('a', 600, second)).toMatchObject({
        kind: 'moved',
        receipt: { reservation: line.id('a', 2), attempt: 2, latest: 2 },
      });
      expect(await line.reserve('a', 600)).toMatchObject({ receipt: { attempt: 1, latest: 2 } });
      expect(told(await line.reserve('a', 600, { attempt: 3 }))).toBe('refused attempt');
    });

    it('one that ran may be followed only where the policy says so', async () => {
      const line = bench.line();
      await line.admit('a', 600);
      await line.settle('a', 100);
      expect(told(await line.reserve('a', 600, second))).toBe('refused attempt');
      const again = { attempt: 2, again: true };
      expect(told(await line.reserve('a', 600, again))).toBe('moved RESERVED');
    });

    it.each(['SETTLED', 'SETTLED_WITH_DEBT'])('again after a real %s only', async (state) => {
      const line = bench.line();
      await line.admit('a', 600);
      const actual = state === 'SETTLED' ? 0 : 1100;
      await line.settle('a', actual, { grade: 'presumed' });
      const again = { attempt: 2, again: true };
      expect(told(await line.reserve('a', 1, again))).toBe('refused attempt');
      await line.settle('a', actual);
      await line.credit(1000);
      expect(told(await line.reserve('a', 1, again))).toBe('moved RESERVED');
    });

    it('that never was is no attempt to follow, nor is one that still runs', async () => {
      const line = bench.line();
      expect(told(await line.reserve('a', 600, second))).toBe('refused attempt');
      await line.admit('a', 600);
      await line.unknown('a');
      const again = { attempt: 2, again: true };
      expect(told(await line.reserve('a', 600, again))).toBe('refused attempt');
      expect(told(await line.reserve('a', 600, { attempt: 3 }))).toBe('refused attempt');
    });
  });

  describe('shadow beside the line', () => {
    const shadow = { shadow: true };

    it('has books, clock, freeze and seq of its own', async () => {
      const line = bench.line();
      await line.reserve('a', 600);
      await line.reserve('b', 900, shadow);
      expect(await line.open()).toMatchObject({ available: 400, reserved: 600 });
      expect(await line.open('', true)).toMatchObject({ available: 100, reserved: 900 });
      await line.freeze(-1, true);
      expect(told(await line.reserve('c', 1))).toBe('moved RESERVED');
      expect(told(await line.reserve('d', 1, shadow))).toBe('limited frozen');
      await line.credit(50, '', true);
      expect((await line.open('', true)).available).toBe(150);
      expect((await line.dump()).seq).toBe(2);
    });

    it('a receipt is found in both, and ends where it was made', async () => {
      const line = bench.line();
      await line.reserve('a', 600, shadow);
      const found = await line.admit('a', 600);
      expect(found).toMatchObject({ kind: 'moved', receipt: { shadow: true, state: 'STARTED' } });
      await line.settle('a', 100);
      expect(await line.open('', true)).toMatchObject({ available: 900, spent: 100 });
      await expect(line.open()).rejects.toThrow('no such line');
    });

    it('moves on in one sweep with the line', async () => {
      const line = bench.line();
      await line.reserve('a', 600);
      await line.reserve('b', 600, shadow);
      bench.now += HOLD;
      expect(await line.sweep()).toMatchObject({ expiring: 2 });
      expect(await line.sweep()).toMatchObject({ expired: 2 });
      bench.now += RETENTION + DAY;
      expect(await line.sweep()).toMatchObject({ folded: 2, nextDue: 0 });
    });

    it('books there what it forgot there', async () => {
      const line = bench.line();
      await line.reserve('x', 1);
      const metadata = { shadow: true, budget: line.budget };
      await line.settle('a', 300, { metadata });
      expect((await line.open('', true)).spent).toBe(300);
      expect((await line.open()).spent).toBe(0);
    });
  });
});
