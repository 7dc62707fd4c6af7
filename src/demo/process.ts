/** The demo's child processes: each writes to a log of its own and is ended by its pid. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:net';

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

/** A port that was free a moment ago. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

/** A child process of the demo's own. */
export class Process {
  readonly name: string;
  readonly #log: string;
  readonly #child: ChildProcess;
  readonly #ended: Promise<void>;

  constructor(name: string, command: string, args: readonly string[], log: string) {
    this.name = name;
    this.#log = log;
    const out = openSync(log, 'a');
    this.#child = spawn(command, args, { stdio: ['ignore', out, out] });
    closeSync(out);
    this.#ended = new Promise((resolve) => {
      this.#child.once('exit', () => resolve());
      this.#child.once('error', () => resolve());
    });
  }

  get running(): boolean {
    return (
      this.#child.pid !== undefined &&
      this.#child.exitCode === null &&
      this.#child.signalCode === null
    );
  }

  /** Throws once the process has ended: nobody needs to wait for it any longer. */
  mustRun(): void {
    if (!this.running) throw new Error(`${this.name} ended:\n${this.lastLines(10)}`);
  }

  lastLines(count: number): string {
    return readFileSync(this.#log, 'utf8').trimEnd().split('\n').slice(-count).join('\n');
  }

  /** Ends it; what doesn't end in time is killed. */
  async end(signal: 'SIGTERM' | 'SIGKILL' = 'SIGTERM', patienceMs = 12_000): Promise<void> {
    if (!this.running) return;
    this.#child.kill(signal);
    const kill = setTimeout(() => this.#child.kill('SIGKILL'), patienceMs);
    await this.#ended;
    clearTimeout(kill);
  }
}
