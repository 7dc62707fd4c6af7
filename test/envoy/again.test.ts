/** The recorded endings, brought about again in a real Envoy: the same entries, and each booked as it was. */
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { run } from '../../src/cli/run.js';
import { lineTag } from '../../src/core/ids.js';
import { auditLine } from '../../src/ledger/audit.js';
import { LedgerUnavailable } from '../../src/ledger/types.js';
import type { LogEntry } from '../../src/settle/types.js';
import { tell } from '../proof/scale.js';
import { type Gateway, type Json, startGateway } from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';
import { Stage } from './stage.js';
import { sendNonsense, sendOf, WAYS, type Way } from './ways.js';

interface Ending {
  readonly case: string;
  readonly client: string | null;
  readonly upstreamSawAttempts: number | null;
  readonly entry: {
    readonly common_properties: Json;
    readonly request?: Json;
    readonly response: Json;
  };
  readonly expect: {
    readonly state?: string;
    readonly actual?: number;
    readonly evidence?: string;
    readonly least?: number;
    readonly moves?: 'nothing';
  };
}

const FILTER = 'envoy.filters.http.ext_authz';
/** Envoy asks nobody about a request without a route; what its Check would have held is booked in endings.test.ts. */
const NO_CHECK = 'no-route(404)';
/** An entry that Envoy writes beside that of the request whose framing was wrong. */
const SECOND = 'the second entry after a framing error, without a request';

const policy = `
schema: admissionBudget.v1
generation: 7
unmatched: refuse
budgets:
  - route: large
    match: request.headers["x-large"] == "1"
    subject: request.headers["x-tenant"]
    burst: 1
  - route: chat
    subject: request.headers["x-tenant"]
    burst: 1000
    estimate: { fixed: 100 }
`;
const rollout = '{ schema: rollout.v1, generation: 7, default: { mode: enforce } }';

const recorded = readFileSync(new URL('access-log-endings.jsonl', import.meta.url), 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line) as Ending);
const endings = recorded.filter(({ case: name }) => name in WAYS);

let redis: TestRedis;
let gateway: Gateway;
let stage: Stage;
const heard: LogEntry[] = [];

const tenantOf = (ending: Ending): string =>
  `tenant-${String(recorded.indexOf(ending)).padStart(2, '0')}`;
const lossy = tenantOf(recorded.find((ending) => ending.case === 'authz-errresp')!);

beforeAll(async () => {
  redis = await startRedis();
  gateway = await startGateway({
    ...{ socket: redis.socket, folder: redis.folder, policy, rollout },
    heard: (entry) => heard.push(entry),
    // The answer to one tenant's admission gets lost on its way back, each time.
    between: (ledger) =>
      new Proxy(ledger, {
        get(target, name) {
          const value = Reflect.get(target, name, target);
          if (typeof value !== 'function') return value;
          if (name !== 'admit') return value.bind(target);
          return async (request: Parameters<typeof target.admit>[0]) => {
            const outcome = await target.admit(request);
            if (request.subject === lossy) throw new LedgerUnavailable('lost');
            return outcome;
          };
        },
      }),
  });
  stage = await Stage.open(redis.folder, gateway.address);
}, 60_000);
afterAll(async () => {
  await stage?.stop();
  await gateway?.stop();
  await redis?.stop();
});

/** What a gateway makes its decision from. */
function form(entry: LogEntry) {
  const { status, details, attempts, complete, upstreamBytesSent, metadata } = entry;
  const ours = Object.hasOwn(metadata, FILTER);
  return { status, details, attempts, complete, sent: upstreamBytesSent > 0, ours };
}

function recordedForm({ entry }: Ending): ReturnType<typeof form> {
  const { common_properties: common, response } = entry;
  const metadata = (common.metadata as { filter_metadata?: Json } | undefined)?.filter_metadata;
  return {
    status: Number(response.response_code ?? 0),
    details: String(response.response_code_details),
    attempts: Number(common.upstream_request_attempt_count ?? 0),
    complete: common.time_to_last_upstream_rx_byte !== undefined,
    sent: Number(common.upstream_wire_bytes_sent ?? 0) > 0,
    ours: metadata !== undefined && FILTER in metadata,
  };
}

