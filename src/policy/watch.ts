/** Keeps what a gateway holds of policy and rollout as new as the ledger's; what can't be read changes nothing. */
import { readFile } from 'node:fs/promises';
import { DocumentRefused, type Documents, type DocumentsState } from '../ledger/documents.js';
import { LedgerUnavailable } from '../ledger/types.js';
import type { Log, Meter } from '../telemetry/meter.js';
import { applyRollout } from './apply.js';
import { formatProblem, loadPolicy, parsePolicy } from './parse.js';
import { parseRollout } from './rollout.js';
import type { Policy, PolicyView, Problem, Rollout } from './types.js';

const POLL_MS = 250;

/** A configured document can't be used at all: serve doesn't start with it. */
export class DocumentInvalid extends Error {
  override readonly name = 'DocumentInvalid';
  readonly problems: readonly Problem[];
  constructor(problems: readonly Problem[]) {
    super(problems.map(formatProblem).join('\n'));
    this.problems = problems;
  }
}

export interface WatchOptions {
  readonly documents: Documents;
  readonly log: Log;
  readonly meter: Meter;
  /** Published at the start where its generation is new. */
  readonly policyFile?: string | undefined;
  /** Applied at the start where the ledger has none. */
  readonly rolloutFile?: string | undefined;
}

/** Watches the ledger's documents from `start` to `stop`. */
export class PolicyWatch {
  private readonly options: WatchOptions;
  private readonly generations = new Map<number, Policy>();
  private readonly loading = new Map<number, Promise<Policy | undefined>>();
  private version = -1;
  private current: PolicyView;
  private trouble: string | undefined = 'the ledger has not been read yet';
  private configured: { policy: Policy | undefined; rollout: Rollout | undefined } | undefined;
  private timer: NodeJS.Timeout | undefined;
  private stopped = false;
  /** The look under way, and the one after it that others may join: two at once could end in the older view. */
  private running: Promise<void> = Promise.resolve();
  private next: Promise<void> | undefined;

  constructor(options: WatchOptions) {
    this.options = options;
    this.current = this.viewOf(undefined, undefined, new Map());
  }

  /**
   * Reads the configured files and rejects with `DocumentInvalid` where they are wrong; then looks at the ledger, and
   * goes on looking. A ledger that is not there yet is waited for in the background.
   */
  async start(): Promise<void> {
    const { policyFile, rolloutFile } = this.options;
    this.configured = {
      policy: policyFile === undefined ? undefined : await readPolicyFile(policyFile),
      rollout: rolloutFile === undefined ? undefined : await readRolloutFile(rolloutFile),
    };
    await this.look();
  }

  stop(): void {
    this.stopped = true;
    clearTimeout(this.timer);
  }

  /** What is in force now; a request keeps the one it began with. */
  view(): PolicyView {
    return this.current;
  }

  /** Why the view may not be what the ledger has; undefined: it is. */
  problem(): string | undefined {
    return this.trouble;
  }

  /** A generation of any age, from the ledger if need be; undefined: not published, or not readable here. */
  async load(generation: number): Promise<Policy | undefined> {
    const known = this.generations.get(generation);
    if (known !== undefined) return known;
    const underWay = this.loading.get(generation);
    if (underWay !== undefined) return underWay;
    const loading = this.fetch(generation).finally(() => this.loading.delete(generation));
    this.loading.set(generation, loading);
    return loading;
  }

  private async fetch(generation: number): Promise<Policy | undefined> {
    const stored = await this.options.documents.policy(generation);
    if (stored === undefined) return undefined;
    const policy = loadPolicy(stored.canonical, stored.content);
    this.generations.set(generation, policy);
    return policy;
  }

  /** Looks at once, for whoever was told by the ledger that this view is old. */
  refresh(): Promise<void> {
    this.next ??= this.running.then(() => {
      this.next = undefined;
      this.running = this.catchUp();
      return this.running;
    });
    return this.next;
  }

  private async look(): Promise<void> {
    await this.refresh();
    if (!this.stopped) this.timer = setTimeout(() => void this.look(), POLL_MS);
  }

