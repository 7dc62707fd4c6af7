/** Real servers and real earmarks of a test's own, clients that keep count, and what the ledger must say in the end. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { status as code } from '@grpc/grpc-js';
import { Redis } from 'ioredis';
import { expect } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import { auditLine } from '../../src/ledger/audit.js';
import { Ledger } from '../../src/ledger/ledger.js';
import {
  accessLogs,
  checks,
  configure,
  question,
  type Running,
  startEarmark,
  statusOf,
} from '../support/earmark.js';
import { ready } from '../support/ledger.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { until } from '../support/until.js';

const POLICY = `schema: admissionBudget.v1
generation: 1
unmatched: refuse
budgets:
  - route: chat
    subject: request.headers["x-tenant"]
    burst: 1000000000
    maxReservation: 1000
`;
const ROLLOUT = 'schema: rollout.v1\ngeneration: 1\ndefault: { mode: enforce }\n';

/** How long Envoy waits for a Check. */
const PATIENCE_MS = 1000;
/** Tokens that every request uses that was let through. */
const USED = 50;

export interface Answer {
  /** 0: goes on; else what the client gets. */
  readonly status: number;
  /** Envoy gave up waiting. */
  readonly late: boolean;
  readonly metadata: object | undefined;
}

/** A gateway's Envoy, as far as earmark sees it. */
export class Client {
  readonly earmark: Running;
  readonly #checks: ReturnType<typeof checks>;
  readonly #logs: ReturnType<typeof accessLogs>;
  #stream: { write(message: object): void } | undefined;

  constructor(earmark: Running) {
    this.earmark = earmark;
    this.#checks = checks(earmark.envoy);
    this.#logs = accessLogs(earmark.envoy);
  }

  async check(tenant: string, request: string): Promise<Answer> {
    const deadline = Date.now() + PATIENCE_MS;
    try {
      const answer = await this.#checks.call('Check')(question(tenant, request), { deadline });
      const { dynamicMetadata: metadata } = answer as unknown as { dynamicMetadata: object };
      return { status: statusOf(answer), late: false, metadata };
    } catch (error) {
      const late = (error as { code?: number }).code === code.DEADLINE_EXCEEDED;
      return { status: 503, late, metadata: undefined };
    }
  }

  /** The first request that is let through, and its name. */
  async pass(tenant: string): Promise<{ readonly answer: Answer; readonly request: string }> {
    for (let tries = 0; tries < 20; tries++) {
      const request = `${tenant}-${tries}`;
      const answer = await this.check(tenant, request);
      if (answer.status === 0) return { answer, request };
      this.log(answer, request);
    }
    throw new Error(`nothing of ${tenant} was let through`);
  }

  /** The request's end: used where it went on, never sent where it did not. */
  log(answer: Answer, request: string): void {
    this.#stream ??= this.#logs.stream('StreamAccessLogs');
    const metadata = answer.metadata && {
      filterMetadata: { 'envoy.filters.http.ext_authz': answer.metadata },
    };
    const sent = answer.status === 0;
    const entry = {
      commonProperties: {
        ...(metadata === undefined ? {} : { metadata }),
        accessLogType: 'DownstreamEnd',
        ...(sent ? { timeToLastUpstreamRxByte: { seconds: 1 }, upstreamWireBytesSent: 100 } : {}),
        upstreamRequestAttemptCount: sent ? 1 : 0,
      },
      request: { requestMethod: 3, path: '/v1/chat/completions', requestId: request },
      response: {
        responseCode: { value: sent ? 200 : answer.status },
        responseCodeDetails: sent ? 'via_upstream' : 'ext_authz_error',
        responseHeaders: sent
          ? { 'x-usage-input-tokens': '20', 'x-usage-output-tokens': '30' }
          : {},
      },
    };
    this.#stream.write({ httpLogs: { logEntry: [entry] } });
  }

  close(): void {
    this.#checks.close();
    this.#logs.close();
  }
}

/** Requests of many tenants, one after another in each of several loops, until it is told to stop. */
export class Load {
  readonly answers: Answer[] = [];
  readonly #client: () => Client;
  readonly #names: string[];
  readonly #through = new Map<string, number>();
  readonly #loops: Promise<void>[];
  #going = true;
  #number = 0;

  constructor(name: string, client: () => Client, loops = 4) {
    this.#client = client;
    this.#names = Array.from({ length: loops }, (_, loop) => `${name}-${loop}`);
    this.#loops = this.#names.map((tenant) => this.#loop(tenant));
  }

  /** How often each status was answered. */
  get counts(): Record<number, number> {
    const counts: Record<number, number> = {};
    for (const { status } of this.answers) counts[status] = (counts[status] ?? 0) + 1;
    return counts;
  }

  /** Waits until `count` more requests were let through. */
  async passes(count: number, ms = 20_000): Promise<void> {
    const goal = (this.counts[0] ?? 0) + count;
    await until(() => (this.counts[0] ?? 0) >= goal, `${count} requests pass`, ms);
  }

