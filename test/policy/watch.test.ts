import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { Documents } from '../../src/ledger/documents.js';
import { parsePolicy } from '../../src/policy/parse.js';
import { parseRollout } from '../../src/policy/rollout.js';
import { DocumentInvalid, PolicyWatch } from '../../src/policy/watch.js';
import { type Kept, keep } from '../support/quiet.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

let server: TestRedis;
let folder: string;
let redis: Redis;
let documents: Documents;
let kept: Kept;
const watches: PolicyWatch[] = [];

beforeAll(async () => {
  server = await startRedis();
  folder = mkdtempSync(join(tmpdir(), 'earmark-watch-'));
});
afterAll(async () => {
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
});
beforeEach(async () => {
  redis = new Redis({ path: server.socket, replyMapping: 'legacy' });
  await redis.flushall();
  documents = new Documents(redis, 'earmark:');
  kept = keep();
});
afterEach(() => {
  for (const watch of watches.splice(0)) watch.stop();
  redis.disconnect();
});

const policyText = (generation: number, burst = 1000) =>
  `schema: admissionBudget.v1\ngeneration: ${generation}\nunmatched: refuse\nbudgets:\n  - { route: chat, subject: request.host, burst: ${burst} }\n`;
const rolloutText = (generation: number, mode = 'enforce') =>
  `schema: rollout.v1\ngeneration: ${generation}\ndefault: { mode: ${mode} }\n`;
const publish = (generation: number, burst?: number) =>
  documents.publish(parsePolicy(policyText(generation, burst), '').policy!);
const apply = (generation: number, mode?: string) =>
  documents.applyRollout(parseRollout(rolloutText(generation, mode), '').rollout!);

