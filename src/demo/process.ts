/** The demo's child processes, and waiting for what they do. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';

/** An earmark answers what is under way before it ends. */
const PATIENCE_MS = 12_000;

/** What Envoy says at every start of fields that its makers still work on: no trace of what went wrong. */
const NOTICE = /work-in-progress|no configured limit to the number of allowed active downstream/;

export const sleep = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Asks until there is an answer; throws, with `what` in its message, when there is none in time. */
export async function eventually<T>(
  what: string,
  ask: () => Promise<T | undefined> | T | undefined,
  timeoutMs = 15_000,
): Promise<T> {
  const end = performance.now() + timeoutMs;
  for (;;) {
    const answer = await ask();
    if (answer !== undefined) return answer;
    if (performance.now() > end) throw new Error(`${what}: not within ${timeoutMs / 1000} s`);
    await sleep(25);
  }
}

/** Settings of an earmark that the user runs are none of the demo's; only where the scripts are read from is. */
export function environment(): NodeJS.ProcessEnv {
  const keep = ([name]: [string, unknown]): boolean =>
    !name.startsWith('EARMARK_') || name === 'EARMARK_LUA_DIR';
  return Object.fromEntries(Object.entries(process.env).filter(keep));
}

/** A port that was free a moment ago. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

/** A child process that writes to a log of its own. */
export class Process {
  readonly name: string;
  readonly #log: string;
  readonly #child: ChildProcess;
  readonly #ended: Promise<void>;

  constructor(name: string, command: string, args: readonly string[], log: string) {
    this.name = name;
    this.#log = log;
    const out = openSync(log, 'a');
    // A process group of its own: Ctrl-C in a terminal is for the demo, which ends the others in order.
    this.#child = spawn(command, args, {
      stdio: ['ignore', out, out],
      env: environment(),
      detached: true,
    });
    closeSync(out);
    this.#ended = new Promise((resolve) => {
      this.#child.once('exit', () => resolve());
      this.#child.once('error', () => resolve());
    });
  }

  /** Throws once the process has ended: nobody needs to wait for it any longer. */
  mustRun(): void {
    if (!this.#running) throw new Error(`${this.name} ended:\n${this.lastLines(10)}`);
  }

  lastLines(count: number): string {
    const lines = readFileSync(this.#log, 'utf8').trimEnd().split('\n');
    return lines
      .filter((line) => !NOTICE.test(line))
      .slice(-count)
      .join('\n');
  }

  /** Ends it by its pid; what doesn't end in time is killed. */
  async end(signal: 'SIGTERM' | 'SIGKILL' = 'SIGTERM'): Promise<void> {
    if (!this.#running) return;
    this.#child.kill(signal);
    const kill = setTimeout(() => this.#child.kill('SIGKILL'), PATIENCE_MS);
    await this.#ended;
    clearTimeout(kill);
  }

  get #running(): boolean {
    const { pid, exitCode, signalCode } = this.#child;
    return pid !== undefined && exitCode === null && signalCode === null;
  }
}

/** Processes that end together, the youngest first. */
export class ProcessGroup {
  readonly folder: string;
  readonly #processes: Process[] = [];
  #ended = false;

  /** Each one's log is a file of this folder. */
  constructor(folder: string) {
    this.folder = folder;
  }

  start(name: string, command: string, args: readonly string[]): Process {
    if (this.#ended) throw new Error(`${name} is not started: the demo has been ended`);
    const log = join(this.folder, `${name.replaceAll(' ', '-')}.log`);
    const started = new Process(name, command, args, log);
    this.#processes.push(started);
    return started;
  }

  async end(): Promise<void> {
    this.#ended = true;
    for (let last = this.#processes.pop(); last; last = this.#processes.pop()) await last.end();
  }

  /** The end of each log, for a reader who wants to know what went wrong. */
  lastLines(count: number): string {
    const each = this.#processes.map((one) => `-- ${one.name}\n${one.lastLines(count)}`);
    return each.join('\n');
  }
}
