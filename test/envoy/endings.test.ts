/** Access-log entries of a real Envoy, one for each kind of end, through the gRPC sink into a real ledger. */
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { LedgerUnavailable } from '../../src/ledger/types.js';
import { type Answer, type Gateway, type Json, startGateway } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';

interface Ending {
  readonly case: string;
  readonly entry: { readonly common_properties: Json; readonly request: Json };
  readonly expect: {
    readonly state?: string;
    readonly actual?: number;
    readonly evidence?: string;
    readonly least?: number;
    readonly moves?: 'nothing';
  };
}

const FILTER = 'envoy.filters.http.ext_authz';

const policy = `
schema: admissionBudget.v1
generation: 7
unmatched: refuse
budgets:
  - route: chat
    subject: request.headers["x-tenant"]
    burst: 1000
    estimate: { fixed: 100 }
`;
const rollout = '{ schema: rollout.v1, generation: 7, default: { mode: enforce } }';

const endings = readFileSync(new URL('access-log-endings.jsonl', import.meta.url), 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line) as Ending);

let redis: TestRedis;
let gateway: Gateway;
/** Answers to admissions get lost on their way back. */
let lossy = false;

beforeAll(async () => {
  redis = await startRedis();
  gateway = await startGateway({
    ...{ socket: redis.socket, folder: redis.folder, policy, rollout },
    between: (ledger) =>
      new Proxy(ledger, {
        get(target, name) {
          if (name === 'admit' && lossy) {
            return async (request: never) => {
              await target.admit(request);
              throw new LedgerUnavailable('lost');
            };
          }
          const value = Reflect.get(target, name, target);
          return typeof value === 'function' ? value.bind(target) : value;
        },
      }),
  });
});

afterAll(async () => {
  await gateway.stop();
  await redis.stop();
});

/** The metadata of the Check in place of what the entry was recorded with. */
function withMetadata(ending: Ending, answer: Answer): Json {
  const { common_properties: common } = ending.entry;
  const filters = (common.metadata as { filter_metadata: Record<string, Json> } | undefined)
    ?.filter_metadata;
  if (filters?.[FILTER] === undefined) return ending.entry;
  const { ext_authz_duration } = filters[FILTER] as Json;
  // A refusal of ours names no reservation.
  const { reservation, ...rest } = answer.metadata;
  const named = ending.case.startsWith('authz-deny') ? {} : { reservation };
  const ours = { ...rest, ...named, ext_authz_duration: ext_authz_duration ?? 0 };
  const metadata = { filter_metadata: { ...filters, [FILTER]: ours } };
  return { ...ending.entry, common_properties: { ...common, metadata } };
}

async function checkOf(ending: Ending, tenant: string): Promise<Answer> {
  const { request_method, original_path, path, request_id } = ending.entry.request;
  const headers = { 'x-tenant': tenant, 'x-request-id': request_id ?? 'none' };
  const http = { method: request_method ?? 'GET', path: original_path ?? path ?? '/', headers };
  const request = { time: ending.entry.common_properties.start_time, http };
  return gateway.check({}, { attributes: { request }, deadlineMs: lossy ? 0 : 5000 });
}

describe.each(endings.map((ending, index) => [index, ending] as const))('%i', (index, ending) => {
  test(`${ending.case}: ${JSON.stringify(ending.expect)}`, async () => {
    lossy = ending.case === 'authz-errresp';
    const answer = await checkOf(ending, `tenant-${index}`);
    lossy = false;
    expect(answer.kind).toBe(ending.case === 'authz-errresp' ? 'error' : 'ok');
    const reservation = String(answer.metadata.reservation);
    const before = await gateway.ledger.get(reservation);
    expect(before?.receipt).toMatchObject({ state: 'STARTED', units: [100] });

    const entry = withMetadata(ending, answer);
    await gateway.log(entry);
    const after = await gateway.ledger.get(reservation);
    if (ending.expect.moves === 'nothing') {
      expect(after).toEqual(before && { ...before, line: after!.line });
      expect(after!.line.seq).toBe(before!.line.seq);
      return;
    }
    const { state, actual, evidence = '', least } = ending.expect;
    expect(after!.receipt).toMatchObject({
      state,
      actual: actual === undefined ? undefined : [actual],
      evidence,
      least: least === undefined ? undefined : [least],
    });
    const [limit] = after!.line.limits;
    const left = state === 'SETTLED' ? 1000 - actual! : 900;
    expect(limit!.counters).toMatchObject({ available: left, spent: actual ?? 0 });

    // The same entry again moves nothing.
    await gateway.log(entry);
    const again = await gateway.ledger.get(reservation);
    expect(again!.receipt).toEqual(after!.receipt);
    expect(again!.line.seq).toBe(after!.line.seq);
  });
});

test('there are 49 of them, of every row of the table', () => {
  const kinds = endings.map(({ expect: { moves, evidence, state } }) => moves ?? evidence ?? state);
  expect(endings.length).toBe(49);
  expect(new Set(kinds)).toEqual(new Set(['reported', 'USAGE_UNKNOWN', 'neverSent', 'nothing']));
});
