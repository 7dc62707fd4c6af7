/** Random stories in their thousands, or a million: no answer and no counter in which model and scripts part. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { kindOf } from '../model/world.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { storiesByHand, storyFrom } from './by-hand.js';
import { differencesIn } from './check.js';
import { SCALE, scale, tell } from './scale.js';
import { connectTo, Scripts } from './scripts.js';
import { type Story, storyOf } from './stories.js';

const COUNT = Number(
  process.env.EARMARK_PROOF_CASES ?? scale({ short: 1000, ci: 200_000, full: 1_000_000 }),
);
/** The short form tells the same stories in every run. */
const DRAWN = SCALE === 'short' ? 1 : Date.now() % 1_000_000_000;
const SEED = Number(process.env.EARMARK_PROOF_SEED ?? DRAWN);
const AT_ONCE = 200;
/** Stories that part are told so many; the rest is counted. */
const TOLD = 5;
/** Of each kind of answer that was given at all, in a run of a size that can ask for it. */
const OF_EACH = 100;

let server: TestRedis;
let scripts: Scripts;

beforeAll(async () => {
  server = await startRedis();
  const redis = connectTo(server.socket);
  await redis.connect();
  scripts = new Scripts(redis, undefined);
});
afterAll(async () => {
  scripts.redis.disconnect();
  await server.stop();
});

/** Leaves out whatever can be left out while the story still parts. */
async function shortest(story: Story): Promise<string> {
  let [least, told] = [story.events, ''];
  for (let i = least.length - 1; i >= 0; i--) {
    const events = least.filter((_, k) => k !== i);
    const fewer = storyFrom(story.seed, story.first, events);
    const found = (await differencesIn(scripts, [fewer])).get(fewer);
    await scripts.redis.flushall();
    if (found !== undefined) [least, told] = [fewer.events, found];
  }
  return told;
}

test(`${COUNT} stories from EARMARK_PROOF_SEED=${SEED}`, async () => {
  console.log(`${COUNT} stories from EARMARK_PROOF_SEED=${SEED}`);
  const kinds = new Map<string, number>();
  const parted: Story[] = [...(await differencesIn(scripts, storiesByHand())).keys()];
  let operations = 0;
  for (let from = 0; from < COUNT; from += AT_ONCE) {
    const size = Math.min(AT_ONCE, COUNT - from);
    const stories = Array.from({ length: size }, (_, i) => storyOf(SEED + from + i));
    parted.push(...(await differencesIn(scripts, stories)).keys());
    for (const { events, replies } of stories) {
      operations += events.length;
      for (const [i, event] of events.entries()) {
        const kind = `${event.op} ${kindOf(replies[i]!)}`;
        kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
      }
    }
  }
  await scripts.redis.flushall();
  const told: string[] = [];
  for (const story of parted.slice(0, TOLD)) told.push(await shortest(story));
  tell('stories', {
    ...{ stories: COUNT, seed: SEED, operations, parted: parted.length },
    kinds: Object.fromEntries([...kinds].sort()),
    firstParted: told,
  });
  expect(told.join('\n\n')).toBe('');
  if (COUNT < 200_000) return;
  const rare = [...kinds].filter(([kind, count]) => !kind.startsWith('sweep') && count < OF_EACH);
  expect(rare).toEqual([]);
}, 7_200_000);
