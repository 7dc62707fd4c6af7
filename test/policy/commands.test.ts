import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type CommandContext, policyCommand } from '../../src/cli/policy.js';
import { rolloutCommand } from '../../src/cli/rollout.js';
import { Documents } from '../../src/ledger/documents.js';
import { startRedis, type TestRedis } from '../support/redis.js';

const good = (name: string) => fileURLToPath(new URL(`./good/${name}`, import.meta.url));
const unopened: CommandContext = { redis: () => expect.unreachable(), prefix: 'earmark:' };

let server: TestRedis;
let redis: Redis;
let folder: string;
let context: CommandContext;

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis({ path: server.socket, replyMapping: 'legacy' });
  context = { redis: () => redis, prefix: 'earmark:' };
  folder = mkdtempSync(join(tmpdir(), 'earmark-commands-'));
});
afterAll(async () => {
  redis.disconnect();
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
});
beforeEach(() => redis.flushall());

function file(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

describe('policy validate', () => {
  test('says what the document is, and warns', async () => {
    const { text, json, code } = await policyCommand(['validate', good('policy.yaml')], unopened);
    expect(code).toBe(0);
    expect(text).toMatch(
      /^warning: .*policy.yaml:45:15: budgets\[0\].onBreach freezeRoute.*\n.* is valid: generation 31, chat.generate, content [0-9a-f]{64}$/,
    );
    expect(json).toMatchObject({ ok: true, generation: 31, routes: ['chat.generate'] });
  });

  test('all that is wrong, one a line', async () => {
    const path = file(
      'bad.yaml',
      'schema: admissionBudget.v1\ngeneration: 0\nunmatched: no\nbudgets: []\n',
    );
    const { text, json, code } = await policyCommand(['validate', path], unopened);
    expect(code).toBe(1);
    expect(text.split('\n')).toHaveLength(3);
    expect(json).toMatchObject({ ok: false, problems: [{ line: 2 }, { line: 3 }, { line: 4 }] });
  });

  test('a file that is not there', async () => {
    const { text, code } = await policyCommand(['validate', join(folder, 'none.yaml')], unopened);
    expect([text, code]).toEqual([expect.stringMatching(/none.yaml can't be read: ENOENT/), 1]);
  });
});

test.each([
  [[]],
  [['validate']],
  [['publish']],
  [['frob', 'x']],
  [['validate', 'a', 'b']],
  [['show', 'x']],
  [['show', '0']],
  [['show', '-1']],
])('policy %j is wrong usage', async (args) =>
  expect((await policyCommand(args, unopened)).code).toBe(2),
);

test.each([
  [[]],
  [['apply']],
  [['show', 'x']],
  [['apply', 'a', 'b']],
  [['undo', 'x']],
  [['set']],
  [['set', '--route', 'a']],
  [['set', '--odd']],
])('rollout %j is wrong usage', async (args) =>
  expect((await rolloutCommand(args, unopened)).code).toBe(2),
);

test('a rollout for a route that its generation does not have is refused, and shown as text', async () => {
  await policyCommand(['publish', good('policy.yaml')], context);
  const head = 'schema: rollout.v1\ngeneration: 31\ndefault: { mode: shadow }\nroutes:\n';
  const stray = file('stray.yaml', `${head}  chat.generat: { mode: enforce }\n`);
  expect(await rolloutCommand(['apply', stray], context)).toMatchObject({
    code: 1,
    json: { why: 'route' },
    text: 'routes: generation 31 has no "chat.generat": there are chat.generate',
  });
  expect(await rolloutCommand(['show'], context)).toMatchObject({ json: { rollout: null } });
  const right = file(
    'right.yaml',
    `${head}  chat.generate: { mode: enforce, percent: 25, only: [acme] }\n`,
  );
  expect(await rolloutCommand(['apply', right], context)).toMatchObject({ code: 0 });
  const { text } = await rolloutCommand(['show'], context);
  expect(text.split('\n')).toEqual([
    'generation 31',
    'chat.generate: enforce, 25 % by subject, only acme',
    'every other route: shadow',
  ]);
});

test('from nothing to a rollout, and what may not follow', async () => {
  expect(await policyCommand(['show'], context)).toMatchObject({
    code: 1,
    text: expect.stringMatching(/no policy is published/),
  });
  expect(await rolloutCommand(['show'], context)).toMatchObject({ code: 1 });
  expect(await rolloutCommand(['apply', good('rollout.yaml')], context)).toMatchObject({
    code: 1,
    json: { ok: false, why: 'unknown' },
    text: 'generation 31 is not published, nor is any: publish its policy first',
  });

  expect(await policyCommand(['publish', good('policy.yaml')], context)).toMatchObject({
    code: 0,
    json: { moved: true },
  });
  expect(await policyCommand(['publish', good('policy.yaml')], context)).toMatchObject({
    code: 0,
    json: { moved: false },
  });
  expect(await rolloutCommand(['show'], context)).toMatchObject({
    code: 0,
    json: { generation: 31, rollout: null },
  });

  expect(await rolloutCommand(['apply', good('rollout.yaml')], context)).toMatchObject({
    code: 0,
    json: { moved: true },
  });
  expect(await rolloutCommand(['apply', good('rollout.yaml')], context)).toMatchObject({
    code: 0,
    json: { moved: false },
  });
  const { json } = await rolloutCommand(['show'], context);
  expect(json).toMatchObject({
    rollout: { routes: { 'chat.generate': { mode: 'enforce', percent: 1 } } },
  });

  const shown = await policyCommand(['show'], context);
  expect(shown).toMatchObject({
    code: 0,
    json: { generation: 31, inForce: 31, policy: { unmatched: 'refuse' } },
  });
  expect(shown.text).toMatch(/^generation 31, in force, content/);
  expect(await policyCommand(['show', '7'], context)).toMatchObject({
    code: 1,
    text: 'generation 7 is not published; the newest is 31',
  });

  expect(await policyCommand(['publish', good('policy-small.yaml')], context)).toMatchObject({
    code: 1,
    json: { why: 'older' },
  });
});

describe('rollout set and undo', () => {
  const rulesNow = async () => (await rolloutCommand(['show'], context)).text.split('\n');
  const set = (...args: string[]) => rolloutCommand(['set', ...args], context);

  test('change one thing and leave the rest', async () => {
    await policyCommand(['publish', good('policy.yaml')], context);
    expect(
      await set('--route', 'chat.generate', '--mode', 'enforce', '--percent', '5'),
    ).toMatchObject({
      code: 0,
      json: { generation: 31, moved: true },
    });
    const five = [
      'generation 31',
      'chat.generate: enforce, 5 % by subject',
      'every other route: shadow',
    ];
    expect(await rulesNow()).toEqual(five);
    await set('--route', 'chat.generate', '--percent', '50');
    expect((await rulesNow())[1]).toBe('chat.generate: enforce, 50 % by subject');
    expect(await set('--route', 'chat.generate', '--percent', '50')).toMatchObject({
      json: { moved: false },
    });
    await rolloutCommand(['undo'], context);
    expect(await rulesNow()).toEqual(five);
    await set('--mode', 'off');
    await set('--route', 'chat.generate', '--mode', 'refuseAll');
    expect(await rulesNow()).toEqual([
      'generation 31',
      'chat.generate: refuseAll',
      'every other route: off',
    ]);
  });

  test('undo of the first is shadow everywhere, and of nothing is refused', async () => {
    await policyCommand(['publish', good('policy.yaml')], context);
    expect(await rolloutCommand(['undo'], context)).toMatchObject({ code: 1 });
    await set('--mode', 'enforce');
    await rolloutCommand(['undo'], context);
    expect(await rulesNow()).toEqual(['generation 31', 'every other route: shadow']);
  });

  test.each([
    [['--mode', 'on'], /mode must be off, shadow, enforce or refuseAll/],
    [['--mode', 'enforce', '--percent', '101'], /percent must be from 0 to 100/],
    [['--mode', 'enforce', '--percent', 'x'], /percent/],
    [['--mode', 'shadow', '--percent', '5'], /percent belongs to mode enforce/],
    [['--generation', '32'], /generation 32 is not published/],
    [['--generation', '30'], /generation 30 is not published/],
    [['--generation', 'x'], /generation/],
    [['--route', 'none', '--mode', 'enforce'], /generation 31 has no "none"/],
  ])('%j changes nothing', async (args, words) => {
    await policyCommand(['publish', good('policy.yaml')], context);
    await set('--mode', 'refuseAll');
    const before = await rulesNow();
    const { code, text } = await set(...args);
    expect([code, text]).toEqual([1, expect.stringMatching(words)]);
    expect(await rulesNow()).toEqual(before);
  });

  test('a change of what is no longer in force is refused', async () => {
    await policyCommand(['publish', good('policy.yaml')], context);
    await set('--mode', 'refuseAll');
    const documents = new Documents(redis, 'earmark:');
    const { canonical } = (await documents.state()).rollout!;
    await set('--mode', 'off');
    await expect(documents.applyRollout({ generation: 31, canonical }, canonical)).rejects.toThrow(
      /another rollout was applied meanwhile/,
    );
  });
});

test('revert publishes an older generation as the next, and a rollout takes it up', async () => {
  expect(await policyCommand(['revert', '31'], context)).toMatchObject({
    code: 1,
    text: 'generation 31 is not published; nor is any',
  });
  await policyCommand(['publish', good('policy.yaml')], context);
  const other = file(
    'other.yaml',
    readFileSync(good('policy-small.yaml'), 'utf8').replace(/^generation: .*$/m, 'generation: 40'),
  );
  expect(await policyCommand(['publish', other], context)).toMatchObject({ code: 0 });
  expect(await policyCommand(['revert', '31'], context)).toMatchObject({
    code: 0,
    json: { generation: 41, from: 31 },
  });
  const policyOf = async (generation: string) =>
    ((await policyCommand(['show', generation], context)).json as { policy: object }).policy;
  expect(await policyOf('41')).toEqual({ ...(await policyOf('31')), generation: 41 });
  expect(await rolloutCommand(['set', '--generation', '41'], context)).toMatchObject({
    code: 0,
    text: 'generation 41\nevery other route: shadow',
  });
  expect((await policyCommand(['revert', 'x'], context)).code).toBe(2);
});

test('a rollout with an error is not applied', async () => {
  const path = file('r.yaml', 'schema: rollout.v1\ngeneration: 1\ndefault: { mode: on }\n');
  const { text, code } = await rolloutCommand(['apply', path], unopened);
  expect(code).toBe(1);
  expect(text).toMatch(/r.yaml:3:18: default.mode must be off, shadow, enforce or refuseAll/);
});
