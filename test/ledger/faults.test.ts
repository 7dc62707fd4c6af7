/** A fault under one line stops that line's operation alone, is named, and leaves nothing half done. */
import { describe, expect, it } from 'vitest';
import type { AdmitRequest, Outcome } from '../../src/ledger/types.js';
import { LedgerUnavailable } from '../../src/ledger/types.js';
import { HOLD, type Line, onEachServer, told } from '../support/ledger.js';

onEachServer('faults', (bench) => {
  function admission(line: Line, key: string, units = 10): AdmitRequest {
    return { ...line.request(key, units), operation: key };
  }

  async function failure(asked: Promise<unknown>): Promise<string> {
    return asked.then(
      (answer) => `no failure: ${JSON.stringify(answer)}`,
      (error: Error) => {
        expect(error).toBeInstanceOf(LedgerUnavailable);
        return error.message;
      },
    );
  }

  /** Three lines with a reservation `a` in each. */
  async function three(): Promise<[Line, Line, Line]> {
    const lines = [bench.line(), bench.line(), bench.line()] as const;
    for (const line of lines) await line.reserve('a', 100);
    return [...lines];
  }

  describe('a batch', () => {
    it('answers each operation for itself', async () => {
      const [a, b, c] = await three();
      const { ledger } = bench;
      await c.start('a');
      const fresh = bench.line();
      const admissions = [
        ledger.admit(admission(a, 'x', 901)),
        ledger.admit(admission(a, 'y', 900)),
        ledger.admit(admission(b, 'x', 0.5)),
        ledger.admit(admission(fresh, 'x')),
        ledger.reserve({ ...b.request('a', 100), digest: 'x'.repeat(43) }),
      ];
      const movements = [
        ledger.start(b.id('a'), 'op'),
        ledger.start(c.id('a'), 'op'),
        ledger.release(fresh.id('gone')),
        ledger.settle({ reservation: c.id('a'), operation: 'a', actual: [-1], grade: 'reported' }),
        ledger.settle({ reservation: c.id('a'), operation: 'a', actual: [7], grade: 'reported' }),
      ];
      expect((await Promise.all([...admissions, ...movements])).map(told)).toEqual([
        ...['limited capacity', 'moved STARTED', 'refused invalid', 'moved STARTED'],
        ...['refused digest', 'moved STARTED', 'refused bound', 'refused not-found'],
        ...['refused invalid', 'moved SETTLED'],
      ]);
    });

    it('keeps the order of what is asked at once on one line', async () => {
      const line = bench.line();
      const { ledger } = bench;
      const asked = Array.from({ length: 500 }, (_, i) =>
        ledger.admit(admission(line, `k${i}`, 2)),
      );
      const seqs = (await Promise.all(asked)).map(({ line: { seq } }) => seq);
      expect(seqs).toEqual(seqs.map((_, i) => i + 1));
      expect(await line.open()).toMatchObject({ available: 0, reserved: 1000 });
    });
  });

  describe('a key of another type', () => {
    it.each(['line', 'due', 'done'] as const)(
      'as %s: named, alone, nothing moved',
      async (which) => {
        const [a, b, c] = await three();
        const { ledger, redis } = bench;
        const key = ledger.keys[which](b.tag);
        const dumped = await b.dump();
        const backup = await redis.dumpBuffer(key);
        await redis.set(key, 'text');
        const [first, second, third] = [
          ledger.release(a.id('a')),
          failure(ledger.release(b.id('a'))),
          ledger.release(c.id('a')),
        ];
        expect(await second).toMatch(/\{[\w-]{22}\}:l: .*WRONGTYPE/);
        expect(await second).toContain(b.tag);
        expect([told(await first), told(await third)]).toEqual([
          'moved RELEASED',
          'moved RELEASED',
        ]);
        if (which !== 'line') {
          expect(await b.dump()).toEqual(dumped);
          if (which === 'done') expect(await redis.zcard(ledger.keys.due(b.tag))).toBe(1);
          expect(await failure(ledger.sweep(b.tag, 10))).toContain('WRONGTYPE');
        }
        await redis.del(key);
        if (backup !== null) await redis.restore(key, 0, backup);
        // As if nothing had been: it still expires by itself, and once.
        bench.now += HOLD;
        await b.settleDown();
        expect(await b.open()).toMatchObject({ available: 1000, reserved: 0 });
        expect((await b.receipt('a')).state).toBe('EXPIRED');
      },
    );

    it('stops an admission before it counts', async () => {
      const [a, b] = await three();
      const { ledger, redis } = bench;
      await redis.set(ledger.keys.due(b.tag), 'text');
      const before = await b.dump();
      const asked = [ledger.reserve(a.request('x', 5)), ledger.reserve(b.request('x', 5))] as const;
      expect(await failure(asked[1])).toContain('WRONGTYPE');
      expect(told(await asked[0])).toBe('moved RESERVED');
      expect(await b.dump()).toEqual(before);
      await redis.del(ledger.keys.due(b.tag));
      expect(told(await b.reserve('x', 5))).toBe('moved RESERVED');
    });
  });

  describe('a stored value that is none', () => {
    const field = (name: string, value: string | Buffer) => async (line: Line) => {
      await bench.redis.hset(bench.ledger.keys.line(line.tag), name, value);
    };
    const receipt = (value: string | Buffer) => (line: Line) =>
      field(`r:${line.id('a').slice(26)}`, value)(line);

    it.each([
      ['a line of text', field('line', 'text')],
      ['an empty line', field('line', '')],
      ['half a line', field('line', Buffer.from([2, 1, 1, 1, 0, 0]))],
      ['a line of zeros', field('line', Buffer.alloc(400))],
      ['a receipt of text', receipt('text')],
      ['an empty receipt', receipt('')],
      ['half a receipt', receipt(Buffer.from([0xdc, 0, 17, 1, 2]))],
    ])('%s fails that operation and no other', async (_what, spoil) => {
      const [a, b] = await three();
      await spoil(b);
      bench.lines = [a];
      const { ledger } = bench;
      const before = await bench.redis.hgetallBuffer(ledger.keys.line(b.tag));
      const asked = [
        ledger.start(a.id('a'), 'op'),
        failure(ledger.start(b.id('a'), 'op')),
      ] as const;
      expect(await asked[1]).toContain(b.tag);
      expect(told(await asked[0])).toBe('moved STARTED');
      expect(await failure(ledger.reserve(b.request('a', 100)))).toContain(b.tag);
      expect(await failure(ledger.release(b.id('a')))).toContain(b.tag);
      expect(await bench.redis.hgetallBuffer(ledger.keys.line(b.tag))).toEqual(before);
    });

    it('a line of a newer format is refused by name', async () => {
      const line = bench.line();
      await line.reserve('a', 100);
      const key = bench.ledger.keys.line(line.tag);
      const packed = (await bench.redis.hgetBuffer(key, 'line'))!;
      const newer = Buffer.from(packed);
      newer.writeUInt8(packed.readUInt8(0) + 1, 0);
      await bench.redis.hset(key, 'line', newer);
      const { ledger } = bench;
      for (const asked of [
        () => ledger.reserve(line.request('b', 1)),
        () => ledger.release(line.id('a')),
        () => ledger.sweep(line.tag, 10),
      ]) {
        expect(await failure(asked())).toMatch(/newer earmark \(format 3\): upgrade this one/);
      }
      await bench.redis.hset(key, 'line', packed);
      expect(told(await line.release('a'))).toBe('moved RELEASED');
    });

    it('a page that is gone is named', async () => {
      const line = bench.line();
      await line.reserve('a', 100);
      line.budget = { ...line.budget, generation: 2, content: 'content 2' };
      await line.reserve('b', 1);
      const key = bench.ledger.keys.line(line.tag);
      const page = (await bench.redis.hkeys(key)).find((name) => name.startsWith('b:1:'))!;
      const kept = (await bench.redis.hgetBuffer(key, page))!;
      await bench.redis.hdel(key, page);
      expect(await failure(bench.ledger.release(line.id('a')))).toContain(`the page ${page}`);
      await bench.redis.hset(key, page, kept);
      expect(told(await line.release('a'))).toBe('moved RELEASED');
    });
  });

  describe('a full server', () => {
    it('refuses admissions as a whole, and lets pass what is under way', async () => {
      const [a, b, c] = await three();
      const { ledger, redis } = bench;
      const fresh = bench.line();
      await redis.config('SET', 'maxmemory', '1');
      try {
        expect(await failure(ledger.reserve(fresh.request('x', 1)))).toMatch(/OOM|maxmemory/);
        expect(await failure(ledger.admit(admission(a, 'x')))).toMatch(/OOM|maxmemory/);
        expect(await failure(ledger.reserve(a.request('a', 100)))).toMatch(/OOM|maxmemory/);
        expect(await redis.exists(ledger.keys.line(fresh.tag))).toBe(0);
        expect(told(await a.start('a'))).toBe('moved STARTED');
        expect(told(await a.settle('a', 30))).toBe('moved SETTLED');
        expect(told(await b.release('a'))).toBe('moved RELEASED');
        expect(told(await b.unknown('a', 1, { operation: 'late' }))).toBe('moved USAGE_UNKNOWN');
        expect([await c.freeze(), await c.unfreeze()]).toEqual([true, true]);
        expect(told(await c.credit(1))).toBe('moved');
        bench.now += HOLD;
        expect(await c.sweep()).toMatchObject({ expiring: 1 });
        expect(await c.sweep()).toMatchObject({ expired: 1 });
        expect((await ledger.get(c.id('a')))?.receipt.state).toBe('EXPIRED');
      } finally {
        await redis.config('SET', 'maxmemory', '0');
      }
      expect(told(await fresh.reserve('x', 1))).toBe('moved RESERVED');
    });
  });

  describe('a server that forgot its scripts', () => {
    it('between two runs and during them is asked again', async () => {
      const line = bench.line();
      const { ledger, redis } = bench;
      const answers: Promise<Outcome>[] = [];
      for (let i = 0; i < 100; i++) {
        if (i % 3 === 0) void redis.script('FLUSH');
        answers.push(ledger.admit(admission(line, `k${i}`, 5)));
        if (i % 7 === 0) await new Promise((resolve) => setImmediate(resolve));
      }
      const reservations = (await Promise.all(answers)).map((answer) => {
        if (answer.kind !== 'moved') throw new Error(told(answer));
        return answer.receipt.reservation;
      });
      await redis.script('FLUSH');
      const released = reservations.map((reservation, i) =>
        ledger.settle({ reservation, operation: `k${i}`, actual: [1], grade: 'reported' }),
      );
      expect(new Set((await Promise.all(released)).map(told))).toEqual(new Set(['moved SETTLED']));
      await redis.script('FLUSH');
      await line.sweep();
      expect(await line.open()).toMatchObject({ available: 900, spent: 100 });
    });
  });
});
