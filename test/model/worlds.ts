/** The small worlds: each is about one part of the account, small enough to be looked at whole. */

import { bookOf } from './account.js';
import { budgetOf, digestOf, Line, limitTerms, T0 } from './samples.js';
import type { Event, LineState } from './state.js';
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

/** Credits can be repeated for ever: a world with credits ends where so much came in. */
function minted(state: LineState, limit: string): number {
  const books = state.real === undefined ? [] : state.real.pages.map((page) => bookOf(page, limit));
  return books.reduce((sum, book) => sum + (book?.minted ?? 0), 0);
}

function every(step: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => T0 + i * step);
}

/** Two reservations of 600 in 1000 without refill: every command at five instants, debt and breach included. */
function mainWorld(): World {
  const line = new Line('main');
  const budget = budgetOf([limitTerms({ maxOverdraft: 150 })], {
    holdTtlMs: 50,
    usageDeadlineMs: 50,
  });
  return {
    name: 'main',
    line,
    instants: every(50, 5),
    few: 2,
    kinds: [
      'admit moved STARTED',
      'reserve limited debt',
      'reserve refused digest',
      'sweep expired',
      'settle moved SETTLED_WITH_DEBT',
      'settle refused conflict',
      'start refused bound',
      'unfreeze moved',
    ],
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

/** Continuous refill that leaves a remainder, debt that it repays, a bucket that runs full, steps of odd length. */
function refillWorld(): World {
  const line = new Line('refill');
  const refill = { units: 3, everyMs: 7 };
  const budget = budgetOf([limitTerms({ burst: 10, refill, maxOverdraft: 4 })], {
    ...{ holdTtlMs: 5, usageDeadlineMs: 9, freezeForMs: 4 },
  });
  return {
    name: 'refill',
    line,
    instants: [0, 5, 1, 8, 20].map((ms) => T0 + ms),
    few: 2,
    kinds: ['reserve limited debt', 'credit moved', 'release moved RELEASED'],
    end: (state) => minted(state, '') > 14,
    commands(now) {
      return [
        line.reserve(now, 'a', 7, { budget, operation: 'x' }),
        line.reserve(now, 'b', 7, { budget }),
        line.start(now, 'b', 'x'),
        line.settle(now, 'a', 'x', 2),
        line.settle(now, 'a', 'x', 16),
        line.settle(now, 'b', 'x', 9),
        line.release(now, 'b'),
        { op: 'credit', now, shadow: false, limit: '', units: 6 },
        sweep(now),
      ];
    },
  };
}

/** Two generations of another burst, a later epoch, and evidence for what was reserved under the first. */
function movesWorld(): World {
  const line = new Line('moves');
  const refill = { units: 2, everyMs: 3 };
  const terms = { epochMs: 10, holdTtlMs: 10, usageDeadlineMs: 10 };
  const first = budgetOf([limitTerms({ burst: 10, refill })], terms);
  const second = budgetOf([limitTerms({ burst: 6 })], {
    ...{ ...terms, generation: 2, retentionMs: 70_000_000 },
  });
  const other = { ...second, content: 'other' };
  return {
    name: 'moves',
    line,
    instants: [0, 10, 4, 20].map((ms) => T0 + ms),
    few: 2,
    kinds: ['reserve refused stale', 'admit refused content', 'settle moved SETTLED_WITH_DEBT'],
    commands(now) {
      return [
        line.reserve(now, 'a', 6, { budget: first, operation: 'x' }),
        line.reserve(now, 'b', 5, { budget: first }),
        line.reserve(now, 'c', 5, { budget: second, operation: 'x' }),
        line.reserve(now, 'c', 5, { budget: other, operation: 'x' }),
        ...[2, 9, 20].map((actual) => line.settle(now, 'a', 'x', actual)),
        line.settle(now, 'c', 'x', 7),
        line.release(now, 'b'),
        sweep(now),
      ];
    },
  };
}

/** Two limits, one with a cost of its own; the next generation drops one and brings another. */
function limitsWorld(): World {
  const line = new Line('limits');
  const tokens = limitTerms({ name: 'tokens', burst: 10, refill: { units: 1, everyMs: 2 } });
  const calls = limitTerms({ name: 'calls', burst: 2, ownCost: true });
  const day = limitTerms({ name: 'day', burst: 8, maxOverdraft: 3 });
  const terms = { holdTtlMs: 4, usageDeadlineMs: 4, freezeForMs: 3 };
  const first = budgetOf([tokens, calls], terms);
  const second = budgetOf([day, tokens], { ...terms, generation: 2 });
  return {
    name: 'limits',
    line,
    instants: [0, 3, 8].map((ms) => T0 + ms),
    few: 1,
    kinds: [
      'admit limited debt',
      'settle moved SETTLED_WITH_DEBT',
      'unknown moved USAGE_UNKNOWN',
      'reserve refused stale',
    ],
    end: (state) => minted(state, 'calls') > 2,
    commands(now) {
      return [
        line.reserve(now, 'a', [6, 1], { budget: first, operation: 'x' }),
        line.reserve(now, 'b', [3, 2], { budget: first }),
        line.reserve(now, 'c', [5, 4], { budget: second, operation: 'x' }),
        line.reserve(now, 'c', [5], { budget: second }),
        ...[[12], [6, 3]].map((actual) => line.settle(now, 'a', 'x', actual)),
        line.unknown(now, 'a', 'x', [2]),
        line.settle(now, 'c', 'x', [9]),
        line.settle(now, 'b', 'y', [1, 1]),
        line.release(now, 'b'),
        { op: 'credit', now, shadow: false, limit: 'calls', units: 2 },
        sweep(now),
      ];
    },
  };
}

/** Receipts and pages fold: attempts together, epochs and a generation into the archive. */
function foldWorld(): World {
  const line = new Line('fold');
  const terms = { epochMs: 20, holdTtlMs: 10, usageDeadlineMs: 10, retentionMs: 10 };
  const budget = budgetOf([limitTerms({ burst: 10 })], terms);
  const second = budgetOf([limitTerms({ burst: 10 })], { ...terms, generation: 2 });
  return {
    name: 'fold',
    line,
    looksBack: true,
    instants: [0, 12, 20, 7].map((ms) => T0 + ms),
    few: 2,
    kinds: ['sweep folded', 'settle refused too-late', 'admit refused attempt'],
    commands(now) {
      const told = { reservedAt: T0, budget };
      return [
        line.reserve(now, 'a', 6, { budget }),
        line.reserve(now, 'a', 6, { budget, operation: 'x', attempt: 2 }),
        line.reserve(now, 'b', 2, { budget: second }),
        line.release(now, 'a'),
        line.settle(now, 'a', 'x', 4, { attempt: 2 }),
        line.settle(now, 'b', 'x', 1),
        line.settle(now, 'a', 'y', 3, told),
        line.unknown(now, 'a', 'y', [], told),
        sweep(now),
      ];
    },
  };
}

/** Shadow beside real: books of their own, keys looked up in both, one sweep and one index of what is due. */
function shadowWorld(): World {
  const line = new Line('shadow');
  const terms = { holdTtlMs: 10, usageDeadlineMs: 20, retentionMs: 10 };
  const budget = budgetOf([limitTerms({ burst: 10, refill: { units: 1, everyMs: 4 } })], terms);
  return {
    name: 'shadow',
    line,
    looksBack: true,
    instants: [0, 10, 20].map((ms) => T0 + ms),
    few: 2,
    kinds: ['reserve same RESERVED', 'sweep folded', 'admit limited capacity'],
    commands(now) {
      const both = [false, true].flatMap((shadow) => [
        line.reserve(now, 'a', 6, { budget, shadow }),
        line.reserve(now, shadow ? 's' : 'r', 8, { budget, shadow, operation: 'x' }),
      ]);
      return [
        ...both,
        line.reserve(now, 'a', 6, { budget, attempt: 2 }),
        line.release(now, 'a'),
        line.settle(now, 's', 'x', 12),
        line.settle(now, 'f', 'x', 5, { shadow: true, reservedAt: T0 + 1, budget }),
        sweep(now),
      ];
    },
  };
}

/** A plan's factor changes back and forth, at an epoch too. */
function planWorld(): World {
  const line = new Line('plan');
  const refill = { units: 3, everyMs: 7 };
  const at = (numerator: number, denominator: number) =>
    budgetOf([limitTerms({ burst: 11, refill, maxReservation: 9 })], {
      ...{ epochMs: 10, holdTtlMs: 6, usageDeadlineMs: 6, factor: { numerator, denominator } },
    });
  const plans = [at(1, 1), at(1, 2), at(5, 3)];
  return {
    name: 'plan',
    line,
    instants: [0, 10, 4, 16].map((ms) => T0 + ms),
    few: 2,
    kinds: ['reserve limited max-reservation', 'settle moved SETTLED_WITH_DEBT'],
    commands(now) {
      return [
        ...plans.map((budget) => line.reserve(now, 'a', 5, { budget, operation: 'x' })),
        ...plans.map((budget) => line.reserve(now, 'b', 9, { budget })),
        line.settle(now, 'a', 'x', 1),
        line.settle(now, 'a', 'x', 20),
        line.release(now, 'b'),
      ];
    },
  };
}

/** Uses that no start won, after the reservation ended or another operation was bound; and what nobody knows of. */
function ownWorld(): World {
  const line = new Line('own');
  const budget = budgetOf([limitTerms({ burst: 10, maxOverdraft: 5, executionHardCap: 12 })], {
    ...{ holdTtlMs: 10, usageDeadlineMs: 10 },
  });
  return {
    name: 'own',
    line,
    looksBack: true,
    instants: [0, 10].map((ms) => T0 + ms),
    few: 1,
    kinds: ['unknown same USAGE_UNKNOWN', 'settle moved SETTLED_WITH_DEBT', 'settle same RELEASED'],
    commands(now) {
      const early = { reservedAt: T0 - 1, budget };
      return [
        line.reserve(now, 'a', 6, { budget }),
        line.start(now, 'a', 'x'),
        line.release(now, 'a'),
        ...[0, 3, 13].map((actual) => line.settle(now, 'a', 'y', actual)),
        ...[0, 7].map((actual) => line.settle(now, 'a', 'x', actual)),
        ...[[], [2], [3]].map((least) => line.unknown(now, 'a', 'y', least)),
        line.unknown(now, 'a', 'x', [1]),
        line.settle(now, 'a', 'z', 2, early),
        line.settle(now, 'a', 'z', 0, { ...early, unreserved: true }),
        sweep(now),
      ];
    },
  };
}

/** Presumed evidence and the real evidence that replaces it, with debt, breach and a hard cap in the way. */
function presumedWorld(): World {
  const line = new Line('presumed');
  const budget = budgetOf([limitTerms({ burst: 10, maxOverdraft: 2, executionHardCap: 15 })], {
    ...{ holdTtlMs: 10, usageDeadlineMs: 10, onBreach: 'freezeRoute', freezeForMs: 10 },
  });
  return {
    name: 'presumed',
    line,
    instants: [0, 10, 20].map((ms) => T0 + ms),
    few: 1,
    kinds: ['settle refused conflict', 'admit limited frozen', 'unfreeze moved'],
    commands(now) {
      const presumed = { grade: 'presumed' } as const;
      return [
        line.reserve(now, 'a', 6, { budget, operation: 'x' }),
        line.reserve(now, 'b', 4, { budget, operation: 'x' }),
        ...[6, 11, 13].map((actual) => line.settle(now, 'a', 'x', actual, presumed)),
        ...[0, 6, 11, 16].map((actual) => line.settle(now, 'a', 'x', actual)),
        ...[2, 6].map((actual) => line.settle(now, 'b', 'x', actual, presumed)),
        line.settle(now, 'b', 'x', 4),
        line.settle(now, 'b', 'y', 1, presumed),
        sweep(now),
        sweep(now, 1),
        { op: 'unfreeze', now, shadow: false },
      ];
    },
  };
}

export const WORLDS: readonly World[] = [
  mainWorld(),
  refillWorld(),
  movesWorld(),
  limitsWorld(),
  foldWorld(),
  shadowWorld(),
  planWorld(),
  ownWorld(),
  presumedWorld(),
];
