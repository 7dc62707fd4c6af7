/**
 * What the ledger holds beside the lines: published policies, the rollout, freezes of whole routes. All of it is in
 * one slot and has one version, so that a gateway that polls a number misses nothing.
 */
import type { Redis } from 'ioredis';
import { reasonOf } from './reason.js';
import { type Closed, ensureOpen } from './schema.js';
import { loadScript, type Script } from './scripts.js';
import { LedgerUnavailable } from './types.js';

/** A connection that its owner opens, configures and closes. */
export type RedisClient = Redis;

export type DocumentRefusal = 'content' | 'older' | 'unknown' | 'back' | 'route' | 'raced';

/** The ledger keeps what it has; the message says what to do instead. */
export class DocumentRefused extends Error {
  override readonly name = 'DocumentRefused';
  readonly why: DocumentRefusal;
  constructor(why: DocumentRefusal, message: string) {
    super(message);
    this.why = why;
  }
}

/** What is published: the text, and what it must hash to. */
export interface StoredPolicy {
  readonly generation: number;
  readonly canonical: string;
  readonly content: string;
}

/** What is in force, and what was before it: '' where there was nothing. */
export interface StoredRollout {
  readonly generation: number;
  readonly canonical: string;
  readonly previous: string;
}

/** Everything that is watched, as of one instant. */
export interface DocumentsState {
  /** Rises with each change. */
  readonly version: number;
  /** 0: nothing is published. */
  readonly newest: number;
  readonly rollout: StoredRollout | undefined;
  /** Route -> ledger time in ms, -1 until an operator ends it. Those that have ended may still be there. */
  readonly freezes: ReadonlyMap<string, number>;
}

const PUBLISH = loadScript('publish');
const ROUTES = loadScript('routes');

/** The documents of one ledger. Every method rejects with `LedgerUnavailable` where the ledger doesn't answer. */
export class Documents {
  private readonly redis: RedisClient;
  private readonly prefix: string;
  private readonly closed: Closed | undefined;

  constructor(redis: RedisClient, prefix: string, closed?: Closed) {
    this.redis = redis;
    this.closed = closed;
    this.prefix = prefix;
  }

  /** Freezes a document under its generation. 'same': it stood there already. Throws `DocumentRefused`. */
  async publish(policy: StoredPolicy): Promise<'moved' | 'same'> {
    const { generation, content, canonical } = policy;
    const reply = await this.run(PUBLISH, this.publishKeys(), [
      'policy',
      generation,
      content,
      canonical,
    ]);
    return this.outcome(reply, generation);
  }

  /**
   * Puts a generation in force. 'same': this very rollout was so already. `madeFrom`: the canonical form that it
   * changes, '' for none; refused where another is in force by then. Throws `DocumentRefused`.
   */
  async applyRollout(
    rollout: { readonly generation: number; readonly canonical: string },
    madeFrom?: string,
  ): Promise<'moved' | 'same'> {
    const args = ['rollout', rollout.generation, rollout.canonical];
    if (madeFrom !== undefined) args.push(madeFrom);
    return this.outcome(await this.run(PUBLISH, this.publishKeys(), args), rollout.generation);
  }

  /** Undefined: no such generation is published. */
  async policy(generation: number): Promise<StoredPolicy | undefined> {
    const field = String(generation);
    const [content, canonical] = await this.all(
      this.redis.multi().hget(this.key('content'), field).hget(this.key('documents'), field),
    );
    if (typeof content !== 'string' || typeof canonical !== 'string') return undefined;
    return { generation, content, canonical };
  }

  async version(): Promise<number> {
    return Number((await this.ask(() => this.redis.get(this.key('version')))) ?? 0);
  }

