/** Names of any kind: prefixes with the signs of a pattern, subjects with any character, and one slot for each line. */
import { describe, expect, it } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import { auditLine } from '../../src/ledger/audit.js';
import { keysOf } from '../../src/ledger/keys.js';
import type { Ledger } from '../../src/ledger/ledger.js';
import { budgetOf, HOLD, onEachServer, RETENTION, termsOf, told } from '../support/ledger.js';

async function linesOf(ledger: Ledger): Promise<string[]> {
  const tags: string[] = [];
  for await (const page of ledger.lines()) tags.push(...page);
  return tags.sort();
}

onEachServer('names', (bench) => {
  it('a prefix is no pattern: a[1] beside a1, a* beside both', async () => {
    const own = bench.ledger;
    const found: Record<string, string[]> = {};
    const prefixes = ['a[1]', 'a1', 'a*', 'a?', 'a\\', 'a', ''];
    for (const prefix of prefixes) {
      bench.ledger = await bench.open(prefix);
      await bench.named(`of ${prefix}`, 'r', budgetOf(termsOf())).reserve('x', 1);
    }
    for (const prefix of prefixes) {
      const ledger = await bench.open(prefix);
      found[prefix] = await linesOf(ledger);
      await ledger.stop();
    }
    bench.lines = [];
    bench.ledger = own;
    for (const prefix of prefixes) expect(found[prefix]).toEqual([lineTag(`of ${prefix}`, 'r')]);
  });

  it('finds each of a thousand lines, and nothing that only looks like one', async () => {
    const own = bench.ledger;
    const ledger = await bench.open('many:');
    bench.ledger = ledger;
    const lines = Array.from({ length: 1000 }, () => bench.line());
    await Promise.all(lines.map((line) => ledger.reserve(line.request('x', 1))));
    await bench.redis.set('many:{short}:l', '1');
    await bench.redis.set(`many:{${'x'.repeat(22)}}:l:more`, '1');
    await bench.redis.set(`many:x{${'x'.repeat(22)}}:l`, '1');
    expect(await linesOf(ledger)).toEqual(lines.map(({ tag }) => tag).sort());
    bench.lines = [];
    bench.ledger = own;
    await ledger.stop();
  });

  describe('a subject', () => {
    const odd = [
      ...[
        'two\nlines',
        'nul\0byte',
        '😀',
        '{}:',
        '{a}',
        '*',
        'a b',
        '\'"`',
        '\u202e',
        'é',
        'e\u0301',
      ],
      ...['x'.repeat(300), 'constructor', '__proto__', '1', '-1', 'line', ' ', 'ÿ'],
    ];
    it.each(odd.map((subject) => [JSON.stringify(subject), subject]))(
      '%s',
      async (_name, subject) => {
        const line = bench.named(subject, 'route', budgetOf(termsOf()));
        expect(told(await line.admit('a', 600))).toBe('moved STARTED');
        expect(await line.settle('a', 200)).toMatchObject({ receipt: { subject, route: 'route' } });
        expect(await line.dump()).toMatchObject({ subject, tag: lineTag(subject, 'route') });
        expect(await line.open()).toMatchObject({ available: 800 });
        bench.now += RETENTION;
        expect(await line.settleDown()).toMatchObject({ folded: 1 });
      },
    );

    it('as a route, a key, an operation and a digest too', async () => {
      for (const [i, name] of odd.entries()) {
        const line = bench.named(`of a route ${i}`, name, budgetOf(termsOf()));
        await line.admit(name, 600, { operation: name, digest: name });
        expect(await line.receipt(name)).toMatchObject({
          route: name,
          operation: name,
          digest: name,
        });
        expect(told(await line.settle(name, 1, { operation: `${name}:${name}` }))).toBe(
          'moved SETTLED',
        );
        expect(told(await line.settle(name, 1, { operation: `${name}:${name}` }))).toBe(
          'same SETTLED',
        );
        expect(told(await line.settle(name, 600))).toBe('moved SETTLED');
        bench.now += RETENTION;
        expect(await line.settleDown()).toMatchObject({ folded: 2 });
      }
    });

    it('cannot be moved over the edge to its route', async () => {
      const [one, other] = [['ab', 'c'] as const, ['a', 'bc'] as const].map(([subject, route]) =>
        bench.named(subject, route, budgetOf(termsOf())),
      );
      await one!.reserve('x', 600);
      await other!.reserve('x', 600);
      expect(one!.tag).not.toBe(other!.tag);
      expect((await other!.open()).available).toBe(400);
    });
  });

  it('all keys of a line are in its slot, and everything is in its hash', async () => {
    await bench.redis.flushall();
    const line = bench.line();
    const announce = { requestId: 'req', methodPath: 'GET /' };
    await line.reserve('a', 100, { announce });
    await line.admit('b', 100, { announce });
    await line.settle('b', 2000);
    await line.settle('b', 5, { operation: 'late' });
    await line.reserve('s', 1, { shadow: true });
    line.budget = { ...line.budget, generation: 2, content: 'content 2' };
    await line.reserve('c', 1);
    bench.now += HOLD;
    await line.sweep();
    const keys = (await bench.redis.keys('*')).sort();
    const own = keys.filter((key) => key.includes('{'));
    expect(own).toEqual(['done', 'due', 'l'].map((name) => `earmark:{${line.tag}}:${name}`));
    // What is beside them is a hint, in keys of one name each.
    const beside = keys.filter((key) => !own.includes(key));
    expect(beside.every((key) => /^earmark:(due:\d+|request:[\w-]{22})$/.test(key))).toBe(true);
    const dumped = await bench.ledger.dump(line.tag);
    await bench.redis.del(...keys.filter((key) => !key.endsWith(':l')));
    expect(await bench.ledger.dump(line.tag)).toEqual(dumped);
    expect(dumped.flatMap((twin) => auditLine(twin, false).problems)).toEqual([]);
    expect(told(await line.release('a'))).toBe('refused state');
    expect(told(await line.settle('a', 5))).toBe('moved SETTLED');
  });

  it('the shards of the due index are all used, and only they', () => {
    const keys = keysOf('p:');
    const shards = Array.from({ length: 2000 }, (_, i) => keys.shardOf(lineTag(`s${i}`, 'r')));
    expect(new Set(shards)).toEqual(new Set(Array.from({ length: 16 }, (_, shard) => shard)));
  });
});
