/** The demo itself, run as a user runs it. */
import { execFileSync, spawn } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
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
async function demo(
  temporary: string,
  args: readonly string[] = [],
  more: NodeJS.ProcessEnv = {},
): Promise<Ended> {
  const env = { ...process.env, TMPDIR: temporary, ...more };
  const child = spawn(process.execPath, [SETUP, 'demo', ...args], { env });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (data) => {
    stdout += data;
  });
  child.stderr.on('data', (data) => {
    stderr += data;
  });
  const code = await new Promise<number | null>((done) => child.once('close', done));
  return { code, stdout, stderr };
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
    const ended = await Promise.all(homes.map((home) => demo(home)));
    for (const { code, stdout, stderr } of ended) {
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
    const text = readFileSync(file, 'utf8');
    expect(text).toContain(rule);
    writeFileSync(file, text.replace(rule, ''));
    const home = fresh('home');
    const { code, stdout } = await demo(home, [], { EARMARK_LUA_DIR: lua });
    expect(stdout).toMatch(/✗ it used 200, and the 400 .* came back/);
    expect(stdout).toMatch(/^\d+ of \d+ not as they should be$/m);
    expect(code).toBe(1);
    expect(leftOver(home)).toEqual([]);
  },
  DEMO_MS_MAX,
);

test(
  'before a backend of the user',
  async () => {
    const backend = await DemoBackend.start();
    try {
      const url = `http://127.0.0.1:${backend.port}/v1`;
      const { code, stdout, stderr } = await demo(fresh('home'), ['--backend', url]);
      expect(stdout, stderr).not.toContain('✗');
      expect(code).toBe(0);
      expect(backend.executions.length).toBeGreaterThanOrEqual(3);
    } finally {
      backend.stop();
    }
  },
  DEMO_MS_MAX,
);

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
