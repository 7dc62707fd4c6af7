/** A real server of the test's own: on a Unix socket in a folder of its own, gone with the test. */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { anyServer } from './binaries.js';

export interface TestRedis {
  readonly socket: string;
  readonly folder: string;
  readonly process: ChildProcess;
  stop(): Promise<void>;
}

async function answers(socket: string): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = connect(socket);
    probe.on('error', () => resolve(false));
    probe.on('data', (data) => {
      probe.destroy();
      resolve(data.toString().startsWith('+PONG'));
    });
    probe.on('connect', () => probe.write('PING\r\n'));
  });
}

/** Starts a server; `args` are added to its command line. `folder` keeps the data of an earlier one. */
export async function startRedis(
  options: { binary?: string; args?: readonly string[]; folder?: string } = {},
): Promise<TestRedis> {
  const folder = options.folder ?? mkdtempSync(join(tmpdir(), 'earmark-redis-'));
  const socket = join(folder, 's');
  const base = ['--port', '0', '--unixsocket', socket, '--dir', folder, '--save', ''];
  const args = [...base, '--maxmemory-policy', 'noeviction', ...(options.args ?? [])];
  const child = spawn(options.binary ?? anyServer(), args, { stdio: 'ignore' });
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  for (let tries = 0; !(await answers(socket)); tries++) {
    if (child.exitCode !== null || tries > 1000) throw new Error('the test server did not start');
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  return {
    socket,
    folder,
    process: child,
    async stop() {
      child.kill('SIGKILL');
      await ended;
      if (options.folder === undefined) rmSync(folder, { recursive: true, force: true });
    },
  };
}
