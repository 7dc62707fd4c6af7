/** A reporter that fails the run where a test was left out, unless tests were picked by name. */
import type { Reporter, TestModule, Vitest } from 'vitest/node';

export class EveryTestRuns implements Reporter {
  #picked = false;

  onInit(vitest: Vitest): void {
    this.#picked = vitest.config.testNamePattern !== undefined;
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    if (this.#picked) return;
    const left = modules.flatMap((module) =>
      [...module.children.allTests()].filter((test) => test.result().state === 'skipped'),
    );
    for (const test of left) process.stderr.write(`did not run: ${test.fullName}\n`);
    if (left.length > 0) process.exitCode = 1;
  }
}
