/** Metrics are what the table says, its page says the same; logs keep secrets out. */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { createLog } from '../../src/telemetry/log.js';
import { METRICS, Metrics } from '../../src/telemetry/metrics.js';

it('counts and shows what it was told', async () => {
  const metrics = new Metrics();
  metrics.count('earmark_checks_total', { route: 'r', answer: 'ok', mode: 'enforce' }, 2);
  metrics.observe('earmark_policy_generation', {}, 7);
  metrics.observe('earmark_policy_generation', {}, 8);
  metrics.observe('earmark_check_seconds', { answer: 'ok' }, 0.003);
  const { type, body } = await metrics.text();
  expect(type).toMatch(/^text\/plain/);
  expect(body).toContain('earmark_checks_total{route="r",answer="ok",mode="enforce"} 2');
  expect(body).toContain('earmark_policy_generation 8');
  expect(body).toContain('earmark_check_seconds_bucket{le="0.005",answer="ok"} 1');
  expect(body).toContain('earmark_check_seconds_bucket{le="0.002",answer="ok"} 0');
  const names = body.match(/^# HELP \S+/gm)!.map((line) => line.slice(7));
  expect(names.filter((name) => !name.startsWith('earmark_'))).toEqual([]);
  expect(names).toEqual(expect.arrayContaining(Object.keys(METRICS)));
});

it('has no label whose values an attacker chooses', () => {
  const labels = new Set(Object.values(METRICS).flatMap(({ labels: of }) => [...of] as string[]));
  for (const unbounded of ['subject', 'key', 'reservation', 'operation', 'model', 'path']) {
    expect(labels).not.toContain(unbounded);
  }
});

it('is documented as it is', () => {
  const page = readFileSync(
    fileURLToPath(new URL('../../docs/metrics.md', import.meta.url)),
    'utf8',
  );
  const rows = page.split('\n').filter((line) => line.startsWith('| `'));
  const cells = rows.map((row) =>
    row
      .split('|')
      .map((cell) => cell.trim())
      .slice(1, -1),
  );
  expect(cells).toEqual(
    Object.entries(METRICS).map(([name, { kind, help, labels }]) => {
      return [`\`${name}\``, kind, labels.join(', '), help];
    }),
  );
});

it('declares nothing that nobody counts', () => {
  const folder = fileURLToPath(new URL('../../src/', import.meta.url));
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' });
  const source = files
    .filter((file) => file.endsWith('.ts') && !file.endsWith('metrics.ts'))
    .map((file) => readFileSync(folder + file, 'utf8'))
    .join('\n');
  expect(Object.keys(METRICS).filter((name) => !source.includes(`'${name}'`))).toEqual([]);
});

function logged(level: string, write: (log: ReturnType<typeof createLog>) => void) {
  const lines: string[] = [];
  write(createLog(level, 'g', { write: (line) => void lines.push(line) }));
  return lines;
}

it('writes one line of JSON, from its level up', () => {
  const lines = logged('warn', (log) => {
    log.info({ a: 1 }, 'not this');
    log.warn({ a: 1 }, 'this');
  });
  expect(lines.length).toBe(1);
  expect(JSON.parse(lines[0]!)).toMatchObject({ level: 'warn', gateway: 'g', a: 1, msg: 'this' });
});

it('never writes a secret', () => {
  const secret = 'hunter2';
  const url = `rediss://user:${secret}@redis.internal:6379/0`;
  const lines = logged('debug', (log) => {
    log.error({ err: new Error(`connect to ${url} failed`) }, `no way to ${url}`);
    log.info({ url, ledger: { password: secret }, config: { ledger: { password: secret } } }, 'x');
    log.info({ headers: { authorization: secret, cookie: secret, 'x-api-key': secret } }, 'x');
    log.info({ authorization: secret, request: { headers: { authorization: secret } } }, 'x');
    log.warn({ url: `redis://:p@ss@${secret}@host` }, 'a password with an @ in it');
  });
  expect(lines.length).toBe(5);
  expect(lines.join('')).not.toContain(secret);
  expect(lines.join('')).toContain('redis.internal:6379');
});