  private async catchUp(): Promise<void> {
    try {
      if (this.configured !== undefined) {
        await this.bringIn(this.configured.policy, this.configured.rollout);
        this.configured = undefined;
      }
      if ((await this.options.documents.version()) !== this.version) await this.reload();
      this.trouble = undefined;
    } catch (error) {
      this.failed(error);
    }
  }

  private failed(error: unknown): void {
    const message = (error as Error).message;
    if (message === this.trouble) return;
    this.trouble = message;
    const { log, meter } = this.options;
    if (error instanceof LedgerUnavailable) {
      log.warn({ err: message }, 'policy and rollout stay as they were');
    } else {
      meter.count('earmark_policy_load_failures_total', { document: 'ledger' });
      log.error(
        { err: message },
        'what is published cannot be read here: policy and rollout stay as they were',
      );
    }
  }

  /** The configured files into the ledger; where the ledger refuses them it is right. */
  private async bringIn(policy: Policy | undefined, rollout: Rollout | undefined): Promise<void> {
    const { documents } = this.options;
    if (policy !== undefined) await this.offer('policy', () => documents.publish(policy));
    if (rollout === undefined || (await documents.state()).rollout !== undefined) return;
    await this.offer('rollout', () => applyRollout(documents, rollout));
  }

  private async offer(document: string, give: () => Promise<'moved' | 'same'>): Promise<void> {
    const { log } = this.options;
    try {
      if ((await give()) === 'moved') log.info({ document }, 'published from the configured file');
    } catch (error) {
      if (!(error instanceof DocumentRefused)) throw error;
      const text = `the configured ${document} is not used: ${error.message}`;
      if (error.why === 'older' || error.why === 'back') log.warn({ document }, text);
      else log.error({ document }, text);
    }
  }

  private async reload(): Promise<void> {
    const state = await this.options.documents.state();
    // Freezes never wait for a document that can't be read.
    this.current = this.viewOf(this.current.policy, this.current.rollout, state.freezes);
    const { policy, rollout } = await this.read(state);
    this.current = this.viewOf(policy, rollout, state.freezes);
    this.version = state.version;
    const { log } = this.options;
    log.info(
      { generation: policy?.generation ?? 0, rollout: rollout !== undefined },
      'policy in force',
    );
    if (policy !== undefined && rollout === undefined) {
      log.info(
        { generation: policy.generation },
        'without a rollout everything runs in shadow and nothing is refused: earmark rollout apply FILE enforces',
      );
    }
  }

  private async read(
    state: DocumentsState,
  ): Promise<{ policy: Policy | undefined; rollout: Rollout | undefined }> {
    const rollout = state.rollout && readStoredRollout(state.rollout.canonical);
    const generation = rollout?.generation ?? state.newest;
    const policy = generation === 0 ? undefined : await this.load(generation);
    return { policy, rollout };
  }

  private viewOf(
    policy: Policy | undefined,
    rollout: Rollout | undefined,
    freezes: ReadonlyMap<string, number>,
  ): PolicyView {
    return Object.freeze({
      policy,
      rollout,
      frozenUntil: (route: string) => freezes.get(route) ?? 0,
      generation: (generation: number) => this.known(generation),
    });
  }

  /** Not here yet: on its way, for whoever asks again. */
  private known(generation: number): Policy | undefined {
    const policy = this.generations.get(generation);
    if (policy === undefined) this.load(generation).catch(() => undefined);
    return policy;
  }
}

async function readPolicyFile(file: string): Promise<Policy> {
  const { policy, problems } = parsePolicy(await readText(file), file);
  if (policy === undefined) throw new DocumentInvalid(problems);
  return policy;
}

async function readRolloutFile(file: string): Promise<Rollout> {
  const { rollout, problems } = parseRollout(await readText(file), file);
  if (rollout === undefined) throw new DocumentInvalid(problems);
  return rollout;
}

async function readText(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    const message = `can't be read: ${(error as Error).message}`;
    throw new DocumentInvalid([{ file, line: 1, column: 1, path: '', message }]);
  }
}

function readStoredRollout(canonical: string): Rollout {
  const { rollout, problems } = parseRollout(canonical, 'ledger', Number.POSITIVE_INFINITY);
  if (rollout !== undefined) return rollout;
  throw new Error(`the rollout in the ledger: ${problems.map(formatProblem).join('; ')}`);
}