/** Sends the request on its way; the status that its client saw, and the entry that came of it. */
async function happen(ending: Ending, way: Way): Promise<{ saw: number; entry: LogEntry }> {
  const tenant = tenantOf(ending);
  const path = `${way.path}?case=${tenant}`;
  const script = way.script ?? 'complete';
  const ours = { 'x-tenant': tenant, 'x-script': script, 'content-type': 'application/json' };
  const saw = await sendOf(way)(stage, { path, tenant, headers: { ...ours, ...way.headers } });
  const found = () => heard.find((entry) => entry.path === path);
  await until(() => found() !== undefined, `the entry of ${ending.case}`);
  return { saw, entry: found()! };
}

async function lineOf(tenant: string, route = 'chat') {
  const [line] = await gateway.ledger.dump(lineTag(tenant, route));
  return line;
}

const SIXTEEN = 16;
const groups = Array.from({ length: SIXTEEN }, (_, group) =>
  endings.filter((_ending, index) => index % SIXTEEN === group),
);

describe.concurrent.each(groups.map((group, index) => [index, group] as const))(
  '%i',
  (_i, group) => {
    for (const ending of group) {
      test(`${ending.case}: ${JSON.stringify(ending.expect)}`, async ({ expect }) => {
        const tenant = tenantOf(ending);
        const { saw, entry } = await happen(ending, WAYS[ending.case]!);
        expect(form(entry)).toEqual(recordedForm(ending));
        expect(saw).toBe(Number(/ (\d+)/.exec(ending.client ?? '')?.[1] ?? 0));
        const attempts = stage.attempts.get(tenant) ?? 0;
        if (ending.upstreamSawAttempts !== null) expect(attempts).toBe(ending.upstreamSawAttempts);

        if (ending.expect.moves === 'nothing' || ending.case === NO_CHECK) {
          await gateway.settler.idle();
          expect(await lineOf(tenant)).toBeUndefined();
          const refused = await lineOf(tenant, 'large');
          if (refused === undefined) return;
          expect(refused).toMatchObject({ seq: 1, receipts: [] });
          expect(auditLine(refused, false).problems).toEqual([]);
          return;
        }
        const { state, actual, evidence = '', least } = ending.expect;
        await until(async () => (await lineOf(tenant))?.receipts[0]?.state === state, state);
        const line = (await lineOf(tenant))!;
        expect(line.receipts).toEqual([
          expect.objectContaining({
            ...{ state, evidence, units: [100] },
            ...(actual === undefined ? {} : { actual: [actual] }),
            ...(least === undefined ? {} : { least: [least] }),
          }),
        ]);
        const available = state === 'SETTLED' ? 1000 - actual! : 900;
        expect(line.pages[0]!.books[0]!.counters).toMatchObject({ available, spent: actual ?? 0 });
        expect(auditLine(line, false).problems).toEqual([]);
      });
    }
  },
);

test('bytes that are no HTTP leave an entry without a request: it moves nothing', async () => {
  const second = recorded.find((ending) => ending.case === SECOND)!;
  await sendNonsense(stage);
  await until(() => heard.some((entry) => entry.path === ''), 'it comes');
  expect(form(heard.find((entry) => entry.path === '')!)).toEqual(recordedForm(second));
});

test('all of them, and the whole ledger adds up', async () => {
  expect(endings.length).toBe(Object.keys(WAYS).length);
  expect(recorded.length - endings.length).toBe(1);
  const said: string[] = [];
  const streams = { out: (text: string) => void said.push(text), err: () => {} };
  await run(['audit', '--json'], { EARMARK_LEDGER_URL: `unix:${redis.socket}` }, streams);
  expect(JSON.parse(said.join(''))).toMatchObject({ ok: true, problems: [] });
  tell('endings', { recorded: recorded.length, again: endings.length + 1 });
});
