/** What the README tells an operator to write and to run, written and run. */
import { execFile } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { DemoBackend } from '../../src/demo/backend.js';
import { startEnvoy } from '../../src/demo/envoy.js';
import { eventually, freePort, ProcessGroup } from '../../src/demo/process.js';

const root = fileURLToPath(new URL('../..', import.meta.url));
const readme = readFileSync(join(root, 'README.md'), 'utf8');
const MAIN = join(root, 'dist/main.js');

/** The fenced blocks of a language, in their order. */
function blocks(language: string): string[] {
  const fence = new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\`$`, 'gm');
  return [...readme.matchAll(fence)].map((match) => match[1]!);
}

/** The README's line that begins so; each may stand there once. */
function command(start: string): string {
  const lines = blocks('sh').flatMap((block) => block.trimEnd().split('\n'));
  const found = lines.filter((line) => line.startsWith(start));
  expect(found, start).toHaveLength(1);
  return found[0]!;
}

/** Of a curl line: where to, which headers, which body. */
function curl(line: string): { path: string; headers: Record<string, string>; body: string } {
  const path = /http:\/\/127\.0\.0\.1:\d+(\/\S+)/.exec(line)![1]!;
  const headers = [...line.matchAll(/-H '([^:]+): ([^']+)'/g)].map((match) => [match[1], match[2]]);
  return { path, headers: Object.fromEntries(headers), body: / -d '([^']+)'/.exec(line)![1]! };
}

let folder: string;
let admin: string;
let processes: ProcessGroup;
let backend: DemoBackend;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'earmark-readme-'));
  admin = `127.0.0.1:${await freePort()}`;
  processes = new ProcessGroup(folder);
  backend = await DemoBackend.start();
  const [settings, policy, rollout] = blocks('yaml') as [string, string, string];
  // The only differences: addresses that are free.
  const listen = settings
    .replace('127.0.0.1:9191', `unix:${join(folder, 'envoy.sock')}`)
    .replace('127.0.0.1:9192', admin);
  writeFileSync(join(folder, 'earmark.yaml'), listen);
  writeFileSync(join(folder, 'policy.yaml'), policy);
  writeFileSync(join(folder, 'rollout.yaml'), rollout);
});

afterAll(async () => {
  await processes.end();
  backend.stop();
  rmSync(folder, { recursive: true, force: true });
});

function argumentsOf(start: string): string[] {
  const words = command(start).split(' ');
  expect(words.slice(0, 2)).toEqual(['npx', 'earmark']);
  return words.slice(2);
}

function earmark(args: readonly string[]): Promise<{ code: number; stdout: string }> {
  return new Promise((resolve) => {
    execFile(process.execPath, [MAIN, ...args], { cwd: folder }, (error, stdout, stderr) => {
      resolve({ code: Number(error?.code ?? 0), stdout: stdout + stderr });
    });
  });
}

test('an operator who follows the README ends with a settled reservation', async () => {
  const validated = await earmark(argumentsOf('npx earmark policy validate'));
  expect(validated, validated.stdout).toMatchObject({ code: 0 });

  const serve = argumentsOf('npx earmark serve').map((word) =>
    word === 'earmark.yaml' ? join(folder, word) : word,
  );
  const serving = processes.start('earmark', process.execPath, [MAIN, ...serve]);
  await eventually('earmark is ready', async () => {
    serving.mustRun();
    const answer = await fetch(`http://${admin}/readyz`).catch(() => undefined);
    return answer?.ok || undefined;
  });
  const upstream = {
    host: '127.0.0.1',
    port: backend.port,
    protocol: 'http/1.1',
    tls: false,
  } as const;
  const envoy = await startEnvoy('a', processes, upstream, join(folder, 'envoy.sock'));
  const question = curl(command('curl -i http://127.0.0.1:10000'));
  const ask = (more: Record<string, string>): Promise<Response> =>
    fetch(`http://127.0.0.1:${envoy}${question.path}`, {
      method: 'POST',
      headers: { ...question.headers, ...more },
      body: question.body,
    });

  // In shadow nothing is refused, whatever it would cost.
  const shadow = await ask({});
  expect(shadow.status).toBe(200);

  const applied = await earmark(argumentsOf('npx earmark rollout apply'));
  expect(applied, applied.stdout).toMatchObject({ code: 0 });
  await eventually('enforced', async () => {
    const answer = await ask({ 'x-demo-usage': 'none' });
    expect(answer.status).toBe(200);
    return answer.headers.get('x-ratelimit-limit-tokens') === '60000' || undefined;
  });
  const { reservation, operation } = backend.executions.at(-1)!;
  const show = argumentsOf('npx earmark reservation show').map((word) =>
    word === 'rl-…' ? reservation : word,
  );
  await eventually('unknown', async () => {
    return (await earmark(show)).stdout.includes('USAGE_UNKNOWN') || undefined;
  });
  const receipt = curl(command('curl http://127.0.0.1:9192'));
  const body = receipt.body.replace('rl-…', reservation).replace('…', operation);
  const settled = await fetch(`http://${admin}${receipt.path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
    body,
  });
  expect(settled.status).toBe(200);
  expect((await earmark(show)).stdout).toMatch(/state +SETTLED/);
  const audited = await earmark(argumentsOf('npx earmark audit'));
  expect(audited, audited.stdout).toMatchObject({ code: 0 });
}, 60_000);

test('every file that it links to is there', () => {
  const files = ['README.md', 'docs/architecture.md'];
  const missing = files.flatMap((file) =>
    [...readFileSync(join(root, file), 'utf8').matchAll(/\]\(([^)#:]+)\)/g)]
      .map((match) => join(dirname(file), match[1]!))
      .filter((target) => !existsSync(join(root, target))),
  );
  expect(missing).toEqual([]);
});
