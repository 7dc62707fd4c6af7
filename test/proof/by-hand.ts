/** Stories that chance tells too seldom: each was the way to see a broken rule that random ones let live. */
import { type Reply, step } from '../model/model.js';
import { budgetOf, Line, limitTerms, T0 } from '../model/samples.js';
import type { Event, LineState } from '../model/state.js';
import type { Story } from './stories.js';

/** What the model answers to events on a line. */
export function storyFrom(seed: number, first: LineState, events: readonly Event[]): Story {
  let last = first;
  const replies: Reply[] = [];
  const after = events.map((event) => {
    const { state, reply } = step(last, event);
    replies.push(reply);
    last = state;
    return state;
  });
  return { seed, first, events, replies, after };
}

/** An older page gets its debt after a newer one: credit repays the older first all the same. */
function olderDebtLater(line: Line): Event[] {
  const budget = budgetOf([limitTerms({ burst: 10 })], { epochMs: 10, usageDeadlineMs: 1000 });
  const credit = (units: number): Event => {
    return { op: 'credit', now: T0 + 20, shadow: false, limit: '', units };
  };
  return [
    line.reserve(T0, 'a', 5, { budget, operation: 'x' }),
    line.settle(T0, 'a', 'x', 5, { grade: 'presumed' }),
    line.reserve(T0 + 10, 'b', 5, { budget, operation: 'x' }),
    line.reserve(T0 + 20, 'c', 1, { budget }),
    line.settle(T0 + 20, 'b', 'x', 8),
    line.settle(T0 + 20, 'a', 'x', 9),
    ...[2, 3, 1, 4].map(credit),
  ];
}

/** The same within one epoch, by generations. */
function olderGenerationLater(line: Line): Event[] {
  const at = (generation: number) =>
    budgetOf([limitTerms({ burst: 10 })], { generation, usageDeadlineMs: 1000 });
  return [
    line.reserve(T0, 'a', 5, { budget: at(1), operation: 'x' }),
    line.settle(T0, 'a', 'x', 5, { grade: 'presumed' }),
    line.reserve(T0, 'b', 5, { budget: at(2), operation: 'x' }),
    line.reserve(T0, 'c', 1, { budget: at(3) }),
    line.settle(T0, 'b', 'x', 8),
    line.settle(T0, 'a', 'x', 9),
    ...[2, 3, 1, 4].map((units): Event => {
      return { op: 'credit', now: T0, shadow: false, limit: '', units };
    }),
  ];
}

/** Debt of a limit that is gone beside debt that nothing repays: which one is named, and how much is owed. */
function goneLimitOwes(line: Line): Event[] {
  const [p, q] = [limitTerms({ name: 'p', burst: 10 }), limitTerms({ name: 'q', burst: 10 })];
  const [first, second] = [budgetOf([p, q]), budgetOf([p], { generation: 2 })];
  return [
    line.reserve(T0, 'a', [2, 2], { budget: first, operation: 'x' }),
    line.reserve(T0, 'b', [1], { budget: second }),
    line.release(T0, 'b'),
    line.settle(T0, 'a', 'x', [20, 5]),
    line.reserve(T0, 'c', [1], { budget: second }),
    { op: 'credit', now: T0, shadow: false, limit: 'p', units: 50 },
    line.reserve(T0, 'c', [1], { budget: second }),
  ];
}

/** A sweep of one step takes one step, one group, and no less. */
function oneStepASweep(line: Line): Event[] {
  const budget = budgetOf([limitTerms({ burst: 10 })], { retentionMs: 10 });
  const sweep = (ms: number): Event => ({ op: 'sweep', now: T0 + ms, limit: 1 });
  return [
    ...['a', 'b'].flatMap((key) => [
      line.reserve(T0, key, 2, { budget, operation: 'x' }),
      line.settle(T0, key, 'x', 1),
    ]),
    ...[9, 10, 10, 10].map(sweep),
  ];
}

/** Their seeds are below 0: no random story has one. */
export function storiesByHand(): Story[] {
  return [olderDebtLater, olderGenerationLater, goneLimitOwes, oneStepASweep].map((tell, i) => {
    const line = new Line(`by hand ${i}`);
    return storyFrom(-1 - i, line.empty(), tell(line));
  });
}
