/**
 * Generated messages through the real handlers of every service, on a real ledger: 20,000 here, a million with
 * EARMARK_FUZZ=1000000. EARMARK_SEED repeats a run.
 */
import { EventEmitter } from 'node:events';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { status } from '@grpc/grpc-js';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createCheck } from '../../src/envoy/check.js';
import { envoyServices } from '../../src/grpc/envoy.js';
import { ledgerService } from '../../src/grpc/ledger-service.js';
import { auditLine } from '../../src/ledger/audit.js';
import { Ledger } from '../../src/ledger/ledger.js';
import { Spool } from '../../src/ledger/spool.js';
import { parseRollout } from '../../src/policy/rollout.js';
import type { PolicyView } from '../../src/policy/types.js';
import { Settler } from '../../src/settle/settler.js';
import { policyOf, readAnswer } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import {
  checkRequest,
  Dice,
  type Kind,
  ledgerFields,
  logMessage,
  mutated,
  noise,
} from './generate.js';

const COUNT = Number(process.env.EARMARK_FUZZ ?? 20_000);
const SEED = Number(process.env.EARMARK_SEED ?? Date.now() % 2 ** 32);
const AT_ONCE = 64;
/** Enough to be asked about again, and bounded. */
const REMEMBERED = 500;

const policy = policyOf(`
schema: admissionBudget.v1
generation: 1
unmatched: refuse
budgets:
  - { route: chat, match: context.route == "chat", subject: 'request.headers["x-tenant"]', burst: 1000000000 }
  - route: refilled
    match: context.route == "refilled"
    subject: request.headers["x-tenant"]
    burst: 1000
    refill: { units: 1000, every: 1s }
    receiptRetention: 1s
    holdTtl: 1s
    maxOverdraft: 5000
    onBreach: mark
  - route: both
    match: context.route == "both"
    subject: request.headers["x-tenant"]
    settledAgain: reserve
    limits:
      - { name: calls, burst: 1000000, cost: { call: 1 } }
      - { name: tokens, burst: 1000000 }
  - { route: executor, match: context.route == "executor", subject: 'request.headers["x-tenant"]', burst: 100000, startedBy: executor }
`);
const { rollout } = parseRollout(
  '{ schema: rollout.v1, generation: 1, default: { mode: enforce } }',
  'rollout.yaml',
);
const view: PolicyView = {
  ...{ policy, rollout, frozenUntil: () => 0 },
  generation: (generation) => (generation === 1 ? policy : undefined),
};

/** Errors of the log, by their text: what is not expected here is a bug. */
const errors = new Map<string, object>();
const log = {
  ...{ debug: () => {}, info: () => {}, warn: () => {} },
  error: (fields: { why?: string; detail?: string }, message: string) =>
    errors.set(`${message} ${fields.why ?? ''} ${fields.detail ?? ''}`.trim(), fields),
};
/** A sum beyond 2^53 - 1 is refused, and said. */
const EXPECTED = /could not be read$|^evidence refused overflow/;
const meter = { count: () => {}, observe: () => {} };

let redis: TestRedis;
let ledger: Ledger;
let settler: Settler;
let services: ReturnType<typeof envoyServices>;
let own: ReturnType<typeof ledgerService>;

beforeAll(async () => {
  // Reading Envoy's descriptors takes longer than the ledger may be silent.
  checkRequest(new Dice(0), 0);
  redis = await startRedis();
  ledger = new Ledger({ redis: { path: redis.socket }, prefix: 'earmark:', timeoutMs: 60_000 });
  await new Promise((resolve) => ledger.redis.once('ready', resolve));
  // A busy machine's pauses are no subject here.
  Object.assign(ledger.redis.options, { socketTimeout: 60_000 });
  const loadPolicy = async (generation: number) => view.generation(generation);
  const freezeRoute = async () => {};
  const spool = new Spool(ledger.redis, 'earmark:');
  settler = new Settler({ ledger, loadPolicy, freezeRoute, spool, meter, log });
  const deps = { ledger, policy: () => view, reload: async () => {}, override: () => false };
  const check = createCheck({ ...deps, notReady: () => undefined, meter, log });
  services = envoyServices({ check, accept: (entry) => settler.accept(entry), meter, log });
  own = ledgerService({ ...deps, loadPolicy, freezeRoute, meter, log });
});
afterAll(async () => {
  await settler.stop();
  await ledger.stop();
  await redis.stop();
});

