import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type DocumentRefusal, Documents } from '../../src/ledger/documents.js';
import { LedgerUnavailable } from '../../src/ledger/types.js';
import { startRedis, type TestRedis } from '../support/redis.js';

let server: TestRedis;
let redis: Redis;
let documents: Documents;

beforeAll(async () => {
  server = await startRedis();
});
afterAll(() => server.stop());

beforeEach(async () => {
  redis = new Redis({ path: server.socket, replyMapping: 'legacy' });
  await redis.flushall();
  documents = new Documents(redis, 'earmark:');
});
afterEach(() => redis.disconnect());

const policy = (generation: number, content = `content of ${generation}`) => ({
  generation,
  content,
  canonical: `canonical form of ${content}`,
});
const rollout = (generation: number, canonical = `rollout to ${generation}`) => ({
  generation,
  canonical,
});

async function refusal(ask: Promise<unknown>): Promise<{ why: DocumentRefusal; message: string }> {
  return ask.then(
    () => expect.unreachable(),
    (error) => ({ why: error.why, message: error.message }),
  );
}

describe('publish', () => {
  test('stores the document under its generation', async () => {
    expect(await documents.publish(policy(5))).toBe('moved');
    expect(await documents.policy(5)).toEqual(policy(5));
    expect(await documents.state()).toEqual({
      version: 1,
      newest: 5,
      rollout: undefined,
      freezes: new Map(),
    });
  });

  test('the same again moves nothing', async () => {
    await documents.publish(policy(5));
    await documents.publish(policy(7));
    expect(await documents.publish(policy(5))).toBe('same');
    expect(await documents.state()).toMatchObject({ version: 2, newest: 7 });
  });

  test('the same generation with other content is refused, and stays', async () => {
    await documents.publish(policy(5));
    const { why, message } = await refusal(documents.publish(policy(5, 'another')));
    expect(why).toBe('content');
    expect(message).toMatch(/generation 5 is published with other content.*next generation/);
    expect(await documents.policy(5)).toEqual(policy(5));
    expect(await documents.version()).toBe(1);
  });

  test('an older one than the newest is refused: generations are numbers, not text', async () => {
    await documents.publish(policy(10));
    const { why, message } = await refusal(documents.publish(policy(9)));
    expect(why).toBe('older');
    expect(message).toMatch(/above 10/);
    expect(await documents.policy(9)).toBeUndefined();
    expect(await documents.publish(policy(11))).toBe('moved');
  });

  test('the largest generation is kept exactly', async () => {
    await documents.publish(policy(Number.MAX_SAFE_INTEGER - 1));
    await documents.publish(policy(Number.MAX_SAFE_INTEGER));
    expect((await documents.state()).newest).toBe(Number.MAX_SAFE_INTEGER);
  });

  test('two prefixes are two ledgers', async () => {
    await documents.publish(policy(5));
    expect(await new Documents(redis, 'other:').policy(5)).toBeUndefined();
  });

  test('of many at once one wins, and all say the same afterwards', async () => {
    const asked = ['a', 'b', 'c', 'd'].map((content) => documents.publish(policy(3, content)));
    const settled = await Promise.allSettled(asked);
    expect(settled.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    expect(await documents.version()).toBe(1);
  });
});

describe('rollout', () => {
  test('puts a published generation in force', async () => {
    await documents.publish(policy(5));
    expect(await documents.applyRollout(rollout(5))).toBe('moved');
    expect(await documents.state()).toMatchObject({ version: 2, rollout: rollout(5) });
    expect(await documents.applyRollout(rollout(5))).toBe('same');
    expect(await documents.applyRollout(rollout(5, 'further'))).toBe('moved');
    expect(await documents.state()).toMatchObject({ version: 3, rollout: rollout(5, 'further') });
  });

  test('an unknown generation is refused', async () => {
    expect(await refusal(documents.applyRollout(rollout(5)))).toEqual({
      why: 'unknown',
      message: 'generation 5 is not published, nor is any: publish its policy first',
    });
    await documents.publish(policy(4));
    expect((await refusal(documents.applyRollout(rollout(5)))).message).toMatch(/the newest is 4/);
    expect((await documents.state()).rollout).toBeUndefined();
  });

  test('never back to an older generation than is in force', async () => {
    for (const generation of [8, 9, 10]) await documents.publish(policy(generation));
    expect((await refusal(documents.applyRollout(rollout(9)))).why).toBe('back');
    await documents.applyRollout(rollout(10));
    expect((await refusal(documents.applyRollout(rollout(9)))).message).toMatch(
      /older than 10, which is in force/,
    );
    expect((await documents.state()).rollout).toEqual({ ...rollout(10), previous: '' });
  });

  test('a newer generation that is only published is not in force', async () => {
    await documents.publish(policy(8));
    await documents.applyRollout(rollout(8));
    await documents.publish(policy(9));
    expect(await documents.applyRollout(rollout(8, 'further'))).toBe('moved');
  });
});

describe('freezes of routes', () => {
  const soon = () => Date.now() + 600_000;

  test('the longest stands, and -1 is the longest', async () => {
    const time = soon();
    expect(await documents.freezeRoute('chat', time)).toBe(true);
    expect(await documents.freezeRoute('chat', time - 1000)).toBe(false);
    expect(await documents.freezeRoute('chat', time)).toBe(false);
    expect(await documents.freezeRoute('chat', time + 1000)).toBe(true);
    expect(await documents.freezeRoute('chat', -1)).toBe(true);
    expect(await documents.freezeRoute('chat', time + 2000)).toBe(false);
    expect(await documents.freezeRoute('chat', -1)).toBe(false);
    expect(await documents.freezeRoute('other', time)).toBe(true);
    expect(await documents.freezes()).toEqual(
      new Map([
        ['chat', -1],
        ['other', time],
      ]),
    );
    expect(await documents.version()).toBe(4);
  });

  test('unfreezing says which lines were frozen with it, once', async () => {
    await documents.freezeRoute('chat', -1, 'tag-a');
    await documents.freezeRoute('chat', -1, 'tag-b');
    await documents.freezeRoute('chat', -1);
    await documents.freezeRoute('other', -1, 'tag-c');
    const { moved, tags } = await documents.unfreezeRoute('chat');
    expect(moved).toBe(true);
    expect([...tags].sort()).toEqual(['tag-a', 'tag-b']);
    expect(await documents.unfreezeRoute('chat')).toEqual({ moved: false, tags: [] });
    expect(await documents.freezes()).toEqual(new Map([['other', -1]]));
  });

  test('a freeze that has ended leaves no lines to the next one', async () => {
    await documents.freezeRoute('chat', 1, 'tag-a');
    await documents.freezeRoute('chat', soon(), 'tag-b');
    expect((await documents.unfreezeRoute('chat')).tags).toEqual(['tag-b']);
  });

  test('a time that is none is a mistake of the caller', async () => {
    for (const until of [0, -2, 1.5, Number.NaN]) {
      await expect(documents.freezeRoute('chat', until)).rejects.toThrow(/until is/);
    }
    expect(await documents.version()).toBe(0);
  });

  test('a route may have any name', async () => {
    for (const route of ['a b', '{x}', '__proto__', 'ä\u0000:']) {
      await documents.freezeRoute(route, -1, 'tag');
      expect((await documents.freezes()).get(route)).toBe(-1);
      expect((await documents.unfreezeRoute(route)).tags).toEqual(['tag']);
    }
  });
});

test('all keys are in one slot', async () => {
  await documents.publish(policy(5));
  await documents.applyRollout(rollout(5));
  await documents.freezeRoute('chat', -1, 'tag');
  const keys = await redis.keys('*');
  expect(keys.length).toBeGreaterThan(5);
  for (const key of keys) expect(key).toMatch(/^earmark:\{policy\}:/);
});

test('a full server takes a freeze and refuses a publication', async () => {
  await documents.publish(policy(1));
  await redis.config('SET', 'maxmemory', '1');
  try {
    await expect(documents.publish(policy(2))).rejects.toBeInstanceOf(LedgerUnavailable);
    expect(await documents.freezeRoute('chat', -1, 'tag')).toBe(true);
  } finally {
    await redis.config('SET', 'maxmemory', '0');
  }
  expect(await documents.state()).toMatchObject({ newest: 1, version: 2 });
});

test('scripts that the server forgot are sent again', async () => {
  await documents.publish(policy(1));
  await redis.script('FLUSH');
  expect(await documents.publish(policy(2))).toBe('moved');
});

test('a ledger that is away is LedgerUnavailable', async () => {
  const away = new Redis({
    path: `${server.socket}-not`,
    maxRetriesPerRequest: 0,
    retryStrategy: () => null,
  });
  away.on('error', () => undefined);
  const none = new Documents(away, 'earmark:');
  await expect(none.version()).rejects.toBeInstanceOf(LedgerUnavailable);
  await expect(none.state()).rejects.toBeInstanceOf(LedgerUnavailable);
  await expect(none.publish(policy(1))).rejects.toBeInstanceOf(LedgerUnavailable);
  away.disconnect();
});
