import { afterAll, beforeAll, expect, test } from 'vitest';
import { startRedis, type TestRedis } from '../support/redis.js';
import { drawCase, firstDifference, shortest } from './random.js';
import { Real } from './real.js';

const CASES = Number(process.env.EARMARK_CASES ?? 2000);
/** Lines that are asked at once. */
const BATCH = 200;

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

test('random cases: model and scripts give the same answers and leave the same line', async () => {
  const seed = Number(process.env.EARMARK_SEED ?? Date.now() % 1_000_000_000);
  console.log(`${CASES} random cases from EARMARK_SEED=${seed}`);
  for (let from = 0; from < CASES; from += BATCH) {
    const size = Math.min(BATCH, CASES - from);
    const cases = Array.from({ length: size }, (_, i) => drawCase(seed + from + i));
    const different = await firstDifference(cases, real);
    if (different !== undefined) expect.fail(await shortest(different.case, real));
  }
}, 600_000);
