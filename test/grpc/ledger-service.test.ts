/** earmark.v1.Ledger through its port, on a real ledger: every kind of answer. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ServiceError } from '@grpc/grpc-js';
import protobuf from 'protobufjs';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { loadConfig } from '../../src/config/load.js';
import { openRedis } from '../../src/ledger/connect.js';
import { Documents } from '../../src/ledger/documents.js';
import { Ledger } from '../../src/ledger/ledger.js';
import { parsePolicy } from '../../src/policy/parse.js';
import { parseRollout } from '../../src/policy/rollout.js';
import { Earmark } from '../../src/serve.js';
import { ledgers } from '../support/earmark.js';
import { type Kept, keep } from '../support/quiet.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const POLICY = `schema: admissionBudget.v1
generation: GENERATION
unmatched: refuse
plans: { standard: 1, half: 0.5 }
budgets:
  - { route: chat, subject: source.principal, burst: 1000 }
  - { route: wild, subject: source.principal, burst: 1000, maxOverdraft: 500, freezeFor: 1h }
  - { route: refilled, subject: source.principal, burst: 1000, refill: { units: 100, every: 1s } }
  - route: both
    subject: source.principal
    cost: { input: 1, output: 1 }
    limits:
      - { name: calls, burst: 3, cost: { call: 1 } }
      - { name: tokens, burst: 1000 }
  - { route: seen, subject: source.principal, burst: 1000 }
  - { route: off, subject: source.principal, burst: 1000 }
  - { route: shut, subject: source.principal, burst: 1000 }
  - { route: planned, subject: source.principal, burst: 1000, plan: 'request.headers["x-plan"]' }
`;
const ROLLOUT = `schema: rollout.v1
generation: 1
default: { mode: enforce }
routes:
  seen: { mode: shadow }
  off: { mode: "off" }
  shut: { mode: refuseAll }
`;

let folder = '';
let server: TestRedis;
let earmark: Earmark;
let kept: Kept;
let ask: ReturnType<typeof ledgers>;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'earmark-api-'));
  server = await startRedis();
  writeFileSync(join(folder, 'policy.yaml'), POLICY.replace('GENERATION', '1'));
  writeFileSync(join(folder, 'rollout.yaml'), ROLLOUT);
  kept = keep();
  const config = loadConfig(undefined, {
    EARMARK_LEDGER_URL: `unix:${server.socket}`,
    EARMARK_LISTEN_ENVOY: '127.0.0.1:0',
    EARMARK_LISTEN_API: '127.0.0.1:0',
    EARMARK_LISTEN_ADMIN: '127.0.0.1:0',
    EARMARK_POLICY: join(folder, 'policy.yaml'),
    EARMARK_ROLLOUT: join(folder, 'rollout.yaml'),
    EARMARK_LEDGER_TIMEOUT: '2s',
  });
  earmark = await Earmark.start(config, kept);
  const { api } = kept.fields.at(-1) as { api: string };
  ask = ledgers(api);
  await until(() => kept.lines.includes('info policy in force'));
});

afterAll(async () => {
  ask.close();
  await earmark.stop();
  await server.stop();
  rmSync(folder, { recursive: true });
});

const DIGEST = `sha256:${'ab'.repeat(32)}`;
let keys = 0;

function reserve(fields: object) {
  keys++;
  return ask.call('ReserveCapacity')({
    subject: `s${keys}`,
    route: 'chat',
    idempotencyKey: `k${keys}`,
    requestDigest: DIGEST,
    units: 600,
    ...fields,
  }) as Promise<Record<string, unknown>>;
}

const call = (method: string, fields: object) =>
  ask.call(method)(fields) as Promise<Record<string, unknown>>;

interface Refusal {
  readonly code: number;
  readonly message: string;
  readonly reason?: string;
  readonly domain?: string;
  readonly metadata?: Record<string, string>;
  readonly retryMs?: number;
  readonly field?: string;
}

// Written by the numbers of google/rpc/{status,error_details}.proto, not by ours.
const RPC = protobuf.parse(`syntax = "proto3"; package google.rpc;
message Any { string type_url = 1; bytes value = 2; }
message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
message Duration { int64 seconds = 1; int32 nanos = 2; }
message RetryInfo { Duration retry_delay = 1; }
message FieldViolation { string field = 1; string description = 2; }
message BadRequest { repeated FieldViolation field_violations = 1; }
`).root;

async function refusal(answer: Promise<unknown>): Promise<Refusal> {
  const error = await answer.then(
    (message) => {
      throw new Error(`was answered: ${JSON.stringify(message)}`);
    },
    (failed: ServiceError) => failed,
  );
  const [raw] = error.metadata.get('grpc-status-details-bin');
  let found: Refusal = { code: error.code, message: error.details };
  if (raw === undefined) return found;
  // biome-ignore lint/suspicious/noExplicitAny: messages of a schema parsed at run time
  const decode = (type: string, bytes: Uint8Array): any =>
    RPC.lookupType(`google.rpc.${type}`).decode(bytes);
  const status = decode('Status', raw as Buffer);
  expect([status.code, status.message]).toEqual([error.code, error.details]);
  for (const { type_url: url, typeUrl, value } of status.details) {
    const type = String(url ?? typeUrl).replace('type.googleapis.com/google.rpc.', '');
    const detail = decode(type, value);
    if (type === 'ErrorInfo') found = { ...found, ...detail };
    else if (type === 'RetryInfo') {
      const { seconds, nanos } = detail.retryDelay;
      found = { ...found, retryMs: Number(seconds) * 1000 + nanos / 1e6 };
    } else found = { ...found, field: detail.fieldViolations[0].field };
  }
  return found;
}

const [INVALID, NOT_FOUND, EXHAUSTED, PRECONDITION, UNAVAILABLE] = [3, 5, 8, 9, 14];

it('reserves, starts, settles and shows; a repeat gets the same', async () => {
  const held = await reserve({ subject: 'life', idempotencyKey: 'k' });
  const { reservation } = held;
  expect(held).toMatchObject({
    reservation: expect.stringMatching(/^rl-/),
    subject: 'life',
    route: 'chat',
    policyGeneration: '1',
    accountingEpoch: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\dZ$/),
    requestDigest: DIGEST,
    reservedUnits: '600',
    operation: '',
    state: 'RESERVED',
    seq: '1',
    attempt: 1,
    lineAvailable: '400',
    lineDebt: '0',
  });
  expect(held.actualUnits).toBeUndefined();
  const { seconds, nanos } = held.expiresAt as { seconds: string; nanos: number };
  const wait = Number(seconds) * 1000 + nanos / 1e6 - Date.now();
  expect(wait).toBeGreaterThan(20_000);
  expect(wait).toBeLessThan(31_000);

  const again = await reserve({ subject: 'life', idempotencyKey: 'k' });
  expect(again).toEqual(held);
  const started = await call('StartOperation', { reservation, operation: 'op' });
  expect(started).toMatchObject({ state: 'STARTED', operation: 'op', seq: '2' });
  const use = { reservation, operation: 'op', actualUnits: 200 };
  const settled = await call('SettleUsage', use);
  expect(settled).toMatchObject({
    state: 'SETTLED',
    actualUnits: '200',
    evidence: 'reported',
    lineAvailable: '800',
    seq: '3',
  });
  expect(await call('SettleUsage', use)).toEqual(settled);
  expect(await call('GetReservation', { reservation })).toEqual(settled);
});

it('releases what was not started, and only that', async () => {
  const { reservation } = await reserve({});
  const released = await call('ReleaseReservation', { reservation });
  expect(released).toMatchObject({ state: 'RELEASED', lineAvailable: '1000' });
  const late = await refusal(call('StartOperation', { reservation, operation: 'op' }));
  expect(late).toMatchObject({ code: PRECONDITION, reason: 'STATE', domain: 'earmark' });
});

it('refuses for want of capacity, with the wait', async () => {
  const subject = 'full';
  await reserve({ route: 'refilled', subject, units: 1000 });
  const found = await refusal(reserve({ route: 'refilled', subject, units: 500 }));
  expect(found).toMatchObject({
    code: EXHAUSTED,
    reason: 'CAPACITY',
    domain: 'earmark',
    metadata: { generation: '1', limitedBy: 'capacity' },
  });
  expect(found.retryMs).toBeGreaterThan(4000);
  expect(found.retryMs).toBeLessThanOrEqual(5000);
});

it('names the reason in capitals, and no wait where none helps', async () => {
  const found = await refusal(reserve({ units: 1001 }));
  expect(found).toMatchObject({ code: EXHAUSTED, reason: 'MAX_RESERVATION' });
  expect(found.retryMs).toBeUndefined();
  const closed = await refusal(reserve({ route: 'shut' }));
  expect(closed).toMatchObject({ code: EXHAUSTED, reason: 'CLOSED' });
});

it('books a use above everything, and freezes the route at a breach', async () => {
  const route = 'wild';
  const { reservation } = await reserve({ route });
  await call('StartOperation', { reservation, operation: 'op' });
  const settled = await call('SettleUsage', { reservation, operation: 'op', actualUnits: 2000 });
  expect(settled).toMatchObject({
    state: 'SETTLED_WITH_DEBT',
    breach: true,
    lineAvailable: '0',
    lineDebt: '1000',
  });
  const isFrozen = async () => (await refusal(reserve({ route, units: 1 }))).reason === 'FROZEN';
  await until(() => isFrozen().catch(() => false), 'another line of the route is frozen');
});

it('holds the price of a call in a limit that has a cost of its own', async () => {
  const subject = 'both';
  for (let calls = 1; calls <= 3; calls++) {
    const held = await reserve({ route: 'both', subject, units: 10 });
    expect(held).toMatchObject({ reservedUnits: '10', state: 'RESERVED' });
  }
  const found = await refusal(reserve({ route: 'both', subject, units: 10 }));
  expect(found).toMatchObject({
    reason: 'CAPACITY',
    metadata: { generation: '1', limitedBy: 'capacity', limit: 'calls' },
  });
});

it('never refuses in shadow: without a reservation the state is REQUESTED', async () => {
  const subject = 'seen';
  const held = await reserve({ route: 'seen', subject, units: 1000 });
  expect(held).toMatchObject({ state: 'RESERVED', reservedUnits: '1000' });
  const beyond = await reserve({ route: 'seen', subject, units: 1 });
  expect(beyond).toMatchObject({
    state: 'REQUESTED',
    reservation: '',
    reservedUnits: '0',
    subject,
  });
});

it('says that a route is off, and that a plan needs a request', async () => {
  const off = await refusal(reserve({ route: 'off' }));
  expect(off).toMatchObject({ code: PRECONDITION, reason: 'OFF' });
  const planned = await refusal(reserve({ route: 'planned' }));
  expect(planned).toMatchObject({ code: PRECONDITION, reason: 'POLICY' });
});

it('refuses another digest, another operation, another amount', async () => {
  const subject = 'twice';
  const { reservation } = await reserve({ subject, idempotencyKey: 'k' });
  const other = `sha256:${'cd'.repeat(32)}`;
  const digest = reserve({ subject, idempotencyKey: 'k', requestDigest: other });
  expect(await refusal(digest)).toMatchObject({ code: PRECONDITION, reason: 'DIGEST' });
  await call('StartOperation', { reservation, operation: 'one' });
  const race = call('StartOperation', { reservation, operation: 'two' });
  expect(await refusal(race)).toMatchObject({
    ...{ code: PRECONDITION, reason: 'BOUND' },
    message: expect.stringContaining('another operation has started it: only that one goes on'),
  });
  await call('SettleUsage', { reservation, operation: 'one', actualUnits: 1 });
  const conflict = call('SettleUsage', { reservation, operation: 'one', actualUnits: 2 });
  expect(await refusal(conflict)).toMatchObject({ code: PRECONDITION, reason: 'CONFLICT' });
  const attempt = reserve({ subject, idempotencyKey: 'k', attempt: 2 });
  expect(await refusal(attempt)).toMatchObject({ code: PRECONDITION, reason: 'ATTEMPT' });
});

it('knows no receipt that is not kept', async () => {
  const reservation = `rl-${'A'.repeat(22)}-${'B'.repeat(22)}`;
  for (const [method, fields] of [
    ['GetReservation', { reservation }],
    ['ReleaseReservation', { reservation }],
    ['StartOperation', { reservation, operation: 'op' }],
    ['SettleUsage', { reservation, operation: 'op', actualUnits: 1 }],
  ] as const) {
    expect(await refusal(call(method, fields))).toMatchObject({ code: NOT_FOUND });
  }
});

const MAX = '9007199254740991';
it.each([
  ['subject', { subject: '' }],
  ['subject', { subject: '  ' }],
  ['subject', { subject: 'x'.repeat(1025) }],
  ['route', { route: '' }],
  ['route', { route: 'none' }],
  ['idempotency_key', { idempotencyKey: '' }],
  ['idempotency_key', { idempotencyKey: 'x'.repeat(65_536) }],
  ['request_digest', { requestDigest: 'ab'.repeat(32) }],
  ['request_digest', { requestDigest: `sha256:${'ab'.repeat(31)}` }],
  ['units', { units: -1 }],
  ['units', { units: '9007199254740992' }],
  ['units', { units: '9223372036854775807' }],
  ['policy_generation', { policyGeneration: -1 }],
  ['attempt', { attempt: -1 }],
  ['attempt', { attempt: 2_000_000_000 }],
])('names %s in %o', async (field, fields) => {
  const found = await refusal(reserve(fields));
  expect(found).toMatchObject({ code: INVALID, field });
  expect(found.message.length).toBeLessThan(200);
});

it.each([
  ['StartOperation', 'reservation', { reservation: 'rl-x', operation: 'op' }],
  ['StartOperation', 'operation', { reservation: `rl-${'A'.repeat(22)}-${'B'.repeat(22)}` }],
  ['GetReservation', 'reservation', {}],
  ['ReleaseReservation', 'reservation', { reservation: 'x'.repeat(100_000) }],
  [
    'SettleUsage',
    'actual_units',
    { reservation: `rl-${'A'.repeat(22)}-${'B'.repeat(22)}`, operation: 'op', actualUnits: -1 },
  ],
])('%s names %s', async (method, field, fields) => {
  expect(await refusal(call(method, fields))).toMatchObject({ code: INVALID, field });
});

it('takes amounts up to 2^53 - 1 exactly, and no sum beyond', async () => {
  const { reservation } = await reserve({});
  await call('StartOperation', { reservation, operation: 'op' });
  const use = { reservation, operation: 'op', actualUnits: MAX };
  expect(
    await refusal(call('SettleUsage', { ...use, actualUnits: '9007199254740992' })),
  ).toMatchObject({ code: INVALID, field: 'actual_units' });
  const settled = await call('SettleUsage', use);
  expect(settled.actualUnits).toBe(MAX);
  const beyond = call('SettleUsage', { ...use, operation: 'other', actualUnits: MAX });
  expect(await refusal(beyond)).toMatchObject({ code: PRECONDITION, reason: 'OVERFLOW' });
});

it('asks under the generation in force or an older one, never under a newer', async () => {
  expect(await reserve({ policyGeneration: 1 })).toMatchObject({ policyGeneration: '1' });
  const newer = await refusal(reserve({ policyGeneration: 2 }));
  expect(newer).toMatchObject({ code: PRECONDITION, reason: 'GENERATION' });
  expect(newer.message).toContain('policy_generation 2 is not in force: 1 is');
});

it('asks again under the policy that a moved line is already under', async () => {
  const redis = openRedis({ path: server.socket }, keep(), true);
  const documents = new Documents(redis, 'earmark:');
  const parse = (generation: string) =>
    parsePolicy(POLICY.replace('GENERATION', generation), 'p').policy!;
  const ledger = new Ledger({
    redis: { path: server.socket },
    prefix: 'earmark:',
    timeoutMs: 2000,
  });
  await new Promise((resolve) => ledger.redis.once('ready', resolve));
  try {
    // Another gateway was quicker: the line is under a generation that this one has not read yet.
    const policy = parse('2');
    await documents.publish(policy);
    const { content, generation, budgets } = policy;
    const { terms } = budgets.find(({ route }) => route === 'chat')!;
    const asked = {
      subject: 'moved',
      route: 'chat',
      key: 'k',
      attempt: 1,
      digest: 'x'.repeat(43),
      units: [1],
      budget: { generation, content, terms, factor: { numerator: 1, denominator: 1 } },
      shadow: false,
      closed: false,
      routeFrozenUntil: 0,
      again: false,
    };
    expect((await ledger.reserve(asked)).kind).toBe('moved');
    const stale = await refusal(reserve({ subject: 'moved', units: 1 }));
    expect(stale).toMatchObject({ code: PRECONDITION, reason: 'STALE' });

    // In force by now, and read at once instead of at the next look.
    const rollout = ROLLOUT.replace('generation: 1', 'generation: 2');
    await documents.applyRollout(parseRollout(rollout, 'r').rollout!);
    const held = await reserve({ subject: 'moved', units: 1 });
    expect(held).toMatchObject({ state: 'RESERVED', policyGeneration: '2' });
    // An older one: on lines that have not moved.
    const older = await reserve({ policyGeneration: 1 });
    expect(older).toMatchObject({ state: 'RESERVED', policyGeneration: '1' });
    const back = await refusal(reserve({ subject: 'moved', policyGeneration: 1 }));
    expect(back).toMatchObject({ code: PRECONDITION, reason: 'STALE' });
  } finally {
    await ledger.stop();
    redis.disconnect();
  }
});

it('says UNAVAILABLE while the ledger does not answer', async () => {
  server.process.kill('SIGSTOP');
  try {
    const away = await refusal(reserve({}));
    expect(away.code).toBe(UNAVAILABLE);
  } finally {
    server.process.kill('SIGCONT');
  }
  await until(() => reserve({}).then(() => true));
});
