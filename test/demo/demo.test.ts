/** The demo itself, run as a user runs it. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { on, once } from 'node:events';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { DemoBackend } from '../../src/demo/backend.js';

const SETUP = fileURLToPath(new URL('../setup.mjs', import.meta.url));
const LUA = fileURLToPath(new URL('../../src/ledger/lua', import.meta.url));
const DEMO_MS_MAX = 180_000;

interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'em-'));
});

afterEach(() => rmSync(folder, { recursive: true }));

/** Everything that the demo makes for itself lies in `temporary`. */
function start(temporary: string, args: readonly string[], more: NodeJS.ProcessEnv): ChildProcess {
  const env = { ...process.env, TMPDIR: temporary, ...more };
  return spawn(process.execPath, [SETUP, 'demo', ...args], { env });
}

async function ended(child: ChildProcess): Promise<Ended> {
  const [stdout, stderr] = await Promise.all([text(child.stdout!), text(child.stderr!)]);
  if (child.exitCode === null) await once(child, 'exit');
  return { code: child.exitCode, stdout, stderr };
}

function demo(
  temporary: string,
  args: readonly string[] = [],
  more: NodeJS.ProcessEnv = {},
): Promise<Ended> {
  return ended(start(temporary, args, more));
}

function leftOver(temporary: string): string[] {
  const processes = execFileSync('ps', ['-eo', 'args'], { encoding: 'utf8' }).split('\n');
  return [...readdirSync(temporary), ...processes.filter((line) => line.includes(temporary))];
}

function fresh(name: string): string {
  return mkdtempSync(join(folder, name));
}

test(
  'two at once: both go well, and nothing is left of either',
  async () => {
    const homes = [fresh('a'), fresh('b')];
    const both = await Promise.all(homes.map((home) => demo(home)));
    for (const { code, stdout, stderr } of both) {
      expect(stdout, stderr).toMatch(/^All \d+ as they should be, in \d+ s\.$/m);
      expect(stdout).not.toContain('✗');
      expect(code).toBe(0);
    }
    expect(homes.flatMap(leftOver)).toEqual([]);
  },
  DEMO_MS_MAX,
);

test(
  'where what was not used does not come back, it says so and fails',
  async () => {
    const lua = join(folder, 'lua');
    cpSync(LUA, lua, { recursive: true });
    const file = join(lua, 'include/ending.lua');
    const rule = 'credit(context, line, page, book, before - actual[i])';
    const before = readFileSync(file, 'utf8');
    expect(before).toContain(rule);
    writeFileSync(file, before.replace(rule, ''));
    const home = fresh('home');
    const { code, stdout, stderr } = await demo(home, [], { EARMARK_LUA_DIR: lua });
    expect(stdout).toMatch(/✗ it used 200, and the 400 .* came back/);
    expect(stdout).toMatch(/^\d+ of \d+ not as they should be$/m);
    expect(stderr).toContain('-- envoy a');
    expect(stderr).not.toContain('work-in-progress');
    expect(code).toBe(1);
    expect(leftOver(home)).toEqual([]);
  },
  DEMO_MS_MAX,
);

test(
  'before a backend of the user; --keep leaves it running until Ctrl-C, with lines to try',
  async () => {
    const home = fresh('home');
    const backend = await DemoBackend.start();
    const url = `http://127.0.0.1:${backend.port}/v1`;
    const child = start(home, ['--keep', '--backend', url], {});
    const end = ended(child);
    try {
      const told = await tellingLines(child);
      const { length } = backend.executions;
      const gateway = / (http:\/\/\S+\/v1\/chat\/completions) /.exec(told)![1]!;
      const headers = [...told.matchAll(/-H '([^:]+): ([^']+)'/g)].map(
        ([, name, value]): [string, string] => [name!, value!],
      );
      const body = /-d '([^']+)'/.exec(told)![1]!;
      const ask = () => fetch(gateway, { method: 'POST', headers, body });
      expect((await ask()).status).toBe(200);
      expect((await ask()).status).toBe(409);
      expect(backend.executions.length).toBe(length + 1);
      const metrics = await fetch(/curl (http\S+\/metrics)/.exec(told)![1]!);
      expect(await metrics.text()).toContain('earmark_checks_total');
    } finally {
      child.kill('SIGINT');
      await end;
      backend.stop();
    }
    const { code, stdout } = await end;
    expect(stdout).toMatch(/^All \d+ as they should be/m);
    expect(code).toBe(0);
    expect(leftOver(home)).toEqual([]);
  },
  DEMO_MS_MAX,
);

test('where nothing is at the URL it says so, and what to do', async () => {
  const backend = await DemoBackend.start();
  const url = `http://127.0.0.1:${backend.port}/`;
  backend.stop();
  const { code, stderr } = await demo(fresh('home'), ['--backend', url]);
  expect(stderr).toContain(
    `nothing answers at ${url} (ECONNREFUSED): start the server, or correct --backend`,
  );
  expect(code).toBe(1);
});

/** What it has said once the lines to try are there. */
async function tellingLines(child: ChildProcess): Promise<string> {
  let told = '';
  for await (const data of on(child.stdout!, 'data', { close: ['close'] })) {
    told += data;
    if (told.includes('audit --config')) return told;
  }
  throw new Error(`no lines to try: ${told}`);
}

test.each([
  [['--model', 'x'], '--model needs --backend'],
  [['--backend', 'ftp://x'], '--backend ftp://x: give http(s)://host:port'],
  [['--nothing'], '--nothing'],
])('%j is a usage error', async (args, message) => {
  const { code, stderr } = await demo(folder, args);
  expect(stderr).toContain(message);
  expect(stderr).toContain('npm run demo -- [--keep]');
  expect(code).toBe(2);
});