function file(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

function watching(
  files: { policyFile?: string; rolloutFile?: string } = {},
  of = documents,
): PolicyWatch {
  const watch = new PolicyWatch({ documents: of, log: kept, meter: kept, ...files });
  watches.push(watch);
  return watch;
}

describe('what is in force', () => {
  test('nothing, while nothing is published', async () => {
    const watch = watching();
    await watch.start();
    expect(watch.view()).toMatchObject({ policy: undefined, rollout: undefined });
    expect(watch.problem()).toBeUndefined();
  });

  test('the newest published, without a rollout', async () => {
    await publish(1);
    await publish(2, 2000);
    const watch = watching();
    await watch.start();
    expect(watch.view().policy!.budgets[0]!.terms.limits[0]!.burst).toBe(2000);
    expect(watch.view().rollout).toBeUndefined();
  });

  test("the rollout's generation, though a newer one is published", async () => {
    await publish(1);
    await apply(1);
    await publish(2);
    const watch = watching();
    await watch.start();
    expect(watch.view().policy!.generation).toBe(1);
    expect(watch.view().rollout!.default.mode).toBe('enforce');
  });

  test('each change is seen within a second; a view that was taken does not change', async () => {
    await publish(1);
    const watch = watching();
    await watch.start();
    const taken = watch.view();
    await publish(2);
    await until(() => watch.view().policy!.generation === 2, 'the change', 1000);
    await apply(2, 'off');
    await until(() => watch.view().rollout?.default.mode === 'off', 'the change', 1000);
    await documents.freezeRoute('chat', -1);
    await until(() => watch.view().frozenUntil('chat') === -1, 'the change', 1000);
    expect(watch.view().frozenUntil('other')).toBe(0);
    await documents.unfreezeRoute('chat');
    await until(() => watch.view().frozenUntil('chat') === 0, 'the change', 1000);
    expect(taken.policy!.generation).toBe(1);
    expect(Object.isFrozen(taken)).toBe(true);
  });

  test('a refresh sees what was published before it was asked for', async () => {
    const watch = watching();
    await watch.start();
    const busy = watch.refresh();
    await publish(1);
    await Promise.all([busy, watch.refresh()]);
    expect(watch.view().policy!.generation).toBe(1);
  });

  test('other generations on demand, whatever their age', async () => {
    await publish(1);
    await publish(2);
    const watch = watching();
    await watch.start();
    expect(watch.view().generation(1)).toBeUndefined();
    await until(() => watch.view().generation(1)?.generation === 1, 'the change', 1000);
    expect((await watch.load(1))!.generation).toBe(1);
    expect(await watch.load(99)).toBeUndefined();
    expect(await watch.load(1)).toBe(watch.view().generation(1));
  });
});

describe('the configured files', () => {
  test('are published and applied where the ledger has nothing', async () => {
    const watch = watching({
      policyFile: file('p.yaml', policyText(3)),
      rolloutFile: file('r.yaml', rolloutText(3)),
    });
    await watch.start();
    expect(watch.view().policy!.generation).toBe(3);
    expect(watch.view().rollout!.generation).toBe(3);
  });

  test('a rollout in the ledger stands', async () => {
    await publish(3);
    await apply(3, 'shadow');
    const watch = watching({ rolloutFile: file('r.yaml', rolloutText(3, 'enforce')) });
    await watch.start();
    expect(watch.view().rollout!.default.mode).toBe('shadow');
  });

  test('without a rollout it says that nothing is enforced, and how to', async () => {
    await publish(3);
    const watch = watching({});
    await watch.start();
    const said = /^info .*everything runs in shadow.*earmark rollout apply FILE/;
    expect(kept.lines.filter((line) => said.test(line))).toHaveLength(1);
  });

  test('a configured rollout for a route that is not there is an error, and not used', async () => {
    await publish(3);
    const stray = `${rolloutText(3, 'enforce')}\nroutes: { nope: { mode: shadow } }\n`;
    const watch = watching({ rolloutFile: file('r.yaml', stray) });
    await watch.start();
    expect(watch.view().rollout).toBeUndefined();
    expect(kept.lines).toContainEqual(
      expect.stringMatching(/^error.*has no "nope": there are chat/),
    );
  });

  test('an older policy than the newest is a warning', async () => {
    await publish(5);
    const watch = watching({ policyFile: file('p.yaml', policyText(4)) });
    await watch.start();
    expect(watch.view().policy!.generation).toBe(5);
    expect(kept.lines).toContainEqual(expect.stringMatching(/^warn.*generation 4 is older than 5/));
  });

  test('the same generation with other content is an error, and the ledger stands', async () => {
    await publish(5, 1000);
    const watch = watching({ policyFile: file('p.yaml', policyText(5, 999)) });
    await watch.start();
    expect(watch.view().policy!.budgets[0]!.terms.limits[0]!.burst).toBe(1000);
    expect(kept.lines).toContainEqual(
      expect.stringMatching(/^error.*generation 5 is published with other content/),
    );
  });

  test('the same again says nothing', async () => {
    await publish(5);
    const watch = watching({ policyFile: file('p.yaml', policyText(5)) });
    await watch.start();
    expect(kept.lines.filter((line) => /^(warn|error)/.test(line))).toEqual([]);
  });

  test('a broken one stops the start, with all that is wrong', async () => {
    const broken = file('p.yaml', policyText(5).replace('burst: 1000', 'burst: 0, weight: 2'));
    const started = watching({ policyFile: broken }).start();
    await expect(started).rejects.toBeInstanceOf(DocumentInvalid);
    await expect(started).rejects.toThrow(/burst must be[\s\S]*weight is not available yet/);
    await expect(watching({ rolloutFile: join(folder, 'none') }).start()).rejects.toThrow(
      /can't be read/,
    );
    expect(await documents.version()).toBe(0);
  });
});

describe('trouble', () => {
  test('a document that can not be read leaves the last good one, but freezes arrive', async () => {
    await publish(1);
    const watch = watching();
    await watch.start();
    await documents.publish({
      generation: 2,
      canonical: '{"schema":"admissionBudget.v9"}',
      content: 'x',
    });
    await until(() => watch.problem() !== undefined, 'the change', 1000);
    await documents.freezeRoute('chat', -1);
    await until(() => watch.view().frozenUntil('chat') === -1, 'the change', 1000);
    expect(watch.view().policy!.generation).toBe(1);
    expect(kept.metrics.get('earmark_policy_load_failures_total ledger')).toBe(1);
    await publish(3);
    await until(() => watch.view().policy!.generation === 3, 'the change', 1000);
    expect(watch.problem()).toBeUndefined();
  });

  test('a ledger that is not there yet is waited for', async () => {
    const later = mkdtempSync(join(folder, 'later-'));
    const early = new Redis({
      path: join(later, 's'),
      replyMapping: 'legacy',
      maxRetriesPerRequest: 0,
      enableOfflineQueue: false,
      retryStrategy: () => 50,
    });
    early.on('error', () => undefined);
    const watch = watching(
      { policyFile: file('p.yaml', policyText(3)) },
      new Documents(early, 'earmark:'),
    );
    await watch.start();
    expect(watch.problem()).toMatch(/there is no connection to the ledger at /);
    expect(watch.view().policy).toBeUndefined();
    const late = await startRedis({ folder: later });
    try {
      await until(() => watch.view().policy?.generation === 3, 'the change', 3000);
      expect(watch.problem()).toBeUndefined();
    } finally {
      watch.stop();
      early.disconnect();
      await late.stop();
    }
  });

  test('a ledger that goes away leaves what was in force, and says so', async () => {
    const home = mkdtempSync(join(folder, 'away-'));
    const own = await startRedis({
      folder: home,
      args: ['--appendonly', 'yes', '--appendfsync', 'always'],
    });
    const connection = new Redis({
      path: own.socket,
      replyMapping: 'legacy',
      maxRetriesPerRequest: 0,
    });
    connection.on('error', () => undefined);
    const itsDocuments = new Documents(connection, 'earmark:');
    await itsDocuments.publish(parsePolicy(policyText(1), '').policy!);
    const watch = watching({}, itsDocuments);
    await watch.start();
    await own.stop();
    await until(() => watch.problem() !== undefined, 'the change', 3000);
    expect(watch.view().policy!.generation).toBe(1);
    const again = await startRedis({ folder: home, args: ['--appendonly', 'yes'] });
    try {
      await until(() => watch.problem() === undefined, 'the recovery', 3000);
    } finally {
      watch.stop();
      connection.disconnect();
      await again.stop();
    }
  });
});

test.each([
  ['between two looks', true],
  ['during one', false],
])('after a stop %s nothing is asked any more', async (_when, between) => {
  const watch = watching();
  const started = watch.start();
  if (between) await started;
  watch.stop();
  await started;
  await publish(1);
  await new Promise((resolve) => setTimeout(resolve, 400));
  expect(watch.view().policy).toBeUndefined();
});