  async state(): Promise<DocumentsState> {
    const [version, newest, rollout, freezes] = (await this.all(
      this.redis
        .multi()
        .get(this.key('version'))
        .get(this.key('newest'))
        .hgetall(this.key('rollout'))
        .hgetall(this.key('freezes')),
    )) as [string | null, string | null, Record<string, string>, Record<string, string>];
    const { generation, canonical, previous = '' } = rollout;
    return {
      version: Number(version ?? 0),
      newest: Number(newest ?? 0),
      rollout:
        canonical === undefined
          ? undefined
          : { generation: Number(generation), canonical, previous },
      freezes: new Map(Object.entries(freezes).map(([route, until]) => [route, Number(until)])),
    };
  }

  /**
   * Freezes every line of a route until ledger time `until`, -1: until an operator ends it. A longer freeze that
   * stands is kept. `tag` is the line whose breach it was: it is unfrozen with the route. True: it moved.
   */
  async freezeRoute(route: string, until: number, tag = ''): Promise<boolean> {
    if (until !== -1 && !(Number.isSafeInteger(until) && until > 0)) {
      throw new RangeError(`until is ${until}: it must be -1 or a time in ms`);
    }
    const reply = await this.run(ROUTES, this.routeKeys(route), ['freeze', route, until, tag]);
    return reply[0] === 1;
  }

  /** Ends it, and says which lines were frozen with it: they are still frozen by themselves. */
  async unfreezeRoute(route: string): Promise<{ moved: boolean; tags: readonly string[] }> {
    const [moved, ...tags] = await this.run(ROUTES, this.routeKeys(route), ['unfreeze', route]);
    return { moved: moved === 1, tags: tags as string[] };
  }

  async freezes(): Promise<ReadonlyMap<string, number>> {
    return (await this.state()).freezes;
  }

  private key(name: string): string {
    return `${this.prefix}{policy}:${name}`;
  }

  private publishKeys(): string[] {
    return ['version', 'content', 'documents', 'newest', 'rollout'].map((name) => this.key(name));
  }

  private routeKeys(route: string): string[] {
    return [this.key('version'), this.key('freezes'), this.key(`frozen:${route}`)];
  }

  private outcome(reply: readonly unknown[], generation: number): 'moved' | 'same' {
    const [kind, there] = reply as [string, string];
    switch (kind) {
      case 'moved':
      case 'same':
        return kind;
      case 'content':
        throw new DocumentRefused(
          kind,
          `generation ${generation} is published with other content (${there.slice(0, 12)}…) and stays as it is: give the changed document the next generation`,
        );
      case 'older':
        throw new DocumentRefused(
          kind,
          `generation ${generation} is older than ${there}, the newest published: give it a generation above ${there}`,
        );
      case 'unknown':
        throw new DocumentRefused(
          kind,
          `generation ${generation} is not published${there === '' ? ', nor is any' : ` (the newest is ${there})`}: publish its policy first`,
        );
      case 'back':
        throw new DocumentRefused(
          kind,
          `generation ${generation} is older than ${there}, which is in force, and lines never move back: publish its content as a newer generation`,
        );
      case 'raced':
        throw new DocumentRefused(
          kind,
          'another rollout was applied meanwhile: look at earmark rollout show, and ask again',
        );
      default:
        throw new Error(`publish.lua replied ${String(kind)}`);
    }
  }

  private async run(script: Script, keys: string[], args: (string | number)[]): Promise<unknown[]> {
    return this.ask(async () => {
      try {
        return (await this.redis.evalsha(script.sha, keys.length, ...keys, ...args)) as unknown[];
      } catch (error) {
        if (!String(error).includes('NOSCRIPT')) throw error;
        return (await this.redis.eval(script.source, keys.length, ...keys, ...args)) as unknown[];
      }
    });
  }

  private async all(transaction: ReturnType<Redis['multi']>): Promise<unknown[]> {
    const replies = (await this.ask(() => transaction.exec())) ?? [];
    return replies.map(([error, value]) => {
      if (error) throw new LedgerUnavailable(error.message);
      return value;
    });
  }

  private async ask<T>(question: () => Promise<T>): Promise<T> {
    ensureOpen(this.closed);
    try {
      return await question();
    } catch (error) {
      throw new LedgerUnavailable(reasonOf(this.redis, error));
    }
  }
}
