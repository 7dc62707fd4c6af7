/** Evidence that waits: bounded, what matters least goes first, nothing is tried too often. */
import { expect, test } from 'vitest';
import { type Item, pauseOf, WAITING_MAX, Waiting } from '../../src/settle/waiting.js';
import { logEntry } from '../support/entry.js';

const item = (): Item => ({ entry: logEntry(), since: 0, tries: 0 });

test('pauses grow to a bound, with jitter around them', () => {
  const middle = (reason: 'ledger' | 'search') =>
    [0, 1, 2, 5, 30].map((tries) => pauseOf(reason, tries, 0.5));
  expect(middle('ledger')).toEqual([100, 200, 400, 3200, 5000]);
  expect(middle('search')).toEqual([500, 2000, 8000, 300_000, 300_000]);
  expect([pauseOf('ledger', 0, 0), pauseOf('ledger', 0, 1)]).toEqual([75, 125]);
});

test('what is due is taken once, and what is not stays', () => {
  const waiting = new Waiting();
  const [first, second] = [item(), item()];
  expect(waiting.nextDue).toBeUndefined();
  waiting.add(first, 'ledger', 1000);
  waiting.add(second, 'search', 1000);
  expect(first.tries).toBe(1);
  expect(waiting.nextDue).toBeGreaterThanOrEqual(1075);
  expect(waiting.nextDue).toBeLessThanOrEqual(1125);
  expect(waiting.takeDue(1074)).toEqual([]);
  expect(waiting.takeDue(1126)).toEqual([first]);
  expect(waiting.size).toBe(1);
  expect(waiting.takeAll()).toEqual([second]);
  expect(waiting.size).toBe(0);
});

test('full: a search makes room, evidence that is bound does not', () => {
  const waiting = new Waiting();
  const searching = item();
  waiting.add(item(), 'ledger', 0);
  waiting.add(searching, 'search', 0);
  while (waiting.size < WAITING_MAX) expect(waiting.add(item(), 'ledger', 0)).toBeUndefined();
  expect(waiting.add(item(), 'ledger', 0)).toBe(searching);
  const late = item();
  expect(waiting.add(late, 'ledger', 0)).toBe(late);
  expect(waiting.size).toBe(WAITING_MAX);
});

test('a ledger that comes back gets it in bursts', () => {
  const waiting = new Waiting();
  for (let n = 0; n < 1200; n++) waiting.add(item(), 'ledger', 0);
  expect([1, 2, 3, 4].map(() => waiting.takeDue(1000).length)).toEqual([500, 500, 200, 0]);
});