  async stop(): Promise<void> {
    this.#going = false;
    await Promise.all(this.#loops);
  }

  /** Each tenant has spent what its requests used, holds nothing, and adds up. */
  async settles(ledger: Ledger, ms = 30_000): Promise<void> {
    let seen: (string | undefined)[] = [];
    const wanted = this.#names.map((name) => `spent ${USED * (this.#through.get(name) ?? 0)}`);
    const all = async (): Promise<boolean> => {
      seen = await Promise.all(this.#names.map((name) => this.#told(ledger, name)));
      return seen.join() === wanted.join();
    };
    await until(all, 'everything is booked', ms).catch(() => undefined);
    expect(seen).toEqual(wanted);
  }

  /** Nobody has spent what was not used, what is not booked is still held, and it adds up. */
  async isTrue(ledger: Ledger, hint: string): Promise<void> {
    for (const name of this.#names) {
      const { spent, reserved, problems } = await sumsOf(ledger, name);
      const through = this.#through.get(name) ?? 0;
      const missing = through - spent / USED;
      expect(problems, hint).toEqual([]);
      expect(missing, hint).toBeGreaterThanOrEqual(0);
      // A request that got no answer, and whose entry was lost as well, is held too.
      expect(reserved, hint).toBeGreaterThanOrEqual(missing * USED);
    }
  }

  async #told(ledger: Ledger, name: string): Promise<string> {
    const { spent, reserved, problems } = await sumsOf(ledger, name);
    return [`spent ${spent}`, ...(reserved ? [`reserved ${reserved}`] : []), ...problems].join();
  }

  async #loop(tenant: string): Promise<void> {
    while (this.#going) {
      const request = `${tenant}-${++this.#number}`;
      const client = this.#client();
      const answer = await client.check(tenant, request);
      this.answers.push(answer);
      if (answer.status === 0) this.#through.set(tenant, (this.#through.get(tenant) ?? 0) + 1);
      client.log(answer, request);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

interface Sums {
  readonly spent: number;
  readonly reserved: number;
  readonly problems: readonly string[];
}

async function sumsOf(ledger: Ledger, tenant: string): Promise<Sums> {
  const dumps = await ledger.dump(lineTag(tenant, 'chat'));
  const line = dumps.find(({ shadow }) => !shadow);
  if (line === undefined) return { spent: 0, reserved: 0, problems: [] };
  const books = line.pages.flatMap((page) => page.books.map(({ counters }) => counters));
  const sum = (name: 'spent' | 'reserved'): number =>
    books.reduce((total, counters) => total + counters[name], 0);
  const { problems } = auditLine(line, false);
  return { spent: sum('spent'), reserved: sum('reserved'), problems };
}

/** Everything that a test starts, ended with it. */
export class World {
  readonly folder = mkdtempSync(join(tmpdir(), 'earmark-fault-'));
  readonly #ends: (() => unknown)[] = [];

  constructor() {
    writeFileSync(join(this.folder, 'policy.yaml'), POLICY);
    writeFileSync(join(this.folder, 'rollout.yaml'), ROLLOUT);
  }

  /** A server in a folder of its own; started there again it has what it had. */
  async redis(name: string, args: readonly string[] = []): Promise<TestRedis> {
    const folder = join(this.folder, name);
    mkdirSync(folder, { recursive: true });
    const server = await startRedis({ folder, args: ['--appendonly', 'yes', ...args] });
    this.#ends.push(() => server.stop());
    return server;
  }

  async serve(
    ledger: object,
    more: object = {},
    name = 'earmark.yaml',
    environment: Readonly<Record<string, string>> = {},
  ): Promise<Running> {
    const documents = { policy: './policy.yaml', rollout: './rollout.yaml' };
    const settings = { ledger, spool: './spool', ...documents, ...more };
    const earmark = await startEarmark(configure(this.folder, settings, name), false, environment);
    this.#ends.push(async () => {
      earmark.process.kill('SIGCONT');
      earmark.process.kill('SIGKILL');
      await earmark.ended;
    });
    return earmark;
  }

  client(earmark: Running): Client {
    const client = new Client(earmark);
    this.#ends.push(() => client.close());
    return client;
  }

  load(name: string, client: () => Client, loops?: number): Load {
    const load = new Load(name, client, loops);
    this.#ends.push(() => load.stop());
    return load;
  }

  /** A plain connection to a server, to do something to it. */
  admin({ socket }: { readonly socket: string }): Redis {
    const redis = new Redis({ path: socket, replyMapping: 'legacy' });
    redis.on('error', () => {});
    this.#ends.push(() => redis.disconnect());
    return redis;
  }

  /** What a tenant has spent and holds; problems are what does not add up. */
  async sums(ledger: Ledger, tenant: string): Promise<Sums> {
    return sumsOf(ledger, tenant);
  }

  /** Past every earmark, to see what is so. */
  async ledger({ socket }: { readonly socket: string }): Promise<Ledger> {
    const redis = { path: socket };
    const ledger = new Ledger({ redis, prefix: 'earmark:', timeoutMs: 5000 });
    this.#ends.push(() => ledger.stop());
    await ready(ledger);
    return ledger;
  }

  async end(): Promise<void> {
    for (const end of this.#ends.splice(0).reverse()) await end();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

export async function missing({ admin }: Running): Promise<string> {
  const answer = await fetch(`http://${admin}/readyz`);
  const { missing: list } = (await answer.json()) as { missing: string[] };
  return list.join('; ');
}

export function isReady(earmark: Running, ms?: number): Promise<void> {
  return until(async () => (await missing(earmark)) === '', 'earmark is ready', ms);
}
