import { defineConfig } from 'vitest/config';
import { EveryTestRuns } from './test/support/every-test-runs.js';

/** Where .ci/run reads its counts. */
const report = process.env.EARMARK_TEST_REPORT;

export default defineConfig({
  test: {
    // Long waits only where somebody has the time: .ci/run.
    include: ['test/**/*.test.ts', ...(process.env.EARMARK_LONG ? ['test/**/*.long.ts'] : [])],
    pool: 'forks',
    // Every file has servers of its own; more at once than cores only makes deadlines late.
    maxWorkers: 2,
    testTimeout: 20_000,
    hookTimeout: 30_000,
    reporters: [
      process.env.CI ? 'dot' : 'default',
      new EveryTestRuns(),
      ...(report ? [['json', { outputFile: report }] as const] : []),
    ],
  },
});
