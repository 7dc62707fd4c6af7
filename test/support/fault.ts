/** A ledger that fails on demand, between a gateway and the real one. */
import type { LedgerApi } from '../../src/ledger/api.js';
import type { Ledger } from '../../src/ledger/ledger.js';
import { LedgerUnavailable } from '../../src/ledger/types.js';

/**
 * `away`: the call never gets there. `lost`: it runs, its answer gets lost. `late`: it gets there only when released,
 * and nobody waits for the answer any more.
 */
export type Fault = 'away' | 'lost' | 'late';

export class Faults {
  /** By method; a list is used up call by call, and then all is well. */
  readonly plan = new Map<string, Fault | Fault[]>();
  readonly calls: string[] = [];
  #late: (() => Promise<unknown>)[] = [];

  between(ledger: Ledger): LedgerApi {
    return new Proxy(ledger, {
      get: (target, name) => {
        const value = Reflect.get(target, name, target);
        if (typeof value !== 'function') return value;
        const run = value.bind(target) as (...args: unknown[]) => Promise<unknown>;
        if (name === 'estimatedNow') return run;
        return (...args: unknown[]) => this.#call(String(name), () => run(...args));
      },
    });
  }

  /** What was late arrives, in order. */
  async release(): Promise<void> {
    for (const run of this.#late.splice(0)) await run();
  }

  async #call(name: string, run: () => Promise<unknown>): Promise<unknown> {
    this.calls.push(name);
    const planned = this.plan.get(name);
    const fault = Array.isArray(planned) ? planned.shift() : planned;
    if (fault === undefined) return run();
    if (fault === 'lost') await run();
    if (fault === 'late') this.#late.push(run);
    throw new LedgerUnavailable(fault);
  }
}