// biome-ignore lint/suspicious/noExplicitAny: handlers are called as grpc-js calls them
type Handler = any;
const handlerOf = (service: number, name: string): Handler => services[service]![1][name];

function unary(
  handler: Handler,
  request: unknown,
): Promise<{ code: number; details?: string; answer?: Buffer }> {
  const call = { request, cancelled: false, getDeadline: () => Date.now() + 60_000 };
  return new Promise((resolve) =>
    handler(call, (error: { code: number; details: string } | null, answer?: Buffer) =>
      resolve(error ? error : { code: status.OK, answer: answer! }),
    ),
  );
}

interface Made {
  readonly requestId: string;
  readonly ours: object;
}

/** How often each service answered how. */
const seen = new Map<string, number>();
const made: Made[] = [];
const known: { reservation: string; operation: string }[] = [];

function remember<T>(list: T[], item: T, dice: Dice): void {
  if (list.length < REMEMBERED) list.push(item);
  else list[dice.below(REMEMBERED)] = item;
}

function saw(what: string): void {
  seen.set(what, (seen.get(what) ?? 0) + 1);
}

/** Whole messages of late, by their door: what is mutated is one of them. */
const whole = new Map<string, Buffer[]>();

function form(dice: Dice, kind: Kind, door: string, make: () => Buffer): Buffer {
  if (kind === 'random') return noise(dice);
  const kept = whole.get(door) ?? [];
  whole.set(door, kept);
  if (kind === 'mutated' && kept.length > 0) return mutated(dice, dice.one(kept));
  if (kept.length > 0 && dice.chance(0.1)) return dice.one(kept);
  const made = make();
  remember(kept, made, dice);
  return made;
}

const STATUSES = [400, 403, 409, 422, 429];
/** The only error where the ledger answers: an earlier hold of the key is not swept yet, or its attempts race. */
const HELD = /under way|about to expire/;
const HELD_OR_UNREADABLE = new RegExp(`${HELD.source}|could not read the request`);

async function sendCheck(dice: Dice, kind: Kind, number: number): Promise<void> {
  const about = number - dice.below(20);
  const bytes = form(dice, kind, 'Check', () => checkRequest(dice, about));
  const { code, answer } = await unary(handlerOf(0, 'Check'), bytes);
  expect(code).toBe(status.OK);
  const { kind: of, status: http, metadata, body } = readAnswer(answer!);
  if (of === 'ok') {
    const { reservation, operation } = metadata;
    if (kind === 'valid') remember(made, { requestId: `request-${about}`, ours: metadata }, dice);
    if (reservation && operation) remember(known, { reservation, operation }, dice);
  } else if (of === 'denied') expect(STATUSES).toContain(http);
  else expect(body.error.message).toMatch(kind === 'valid' ? HELD : HELD_OR_UNREADABLE);
  saw(`Check ${kind} ${of === 'denied' ? http : of}`);
}

async function sendLog(dice: Dice, kind: Kind, number: number): Promise<void> {
  const about =
    made.length > 0 && dice.chance(0.95)
      ? dice.one(made)
      : { requestId: `none-${number}`, ours: {} };
  const call = new EventEmitter();
  const ended = new Promise((resolve) => handlerOf(1, 'StreamAccessLogs')(call, resolve));
  call.emit(
    'data',
    form(dice, kind, 'log', () => logMessage(dice, about)),
  );
  call.emit('end');
  expect(await ended).toBeNull();
  saw(`log ${kind}`);
}

async function sendRateLimit(dice: Dice, kind: Kind): Promise<void> {
  const bytes = form(dice, kind, 'rate limit', () => Buffer.from([0x0a, 0x01, 0x61]));
  expect((await unary(handlerOf(2, 'ShouldRateLimit'), bytes)).code).toBe(status.UNIMPLEMENTED);
  saw(`rate limit ${kind}`);
}

