/** The small worlds: each is about one part of the account, small enough to be looked at whole. */
import { budgetOf, digestOf, Line, limitTerms, T0 } from './samples.js';
import type { Event } from './state.js';
import type { World } from './world.js';

function freezes(now: number, shadow = false): Event[] {
  return [
    { op: 'freeze', now, shadow, until: -1 },
    { op: 'unfreeze', now, shadow },
  ];
}

function sweep(now: number, limit = 10): Event {
  return { op: 'sweep', now, limit };
}

function every(step: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => T0 + i * step);
}

/** Two reservations of 600 in 1000 without refill: every command at five instants, debt and breach included. */
function mainWorld(): World {
  const line = new Line('main');
  const budget = budgetOf([limitTerms({ maxOverdraft: 150 })], { holdTtlMs: 50, usageDeadlineMs: 50 });
  return {
    name: 'main',
    line,
    instants: every(50, 5),
    commands(now) {
      return [
        ...['a', 'b'].map((key) => line.reserve(now, key, 600, { budget })),
        line.reserve(now, 'a', 600, { budget, digest: digestOf('b') }),
        line.reserve(now, 'a', 600, { budget, operation: 'x' }),
        ...['a', 'b'].map((key) => line.start(now, key, 'x')),
        line.start(now, 'a', 'y'),
        ...['a', 'b'].map((key) => line.release(now, key)),
        ...[0, 600, 1200].map((actual) => line.settle(now, 'a', 'x', actual)),
        line.settle(now, 'b', 'x', 200),
        line.unknown(now, 'b', 'x', [100]),
        sweep(now),
        ...(now === T0 ? [] : freezes(now)),
      ];
    },
  };
}

export const WORLDS: readonly World[] = [mainWorld()];
