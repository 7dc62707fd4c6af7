/** What docker-compose.yml and the Dockerfile say, done without containers: the same files, commands and settings. */
import { type ChildProcess, spawn } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse } from 'yaml';
import { envoyBinary, valkeyServer } from '../support/binaries.js';
import { until } from '../support/until.js';

const root = fileURLToPath(new URL('../..', import.meta.url));
const read = (file: string): string => readFileSync(join(root, file), 'utf8');

interface Service {
  readonly command?: string[];
  readonly entrypoint?: string[];
  readonly environment?: Record<string, string>;
  readonly volumes?: string[];
  readonly ports?: string[];
}

const compose = parse(read('docker-compose.yml')) as { services: Record<string, Service> };
const dockerfile = read('Dockerfile').replaceAll('\\\n', ' ').split('\n');
const lastStage = dockerfile.slice(dockerfile.findLastIndex((line) => line.startsWith('FROM ')));

/** The words of the last instruction of this name. */
function instruction(name: string): string[] {
  const line = lastStage.findLast((one) => one.startsWith(`${name} `))!.slice(name.length + 1);
  return line.startsWith('[') ? (JSON.parse(line) as string[]) : line.split(' ');
}

let folder = '';
const children: ChildProcess[] = [];
const said: string[] = [];
/** Ports of the files, and those that stand in for them here. */
const ports = new Map<string, string>();

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'earmark-compose-'));
  for (const port of ['10000', '9901', '9191', '9192', '6379', '8080']) {
    ports.set(port, String(await freePort()));
  }
  buildImage(join(folder, 'app'));
});
afterAll(async () => {
  for (const child of children) child.kill('SIGKILL');
  rmSync(folder, { recursive: true });
});

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** The last stage: exactly what it copies, and of node_modules what is no tool. */
function buildImage(app: string): void {
  mkdirSync(app);
  for (const line of lastStage.filter((one) => one.startsWith('COPY '))) {
    const [from, to] = line.split(' ').filter((word) => !/^(COPY|--)/.test(word)) as [
      string,
      string,
    ];
    const source = from.replace(/^\/app\//, '');
    if (source === 'node_modules') linkPackages(join(app, to));
    else if (from !== '/state') copy(join(root, source), join(app, to));
  }
  mkdirSync(join(folder, 'state'));
}

function copy(from: string, to: string): void {
  mkdirSync(dirname(to), { recursive: true });
  cpSync(from, to, { recursive: true });
}

/** As `npm prune --omit=dev` leaves them. */
function linkPackages(folder: string): void {
  const { packages } = JSON.parse(read('package-lock.json')) as {
    packages: Record<string, { dev?: boolean; optional?: boolean }>;
  };
  for (const [path, { dev, optional }] of Object.entries(packages)) {
    const name = path.replace('node_modules/', '');
    if (path === '' || dev || name.includes('node_modules/')) continue;
    if (optional && !existsSync(join(root, path))) continue;
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    symlinkSync(join(root, path), join(folder, name));
  }
}

/** A text of the files with the places and ports of this machine. */
function here(text: string): string {
  const places = text
    .replaceAll('/nodejs/bin/node', process.execPath)
    .replaceAll('/etc/earmark/', `${folder}/etc/`)
    .replaceAll('/var/lib/earmark', `${folder}/state`)
    .replaceAll('/app/', `${folder}/app/`)
    .replaceAll('/tmp/sidecar', `${folder}/sidecar`)
    .replaceAll('exec envoy ', `exec ${envoyBinary()} --concurrency 1 --disable-hot-restart `)
    .replaceAll('0.0.0.0', '127.0.0.1')
    .replace(/^valkey-server$/, valkeyServer());
  return [...ports].reduce((moved, [port, other]) => moved.replaceAll(port, other), places);
}

/** Its files where its volumes say, then its command. */
function up(name: string): ChildProcess {
  const service = compose.services[name]!;
  for (const volume of service.volumes ?? []) {
    const [from, to] = volume.split(':') as [string, string];
    if (!from.startsWith('./')) continue;
    mkdirSync(dirname(here(to)), { recursive: true });
    writeFileSync(here(to), here(readFileSync(join(root, from), 'utf8')));
  }
  const image = name === 'earmark' ? { entrypoint: instruction('ENTRYPOINT') } : {};
  const entrypoint = service.entrypoint ?? image.entrypoint ?? [];
  const command = service.command ?? (name === 'earmark' ? instruction('CMD') : []);
  const [file, ...args] = [...entrypoint, ...command].map(here) as [string, ...string[]];
  const given = Object.entries(service.environment ?? {}).map(([key, value]) => [key, here(value)]);
  const child = spawn(file, args, {
    cwd: folder,
    env: { PATH: process.env['PATH'], NODE_ENV: 'production', ...Object.fromEntries(given) },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  child.stdout.on('data', (data) => said.push(`${name}: ${data}`));
  child.stderr.on('data', (data) => said.push(`${name}: ${data}`));
  children.push(child);
  return child;
}

const ask = (path: string, port: string, body?: object) =>
  fetch(`http://127.0.0.1:${ports.get(port)}${path}`, {
    ...(body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) }),
    headers: { 'x-tenant': 'acme', 'content-type': 'application/json' },
  });

test('what the Dockerfile copies gets past .dockerignore', () => {
  const ignored = read('.dockerignore')
    .split('\n')
    .filter((line) => line !== '');
  expect(ignored[0]).toBe('*');
  const sent = ignored.slice(1).map((line) => line.replace('!', ''));
  const copied = dockerfile
    .filter((line) => line.startsWith('COPY ') && !line.includes('--from'))
    .flatMap((line) => line.split(' ').slice(1, -1));
  expect(copied.filter((file) => !sent.includes(file))).toEqual([]);
  expect(sent.filter((file) => !existsSync(join(root, file)))).toEqual([]);
});

test('the image runs as nobody, without a shell or build tools', () => {
  expect(lastStage[0]).toMatch(/^FROM gcr\.io\/distroless\/nodejs20/);
  expect(instruction('USER')).toEqual(['65532:65532']);
  expect(lastStage.some((line) => line.startsWith('RUN '))).toBe(false);
});

test('all four start, and a request is reserved, answered and booked', async () => {
  const started = Object.keys(compose.services).map(up);
  const why = () => said.join('').slice(-3000);
  try {
    await until(async () => (await ask('/readyz', '9192')).ok, 'earmark is ready', 15_000);
    let answer = await ask('/', '9192');
    const body = { model: 'demo', messages: [] };
    await until(async () => {
      answer = await ask('/v1/chat/completions', '10000', body);
      return answer.status === 200;
    }, 'a request goes through');
    expect(answer.headers.get('x-ratelimit-limit-tokens')).toBe('1000');
    await until(async () => {
      const metrics = await (await ask('/metrics', '9192')).text();
      return /earmark_evidence_total\{route="chat",outcome="reported"\} [1-9]/.test(metrics);
    }, 'it is booked');
  } catch (error) {
    throw new Error(why(), { cause: error });
  }
  expect(started.every(({ exitCode }) => exitCode === null)).toBe(true);
  expect(existsSync(join(folder, 'state/spool'))).toBe(true);
  // What compose publishes are ports that something listens on.
  for (const port of compose.services['envoy']!.ports!) {
    expect(ports.has(basename(port.split(':').at(-1)!))).toBe(true);
  }
  const [earmark] = started.slice(Object.keys(compose.services).indexOf('earmark'));
  earmark!.kill('SIGTERM');
  await until(() => earmark!.exitCode !== null, 'earmark ends', 15_000);
  expect(earmark!.exitCode, why()).toBe(0);
}, 60_000);
