import { afterAll, beforeAll, expect, test } from 'vitest';
import { startRedis, type TestRedis } from '../support/redis.js';
import { Real } from './real.js';
import { explore } from './world.js';
import { WORLDS } from './worlds.js';

/** EARMARK_WORLDS=all looks at every instant of every world; without it each world ends earlier. */
const whole = process.env.EARMARK_WORLDS === 'all';

let server: TestRedis;
let real: Real;

beforeAll(async () => {
  server = await startRedis();
  real = new Real(server.socket);
});

afterAll(async () => {
  await real.stop();
  await server.stop();
});

test.each(WORLDS.map((world) => [world.name, world] as const))(
  'world %s: every transition is the same on the scripts',
  async (name, world) => {
    const instants = whole ? world.instants : world.instants.slice(0, world.few);
    const started = performance.now();
    const found = await explore({ ...world, instants }, real);
    const seconds = (performance.now() - started) / 1000;
    const rate = Math.round(found.transitions / seconds);
    const counts = `${found.states} states, ${found.transitions} transitions`;
    console.log(`${name}: ${counts} in ${seconds.toFixed(1)} s (${rate} a second)`);
    expect(found.differences.slice(0, 5).join('\n\n')).toBe('');
    for (const kind of world.kinds) expect(found.kinds.get(kind), kind).toBeGreaterThan(0);
  },
  600_000,
);
