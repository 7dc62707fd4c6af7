/**
 * Three earmarks as users run them, on one ledger, each through a network that fails; many callers; one earmark stands
 * still for a while and is killed. What they let through is what the ledger has, and it adds up.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { run } from '../../src/cli/run.js';
import { FAULTS, FaultProxy } from '../fault/proxy.js';
import {
  accessLogs,
  checks,
  configure,
  logMessage,
  question,
  type Running,
  startEarmark,
  statusOf,
} from '../support/earmark.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';
import { Random } from './random.js';
import { scale, tell } from './scale.js';

const SEED = Number(process.env.EARMARK_PROOF_SEED ?? Date.now() % 1_000_000);
const CALLERS = scale({ short: 60, ci: 200, full: 400 });
const ROUNDS = scale({ short: 3, ci: 10, full: 30 });
const TENANTS = 4;
const BURST = 1_000_000_000;

const POLICY = `schema: admissionBudget.v1
generation: 1
unmatched: refuse
budgets:
  - route: chat
    subject: request.headers["x-tenant"]
    burst: ${BURST}
    maxReservation: 1000
    usageDeadline: 1h
`;
const ROLLOUT = '{ schema: rollout.v1, generation: 1, default: { mode: enforce } }';

interface Sidecar {
  readonly name: string;
  readonly proxy: FaultProxy;
  running: Running;
  check(question: object): Promise<Record<string, never>>;
  log(message: object): void;
  close(): void;
}

const folder = mkdtempSync(join(tmpdir(), 'earmark-sidecars-'));
const sidecars: Sidecar[] = [];
let redis: TestRedis;

async function startSidecar(name: string, proxy: FaultProxy): Promise<Sidecar> {
  const ledger = { url: `unix:${proxy.path}` };
  const settings = { ledger, policy: './policy.yaml', rollout: './rollout.yaml' };
  const running = await startEarmark(configure(folder, settings, `${name}.yaml`));
  const asking = checks(running.envoy);
  const telling = accessLogs(running.envoy);
  const call = asking.call('Check');
  const stream = telling.stream('StreamAccessLogs');
  return {
    ...{ name, proxy, running },
    check: (request) => call(request, { deadline: Date.now() + 5000 }),
    log: (message) => stream.write(message),
    close() {
      asking.close();
      telling.close();
    },
  };
}

async function isReady({ running }: Sidecar): Promise<boolean> {
  const answer = await fetch(`http://${running.admin}/readyz`).catch(() => undefined);
  return answer?.status === 200;
}

beforeAll(async () => {
  writeFileSync(join(folder, 'policy.yaml'), POLICY);
  writeFileSync(join(folder, 'rollout.yaml'), ROLLOUT);
  redis = await startRedis({ args: ['--appendonly', 'yes'] });
  for (const name of ['one', 'two', 'three']) {
    const proxy = await FaultProxy.listen(join(folder, `${name}.sock`), redis.socket);
    const sidecar = await startSidecar(name, proxy);
    sidecars.push(sidecar);
    await until(() => isReady(sidecar), `${name} is ready`, 20_000);
  }
}, 90_000);
afterAll(async () => {
  for (const { running, close, proxy } of sidecars) {
    close();
    running.process.kill('SIGCONT');
    running.process.kill('SIGKILL');
    await running.ended;
    await proxy.stop();
  }
  await redis?.stop();
  rmSync(folder, { recursive: true });
});

/** By tenant: uses of requests that were let through and whose log entry was sent. */
const used = new Map<string, number>();
let passed = 0;
let twice = 0;

async function live(caller: number): Promise<void> {
  const random = new Random(SEED, caller + 1);
  for (let round = 0; round < ROUNDS; round++) {
    const tenant = `tenant-${random.below(TENANTS)}`;
    const shared = random.chance(0.2);
    const key = shared ? `shared-${round}-${random.below(5)}` : `${caller}-${round}`;
    const request = question(tenant, `request-${caller}-${round}`, { 'idempotency-key': key });
    const answer = await random
      .of(sidecars)
      .check(request)
      .catch(() => undefined);
    if (answer === undefined || statusOf(answer) !== 0) continue;
    passed += 1;
    if (winners.has(`${tenant} ${key}`)) twice += 1;
    winners.add(`${tenant} ${key}`);
    const [input, output] = [random.between(1, 50), random.between(1, 150)];
    used.set(tenant, (used.get(tenant) ?? 0) + input + output);
    const entry = logMessage(answer, input, output);
    // Envoy's entry reaches any earmark, or two of them.
    alive().log(entry);
    if (random.chance(0.2)) alive().log(entry);
  }
}
const winners = new Set<string>();

/** Not the third, which is stopped and killed: entries in its sockets would be lost, as they are in life. */
function alive(): Sidecar {
  return sidecars[passed % 2]!;
}

test(`three earmarks, ${CALLERS} callers, faults, a kill and a standstill (seed ${SEED})`, async () => {
  const random = new Random(SEED);
  const faults = setInterval(() => {
    random
      .of(sidecars)
      .proxy.arm(random.of(FAULTS.filter((f) => f !== 'hole')), random.between(1, 4));
  }, 60);
  const third = sidecars[2]!;
  const callers = Array.from({ length: CALLERS }, (_, caller) => live(caller));
  await until(() => passed > CALLERS / 3, 'callers pass', 60_000);
  third.running.process.kill('SIGSTOP');
  await new Promise((resolve) => setTimeout(resolve, 300));
  third.running.process.kill('SIGCONT');
  await until(() => passed > CALLERS / 2, 'callers pass', 60_000);
  third.running.process.kill('SIGKILL');
  await third.running.ended;
  third.close();
  sidecars[2] = await startSidecar('three', third.proxy);
  await Promise.all(callers);
  clearInterval(faults);
  for (const { proxy } of sidecars) proxy.disarm();

  const total = [...used.values()].reduce((sum, units) => sum + units, 0);
  let report = {
    ok: false,
    problems: [] as object[],
    lines: [] as { books: { spent: number }[] }[],
  };
  const spent = () =>
    report.lines.flatMap(({ books }) => books).reduce((sum, b) => sum + b.spent, 0);
  await until(
    async () => {
      report = JSON.parse(await audit());
      return spent() >= total;
    },
    'everything is booked',
    30_000,
  );
  expect(report.problems).toEqual([]);
  expect(report.ok).toBe(true);
  expect(spent()).toBe(total);
  expect(twice).toBe(0);
  tell('sidecars', { callers: CALLERS, passed, spent: total, twice, seed: SEED });
}, 600_000);

async function audit(): Promise<string> {
  const said: string[] = [];
  const streams = { out: (text: string) => void said.push(text), err: () => {} };
  await run(['audit', '--json'], { EARMARK_LEDGER_URL: `unix:${redis.socket}` }, streams);
  return said.join('');
}
