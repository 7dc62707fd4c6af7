/** Each row of the table of states: the state before, the command, the answer and the book after it. */
import { describe, expect, it } from 'vitest';
import type { State } from '../../src/ledger/types.js';
import { DEADLINE, HOLD, type Line, onEachServer, RETENTION, T0, told } from '../support/ledger.js';

onEachServer('states', (bench) => {
  /** A line with one reservation `r` of 600 in the state, bound to `r` where it is bound. */
  async function lineIn(state: State | 'SETTLED 0' | 'own'): Promise<Line> {
    const line = bench.line();
    const bound = ['STARTED', 'USAGE_UNKNOWN', 'SETTLED', 'SETTLED_WITH_DEBT', 'SETTLED 0'];
    if (bound.includes(state)) await line.admit('r', 600);
    else await line.reserve('r', 600);
    if (state === 'USAGE_UNKNOWN') await line.unknown('r');
    if (state === 'SETTLED') await line.settle('r', 200);
    if (state === 'SETTLED 0') await line.settle('r', 0);
    if (state === 'SETTLED_WITH_DEBT') await line.settle('r', 1300);
    if (state === 'RELEASED' || state === 'own') await line.release('r');
    if (state === 'own') await line.unknown('r', 50);
    if (state === 'EXPIRING' || state === 'EXPIRED') {
      bench.now += HOLD;
      await line.sweep();
    }
    if (state === 'EXPIRED') await line.sweep();
    expect((await line.receipt('r')).state).toBe(
      { 'SETTLED 0': 'SETTLED', own: 'RELEASED' }[state as string] ?? state,
    );
    return line;
  }

  describe('reserve', () => {
    it('takes what is there, to the last unit, and not one more', async () => {
      const line = bench.line();
      expect(told(await line.reserve('a', 600))).toBe('moved RESERVED');
      expect(await line.open()).toMatchObject({ opening: 1000, available: 400, reserved: 600 });
      const refused = await line.reserve('b', 401);
      expect(refused).toMatchObject({ kind: 'limited', by: 'capacity', limit: '', needed: 401 });
      expect(told(await line.reserve('c', 400))).toBe('moved RESERVED');
      expect(await line.open()).toMatchObject({ available: 0, reserved: 1000, spent: 0 });
    });

    it('makes a receipt with everything in it', async () => {
      const line = bench.line();
      const outcome = await line.reserve('a', 600);
      expect(outcome).toMatchObject({
        kind: 'moved',
        freezeRoute: false,
        receipt: {
          ...{ reservation: line.id('a'), subject: line.subject, route: 'route', shadow: false },
          ...{ generation: 1, digest: 'a'.padEnd(43, '-'), units: [600], operation: '' },
          ...{ reservedAt: T0, expiresAt: T0 + HOLD, state: 'RESERVED', attempt: 1, latest: 1 },
          ...{ breach: false, unstarted: false, evidence: '', seq: 1 },
        },
        line: { seq: 1, now: T0, generation: 1, frozenUntil: 0 },
      });
      const found = await bench.ledger.get(line.id('a'));
      expect(found?.receipt).toMatchObject(outcome.kind === 'moved' ? outcome.receipt : {});
      expect(await bench.ledger.get(line.id('b'))).toBeUndefined();
    });

    it('names the first that fails: frozen, closed, max-reservation, debt, capacity', async () => {
      const line = await lineIn('SETTLED_WITH_DEBT');
      await line.freeze();
      const hopeless = { closed: true, routeFrozenUntil: T0 + 1 };
      expect(told(await line.reserve('x', 1001, hopeless))).toBe('limited frozen');
      await line.unfreeze();
      expect(told(await line.reserve('x', 1001, hopeless))).toBe('limited frozen');
      const now = { closed: true, routeFrozenUntil: T0 };
      expect(told(await line.reserve('x', 1001, now))).toBe('limited closed');
      expect(told(await line.reserve('x', 1001))).toBe('limited max-reservation');
      expect(told(await line.reserve('x', 1000))).toBe('limited debt');
      await line.credit(300 + 999);
      expect(told(await line.reserve('x', 1000))).toBe('limited capacity');
      await line.credit(1);
      expect(told(await line.reserve('x', 1000))).toBe('moved RESERVED');
    });

    it('refused leaves no receipt and binds no digest', async () => {
      const line = await lineIn('RESERVED');
      expect(told(await line.reserve('x', 600))).toBe('limited capacity');
      await line.release('r');
      const other = { digest: 'other'.padEnd(43, '-') };
      expect(told(await line.reserve('x', 600, other))).toBe('moved RESERVED');
    });

    it('counts 0 as 1', async () => {
      const line = bench.line();
      await line.reserve('a', 0);
      expect(await line.open()).toMatchObject({ available: 999, reserved: 1 });
    });
  });

  const states = [
    ...(['RESERVED', 'STARTED', 'SETTLED', 'SETTLED_WITH_DEBT', 'RELEASED'] as const),
    ...(['EXPIRING', 'EXPIRED', 'USAGE_UNKNOWN', 'SETTLED 0', 'own'] as const),
  ];
  /** What each command says of each state; 'moved …' names the new one. */
  const answers: Record<string, readonly [(line: Line) => Promise<string>, readonly string[]]> = {
    'reserve, the same': [
      async (line) => told(await line.reserve('r', 600)),
      states.map((state) => `same ${state.replace(' 0', '').replace('own', 'RELEASED')}`),
    ],
    'reserve, another digest': [
      async (line) => told(await line.reserve('r', 600, { digest: 'x'.repeat(43) })),
      states.map(() => 'refused digest'),
    ],
    'admit, the same operation': [
      async (line) => told(await line.admit('r', 600)),
      [
        ...['moved STARTED', 'same STARTED', 'same SETTLED', 'same SETTLED_WITH_DEBT'],
        ...['same RELEASED', 'same EXPIRING', 'same EXPIRED', 'same USAGE_UNKNOWN'],
        ...['same SETTLED', 'same RELEASED'],
      ],
    ],
    'start, the same operation': [
      async (line) => told(await line.start('r')),
      [
        ...['moved STARTED', 'same STARTED', 'same SETTLED', 'same SETTLED_WITH_DEBT'],
        ...['refused state', 'refused state', 'refused state', 'same USAGE_UNKNOWN'],
        ...['same SETTLED', 'refused state'],
      ],
    ],
    'start, another operation': [
      async (line) => told(await line.start('r', 'other')),
      [
        ...['moved STARTED', 'refused bound', 'refused bound', 'refused bound'],
        ...['refused state', 'refused state', 'refused state', 'refused bound'],
        ...['refused bound', 'refused state'],
      ],
    ],
    release: [
      async (line) => told(await line.release('r')),
      [
        ...['moved RELEASED', 'refused state', 'refused state', 'refused state'],
        ...['same RELEASED', 'refused state', 'refused state', 'refused state'],
        ...['refused state', 'same RELEASED'],
      ],
    ],
    'settle 200': [
      async (line) => told(await line.settle('r', 200)),
      [
        ...['moved SETTLED', 'moved SETTLED', 'same SETTLED', 'refused conflict'],
        ...['moved SETTLED', 'moved SETTLED', 'moved SETTLED', 'moved SETTLED'],
        ...['refused conflict', 'moved SETTLED'],
      ],
    ],
    'settle 0': [
      async (line) => told(await line.settle('r', 0, { grade: 'neverSent' })),
      [
        ...['moved RELEASED', 'moved SETTLED', 'refused conflict', 'refused conflict'],
        ...['same RELEASED', 'same EXPIRING', 'same EXPIRED', 'moved SETTLED'],
        ...['same SETTLED', 'moved SETTLED'],
      ],
    ],
    'settle 0, another operation': [
      async (line) => told(await line.settle('r', 0, { operation: 'other' })),
      [
        ...['moved RELEASED', 'same STARTED', 'same SETTLED', 'same SETTLED_WITH_DEBT'],
        ...['same RELEASED', 'same EXPIRING', 'same EXPIRED', 'same USAGE_UNKNOWN'],
        ...['same SETTLED', 'same RELEASED'],
      ],
    ],
    'settle 200, another operation': [
      async (line) => told(await line.settle('r', 200, { operation: 'other' })),
      [
        ...['moved SETTLED', 'moved SETTLED', 'moved SETTLED', 'moved SETTLED_WITH_DEBT'],
        ...['moved SETTLED', 'moved SETTLED', 'moved SETTLED', 'moved SETTLED'],
        ...['moved SETTLED', 'moved SETTLED'],
      ],
    ],
    'unknown, the same operation': [
      async (line) => told(await line.unknown('r')),
      [
        ...['moved USAGE_UNKNOWN', 'moved USAGE_UNKNOWN', 'same SETTLED', 'same SETTLED_WITH_DEBT'],
        ...['moved USAGE_UNKNOWN', 'moved USAGE_UNKNOWN', 'moved USAGE_UNKNOWN'],
        ...['same USAGE_UNKNOWN', 'same SETTLED', 'same USAGE_UNKNOWN'],
      ],
    ],
    'unknown, another operation': [
      async (line) => told(await line.unknown('r', 5, { operation: 'other' })),
      states.map(() => 'moved USAGE_UNKNOWN'),
    ],
  };

  describe.each(Object.entries(answers))('%s', (_command, [run, expected]) => {
    it.each(states.map((state, i) => [state, expected[i]!] as const))(
      'of %s: %s',
      async (state, answer) => {
        expect(await run(await lineIn(state))).toBe(answer);
      },
    );
  });

  it('of nothing: not found, with a line or without', async () => {
    const line = bench.line();
    const commands = [
      () => line.start('r'),
      () => line.release('r'),
      () => line.settle('r', 0),
      () => line.settle('r', 5),
      () => line.unknown('r'),
    ];
    for (const command of commands) expect(told(await command())).toBe('refused not-found');
    await line.reserve('x', 1);
    for (const command of commands) expect(told(await command())).toBe('refused not-found');
  });

  describe('time', () => {
    it('lets a start in until the last ms, and not at expiresAt', async () => {
      const early = await lineIn('RESERVED');
      bench.now = T0 + HOLD - 1;
      expect(told(await early.start('r'))).toBe('moved STARTED');
      bench.now = T0;
      const late = await lineIn('RESERVED');
      bench.now = T0 + HOLD;
      expect(told(await late.start('r'))).toBe('refused expired');
      expect(await late.open()).toMatchObject({ available: 400, reserved: 600 });
      expect((await late.receipt('r')).state).toBe('EXPIRING');
      expect(told(await late.start('r'))).toBe('refused state');
    });

    it('admits a kept reservation only before expiresAt', async () => {
      const line = await lineIn('RESERVED');
      bench.now += HOLD;
      expect(told(await line.admit('r', 600))).toBe('refused expired');
      expect((await line.receipt('r')).state).toBe('EXPIRING');
    });

    it('returns a hold in two steps, each of which is seen', async () => {
      const line = await lineIn('RESERVED');
      bench.now += HOLD - 1;
      expect(await line.sweep()).toMatchObject({ expiring: 0, nextDue: T0 + HOLD });
      bench.now += 1;
      expect(await line.sweep()).toMatchObject({ expiring: 1, expired: 0, nextDue: bench.now });
      expect(await line.open()).toMatchObject({ available: 400, reserved: 600 });
      const swept = await line.sweep();
      expect(swept).toMatchObject({ expiring: 0, expired: 1, nextDue: bench.now + RETENTION });
      expect(await line.open()).toMatchObject({ available: 1000, reserved: 0 });
      expect(await line.sweep()).toMatchObject({ expired: 0 });
    });

    it('makes a late start EXPIRED with the next sweep', async () => {
      const line = await lineIn('RESERVED');
      bench.now += HOLD + 5;
      await line.start('r');
      expect(await line.sweep()).toMatchObject({ expiring: 0, expired: 1 });
    });

    it('never takes a running one for unused', async () => {
      const line = await lineIn('STARTED');
      bench.now += DEADLINE - 1;
      expect(await line.sweep()).toMatchObject({ unknown: 0, nextDue: T0 + DEADLINE });
      bench.now += 1;
      expect(await line.sweep()).toMatchObject({ unknown: 1, expired: 0, nextDue: 0 });
      expect(await line.open()).toMatchObject({ available: 400, reserved: 600 });
      bench.now += 10 * RETENTION;
      expect(await line.sweep()).toMatchObject({ unknown: 0, folded: 0 });
      expect(await line.open()).toMatchObject({ available: 400, reserved: 600 });
      expect(told(await line.settle('r', 100))).toBe('moved SETTLED');
    });

    it('releases also what should have expired', async () => {
      const line = await lineIn('RESERVED');
      bench.now += 2 * HOLD;
      expect(told(await line.release('r'))).toBe('moved RELEASED');
      expect((await line.open()).available).toBe(1000);
    });

    it('takes at most so many steps in one sweep, the oldest first', async () => {
      const line = bench.line();
      for (const key of ['a', 'b', 'c']) {
        await line.reserve(key, 10);
        bench.now += 1;
      }
      bench.now += HOLD;
      expect(await line.sweep(2)).toMatchObject({ expiring: 2, expired: 0 });
      expect((await line.receipt('c')).state).toBe('RESERVED');
      expect((await line.settleDown()).folded).toBe(0);
      expect((await line.open()).available).toBe(1000);
    });

    it('never runs backwards on a line', async () => {
      const line = await lineIn('RESERVED');
      bench.now += HOLD;
      await line.reserve('x', 1);
      bench.now -= 2 * HOLD;
      const outcome = await line.reserve('y', 1);
      expect(outcome).toMatchObject({
        receipt: { reservedAt: T0 + HOLD },
        line: { now: T0 + HOLD },
      });
      expect(told(await line.start('r'))).toBe('refused expired');
    });
  });

  it('start binds the operation, and nothing else', async () => {
    const line = await lineIn('RESERVED');
    await line.freeze();
    bench.now += 7;
    expect(await line.start('r', 'op')).toMatchObject({
      receipt: { operation: 'op', state: 'STARTED', units: [600] },
    });
    expect(await line.open()).toMatchObject({ available: 400, reserved: 600 });
    expect((await line.sweep()).nextDue).toBe(T0 + 7 + DEADLINE);
  });
});
