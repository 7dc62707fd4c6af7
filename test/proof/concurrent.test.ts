/** Three gateways at once on one ledger, through networks that fail: what they were told was one ledger's telling. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { auditLine } from '../../src/ledger/audit.js';
import { Ledger } from '../../src/ledger/ledger.js';
import type { LineDump, Outcome } from '../../src/ledger/types.js';
import { FAULTS, FaultProxy } from '../fault/proxy.js';
import { budgetOf, Line, limitTerms, operationOf } from '../model/samples.js';
import type { Event } from '../model/state.js';
import { ready } from '../support/ledger.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { type Call, judge } from './history.js';
import { Random } from './random.js';
import { scale } from './scale.js';

const SEED = Number(process.env.EARMARK_PROOF_SEED ?? Date.now() % 1_000_000);
const CALLERS = scale({ short: 60, ci: 200, full: 400 });
const ROUNDS = scale({ short: 6, ci: 20, full: 60 });
const LINES = 6;
const FAULT_EVERY_MS = 40;

const budget = budgetOf([limitTerms({ burst: 1000, maxOverdraft: 5000 })], {
  ...{ holdTtlMs: 3_600_000, usageDeadlineMs: 3_600_000, onBreach: 'mark' },
});

let redis: TestRedis;
let straight: Ledger;
const proxies: FaultProxy[] = [];
const ledgers: Ledger[] = [];
/** By line. */
const history = Array.from({ length: LINES }, (_, i) => {
  return {
    line: new Line(`line ${i}`),
    calls: [] as Call[],
    end: undefined as LineDump | undefined,
  };
});

function send(ledger: Ledger, line: Line, event: Event): Promise<Outcome> {
  const { subject, route } = line;
  const reservation = 'id' in event ? `rl-${line.empty().tag}-${event.id}` : '';
  switch (event.op) {
    case 'admit':
      return ledger.admit({ ...event, subject, route });
    case 'settle':
      return ledger.settle({ ...event, reservation });
    case 'unknown':
      return ledger.unknown({ ...event, reservation });
    default:
      throw new Error(event.op);
  }
}

/** Asks until it knows, each time anew and maybe another gateway; everything is recorded. */
async function ask(random: Random, at: (typeof history)[number], event: Event): Promise<Outcome> {
  for (;;) {
    const invoked = performance.now();
    try {
      const reply = await send(random.of(ledgers), at.line, event);
      at.calls.push({ event, invoked, answered: performance.now(), reply });
      return reply;
    } catch {
      at.calls.push({ event, invoked, answered: undefined, reply: undefined });
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

/** One client: asks for some, twice now and then, and says what it used. */
async function live(caller: number): Promise<void> {
  const random = new Random(SEED, caller + 1);
  for (let round = 0; round < ROUNDS; round++) {
    const at = random.of(history);
    const key = `${random.chance(0.3) ? 'shared' : caller}-${round}`;
    const operation = `${caller}-${round}`;
    const units = random.chance(0.3) ? 100 : random.between(1, 400);
    const admit = at.line.reserve(0, key, key.startsWith('shared') ? 100 : units, {
      operation,
      budget,
    });
    const reply = await ask(random, at, admit);
    const receipt = 'receipt' in reply ? reply.receipt : undefined;
    if (receipt?.operation !== operationOf(operation) || receipt.state !== 'STARTED') continue;
    if (random.chance(0.2)) await ask(random, at, at.line.unknown(0, key, operation, [1]));
    const used = random.of([0, units, random.between(0, 450)]);
    const settle = at.line.settle(0, key, operation, used);
    await Promise.all([
      ask(random, at, settle),
      ...(random.chance(0.3) ? [ask(random, at, settle)] : []),
    ]);
  }
}

beforeAll(async () => {
  redis = await startRedis();
  straight = new Ledger({ redis: { path: redis.socket }, prefix: 'earmark:', timeoutMs: 5000 });
  await ready(straight);
  for (const name of ['one', 'two', 'three']) {
    const proxy = await FaultProxy.listen(join(redis.folder, name), redis.socket);
    const ledger = new Ledger({ redis: { path: proxy.path }, prefix: 'earmark:', timeoutMs: 400 });
    proxies.push(proxy);
    ledgers.push(ledger);
    await ready(ledger);
  }
  const random = new Random(SEED);
  const timer = setInterval(
    () => random.of(proxies).arm(random.of(FAULTS), random.between(1, 4)),
    FAULT_EVERY_MS,
  );
  await Promise.all(Array.from({ length: CALLERS }, (_, caller) => live(caller)));
  clearInterval(timer);
  for (const proxy of proxies) proxy.disarm();
  // What a network still holds back arrives before the books are read.
  await new Promise((resolve) => setTimeout(resolve, 600));
  for (const at of history) [at.end] = await straight.dump(at.line.empty().tag);
}, 900_000);
afterAll(async () => {
  for (const ledger of ledgers) await ledger.stop();
  await straight?.stop();
  for (const proxy of proxies) await proxy.stop();
  await redis?.stop();
});

test(`what callers were told is one history of each line (seed ${SEED})`, () => {
  let [checked, found, lost] = [0, 0, 0];
  for (const { line, calls, end } of history) {
    const judgement = judge(line.empty(), calls, end!);
    expect(judgement.violations).toEqual([]);
    expect(auditLine(end!, false).problems).toEqual([]);
    checked += judgement.checked;
    found += judgement.found;
    lost += calls.filter(({ reply }) => reply === undefined).length;
  }
  expect(checked).toBeGreaterThan(CALLERS * ROUNDS);
  expect(lost).toBeGreaterThan(0);
  expect(found).toBeGreaterThan(0);
});

/** The line with most calls, to plant something in. */
function busiest(): (typeof history)[number] {
  return history.reduce((most, at) => (at.calls.length > most.calls.length ? at : most));
}

test('a planted stale read is found', () => {
  const { line, calls, end } = busiest();
  const reads = calls.filter(
    ({ reply }) => reply?.kind === 'same' && reply.line.seq < end!.seq - 3,
  );
  const old = reads[0]!;
  const last = Math.max(...calls.map(({ answered }) => answered ?? 0));
  const stale = { ...old, invoked: last + 1, answered: last + 2 };
  const planted = calls.map((call) => (call === old ? stale : call));
  expect(judge(line.empty(), planted, end!).violations.length).toBeGreaterThan(0);
});

test('a planted reorder is found, and a lost write', () => {
  const { line, calls, end } = busiest();
  const moved = calls.filter(({ reply }) => reply?.kind === 'moved');
  const [first, second] = [moved[0]!, moved.find(({ invoked }) => invoked > moved[0]!.answered!)!];
  const swap = new Map([
    [first, { ...first, invoked: second.invoked, answered: second.answered }],
    [second, { ...second, invoked: first.invoked, answered: first.answered }],
  ]);
  const planted = calls.map((call) => swap.get(call) ?? call);
  expect(judge(line.empty(), planted, end!).violations.length).toBeGreaterThan(0);
  const without = calls.filter((call) => call.event !== second.event);
  expect(judge(line.empty(), without, end!).violations.length).toBeGreaterThan(0);
});