const CODES = [
  status.OK,
  status.INVALID_ARGUMENT,
  status.NOT_FOUND,
  status.RESOURCE_EXHAUSTED,
  status.FAILED_PRECONDITION,
];

async function sendLedger(dice: Dice, kind: Kind, number: number): Promise<void> {
  const { method, fields } = ledgerFields(dice, known, number);
  const definition = own[0][method]!;
  let request: unknown;
  try {
    request = definition.requestDeserialize(
      form(dice, kind, method, () => definition.requestSerialize(fields)),
    );
  } catch {
    // What grpc-js answers with INTERNAL and "Error deserializing request".
    expect(kind).not.toBe('valid');
    return saw(`${method} unreadable`);
  }
  const { code, details, answer } = await unary(own[1][method], request);
  expect(CODES, `${details} ${JSON.stringify(request)}`).toContain(code);
  if (answer) definition.responseSerialize(answer);
  saw(`${method} ${kind} ${status[code]}`);
}

async function sendOne(dice: Dice, number: number): Promise<void> {
  const kind = dice.one<Kind>(['valid', 'valid', 'mutated', 'mutated', 'random']);
  const service = dice.real();
  if (service < 0.45) await sendCheck(dice, kind, number);
  else if (service < 0.75) await sendLog(dice, kind, number);
  else if (service < 0.77) await sendRateLimit(dice, kind);
  else await sendLedger(dice, kind, number);
}

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc') as () => void;
function heapMb(): number {
  gc();
  return process.memoryUsage().heapUsed / 2 ** 20;
}

async function run(dice: Dice, from: number, to: number): Promise<void> {
  let next = from;
  const lane = async (): Promise<void> => {
    while (next < to) {
      const number = next++;
      // Sockets and timers get their turn, whatever messages need neither.
      await new Promise(setImmediate);
      try {
        await sendOne(dice, number);
      } catch (error) {
        throw new Error(`message ${number} of EARMARK_SEED=${SEED}`, { cause: error });
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, lane));
}

test(
  `${COUNT} messages: each has an answer that can be explained, and the books are right`,
  async () => {
    const dice = new Dice(SEED);
    // What is kept for good (code, pools, evidence that waits) is there after a part of them.
    await run(dice, 0, COUNT / 2);
    await settler.idle(30_000);
    const before = heapMb();
    await run(dice, COUNT / 2, COUNT);
    await settler.idle(30_000);
    const grown = heapMb() - before;
    expect(settler.waiting).toBeLessThanOrEqual(10_000);
    expect(grown, 'MB of heap').toBeLessThan(40);
    expect([...errors].filter(([message]) => !EXPECTED.test(message))).toEqual([]);

    const { tags } = await linesOf();
    let lines = 0;
    for (const tag of tags) {
      for (const dump of await ledger.dump(tag)) {
        lines++;
        expect(auditLine(dump, false).problems, `EARMARK_SEED=${SEED}`).toEqual([]);
      }
    }
    expect(lines).toBeGreaterThan(10);
    // Without each of these the run proves little.
    for (const what of ['ok', '400', '403', '409', '422', '429']) {
      expect(seen.get(`Check valid ${what}`) ?? 0, what).toBeGreaterThan(0);
    }
    for (const what of ['valid', 'mutated', 'random']) {
      expect(seen.get(`log ${what}`) ?? 0).toBeGreaterThan(100);
    }
    for (const what of ['OK', 'INVALID_ARGUMENT', 'NOT_FOUND', 'FAILED_PRECONDITION']) {
      const of = [...seen.keys()].filter((name) => name.endsWith(` valid ${what}`));
      expect(of, what).not.toEqual([]);
    }
    if (COUNT > 20_000) process.stdout.write(`${JSON.stringify([...seen].sort(), null, 1)}\n`);
  },
  60_000 + COUNT * 2,
);

async function linesOf(): Promise<{ tags: string[] }> {
  const keys = await ledger.redis.keys('earmark:{*}:l');
  return { tags: keys.map((key) => /\{(.*)\}/.exec(key)![1]!) };
}
