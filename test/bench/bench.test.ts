/** A bench of a few hundred requests: its figures say nothing, but everything that it prints is there and adds up. */
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { logMessage, metadataOf } from '../../src/bench/messages.js';
import { missed, targetsOf } from '../../src/bench/report.js';
import { type Round, SHAPES } from '../../src/bench/round.js';
import { encodeCheckAnswer } from '../../src/grpc/codec.js';
import { decodeLogEntries } from '../../src/grpc/log-codec.js';
import { redis8Server } from '../support/binaries.js';

const MAIN = fileURLToPath(new URL('../../dist/bench/main.js', import.meta.url));

interface Ended {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

function bench(...args: readonly string[]): Promise<Ended> {
  const env = { ...process.env, EARMARK_REDIS_SERVER: redis8Server() };
  return new Promise((resolve) =>
    execFile(process.execPath, [MAIN, ...args], { env }, (error, stdout, stderr) =>
      resolve({ code: Number(error?.code ?? 0), stdout, stderr }),
    ),
  );
}

/** The cells of each row of the tables, by the first. */
function rowsOf(text: string): Map<string, string[]> {
  const rows = text.split('\n').filter((line) => line.startsWith('| '));
  const cells = rows.map((line) =>
    line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );
  return new Map(cells.map(([name, ...rest]) => [name!, rest]));
}

describe('a small run', () => {
  let folder: string;
  let ended: Ended;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'earmark-bench-test-'));
    const small = ['--requests', '200', '--rounds', '1'];
    ended = await bench(...small, '--out', join(folder, 'performance.md'));
  }, 120_000);
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  test('writes what it prints', () => {
    expect(ended.stderr).not.toContain('Error');
    expect(readFileSync(join(folder, 'performance.md'), 'utf8')).toBe(ended.stdout);
  });

  test('has every figure, each above nothing', () => {
    const rows = rowsOf(ended.stdout);
    for (const lines of ['one hot line', '10,000 lines']) {
      for (const shape of ['1 × 1', '1 × 32', '4 × 32']) {
        const cells = rows.get(`${shape}, ${lines}`);
        expect(cells, shape).toHaveLength(8);
        const figures = cells!.map((cell) => Number.parseFloat(cell.replaceAll(',', '')));
        expect(Math.min(...figures), `${shape}, ${lines}: ${cells}`).toBeGreaterThan(0);
      }
      expect(rows.get(`a receipt in Redis, ${lines}`)?.[0]).toMatch(
        /^-?[\d,]+ \(-?[\d,]+–-?[\d,]+\) bytes$/,
      );
    }
    for (const state of ['1,000 requests admitted', '1,000 Checks waiting at once']) {
      expect(rows.get(`RSS of earmark, ${state}`)?.[0]).toMatch(/^\d+ \(\d+–\d+\) MiB$/);
    }
    expect(ended.stdout).toMatch(/Everything else on the machine used \d+ % of its cores/);
    expect(ended.stdout).toMatch(/an hour is not in it: -?[\d,]+ bytes a request/);
  });

  test('ends with what it says about the targets', () => {
    expect(ended.code).toBe(/\| missed +\|/.test(ended.stdout) ? 1 : 0);
  });
});

test('an option that makes no sense is refused', async () => {
  const { code, stderr } = await bench('--requests', '0');
  expect(code).toBe(2);
  expect(stderr).toContain('--requests 0: give a whole number from 1');
});

function roundOf(us: number): Round {
  const speed = { ...{ nodeUs: us, redisUs: 0, requestsASecond: 1, p50Ms: 1 }, p99Ms: 1 };
  const busy = { loadUs: 1, nodeBusy: 1, loadBusy: 1, othersBusy: 0 };
  const memory = { receiptHot: 1, receiptSpread: 1, record: 1 };
  return {
    speeds: SHAPES.map(() => ({ ...speed, ...busy })),
    memory: { ...memory, residentAdmitted: 1, residentWaiting: 1 },
    ledger: 'redis',
  };
}

test('a target is missed only where the best round misses it', () => {
  const missing = (...us: number[]) => targetsOf(us.map(roundOf)).filter(missed);
  expect(missing(170, 200, 160)).toEqual([]);
  expect(missing(170, 200, 161).map(({ name }) => name)).toEqual([
    'Node and Redis together, 4 × 32, one hot line',
    'Node and Redis together, 4 × 32, 10,000 lines',
  ]);
  expect(missing(170, 200, 161)[0]?.figure).toEqual({ median: 170, least: 161, most: 200 });
});

test('entries carry the metadata of their answer, whatever its length', () => {
  for (const subject of ['a', 'a-longer-one', 'b']) {
    const metadata = { reservation: 'rl-1', subject };
    const ok = { requestHeaders: [], removed: [], responseHeaders: [] };
    const answer = encodeCheckAnswer({ kind: 'ok', ...ok, metadata });
    const [entry] = decodeLogEntries(logMessage(12, metadataOf(answer)));
    expect(entry?.metadata['envoy.filters.http.ext_authz']).toEqual(metadata);
    expect(entry?.metadata['llm.usage']).toMatchObject({ total_tokens: 200 });
    expect(entry).toMatchObject({ complete: true, status: 200, type: 'DownstreamEnd' });
    expect(entry?.requestId).toMatch(/-000000000012$/);
  }
});
