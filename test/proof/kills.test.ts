/** The server is killed at any instant under load: whatever it acknowledged is there when it is back. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { auditLine } from '../../src/ledger/audit.js';
import { Ledger } from '../../src/ledger/ledger.js';
import { LedgerUnavailable, type Outcome, type Receipt } from '../../src/ledger/types.js';
import { budgetOf, Line, limitTerms, operationOf } from '../model/samples.js';
import { ready } from '../support/ledger.js';
import { startRedis } from '../support/redis.js';
import { until } from '../support/until.js';
import { Random } from './random.js';
import { scale, tell } from './scale.js';

const SEED = Number(process.env.EARMARK_PROOF_SEED ?? Date.now() % 1_000_000);
const KILLS = scale({ short: 3, ci: 20, full: 100 });
const CALLERS = 40;
const LINES = 5;
const budget = budgetOf([limitTerms({ burst: 10 ** 9 })], { holdTtlMs: 3_600_000 });
const folders: string[] = [];

afterAll(() => {
  for (const folder of folders) rmSync(folder, { recursive: true });
});

/** All that was acknowledged, by reservation: the newest receipt; by line: the highest counter. */
class Acknowledged {
  readonly receipts = new Map<string, Receipt>();
  readonly heights = new Map<string, number>();
  count = 0;

  add(tag: string, outcome: Outcome): void {
    this.count += 1;
    this.heights.set(tag, Math.max(outcome.line.seq, this.heights.get(tag) ?? 0));
    if (!('receipt' in outcome) || outcome.receipt === undefined) return;
    const { reservation, seq } = outcome.receipt;
    const known = this.receipts.get(reservation);
    if (known === undefined || seq >= known.seq) this.receipts.set(reservation, outcome.receipt);
  }
}

async function live(ledger: Ledger, caller: number, told: Acknowledged, over: () => boolean) {
  const random = new Random(SEED, caller);
  for (let round = 0; !over(); round++) {
    const line = new Line(`line ${random.below(LINES)}`);
    const { subject, route } = line;
    const { tag } = line.empty();
    const operation = `${caller}-${round}`;
    const key = `${SEED}-${operation}`;
    const admit = line.reserve(0, key, random.between(1, 500), { operation, budget });
    if (admit.op !== 'admit') throw new Error('unreachable');
    const reservation = `rl-${tag}-${admit.id}`;
    const actual = [random.between(0, 700)];
    try {
      told.add(tag, await ledger.admit({ ...admit, subject, route }));
      const settle = { reservation, operation: operationOf(operation), actual };
      told.add(tag, await ledger.settle({ ...settle, grade: 'reported' }));
    } catch (error) {
      if (!(error instanceof LedgerUnavailable)) throw error;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
}

test.each(['always', 'everysec'])(
  `appendfsync %s: ${KILLS} kills, nothing acknowledged is lost (seed ${SEED})`,
  async (fsync) => {
    const folder = mkdtempSync(join(tmpdir(), 'earmark-kills-'));
    folders.push(folder);
    const start = () =>
      startRedis({ folder, args: ['--appendonly', 'yes', '--appendfsync', fsync] });
    let server = await start();
    const ledger = new Ledger({ redis: { path: server.socket }, prefix: 'k:', timeoutMs: 2000 });
    await ready(ledger);
    const told = new Acknowledged();
    const random = new Random(SEED);
    try {
      for (let kill = 0; kill < KILLS; kill++) {
        const before = told.count;
        let over = false;
        const callers = Array.from({ length: CALLERS }, (_, i) =>
          live(ledger, kill * CALLERS + i, told, () => over),
        );
        await until(() => told.count > before + 100, 'there is load', 20_000);
        await new Promise((resolve) => setTimeout(resolve, random.below(60)));
        await server.stop();
        over = true;
        await Promise.all(callers);
        server = await start();
        await until(() => ledger.redis.status === 'ready', 'the ledger is back', 20_000);
        await hold(ledger, told);
      }
      tell(`kills ${fsync}`, { kills: KILLS, acknowledged: told.count, seed: SEED, lost: 0 });
    } finally {
      await ledger.stop();
      await server.stop();
    }
  },
  600_000,
);

async function hold(ledger: Ledger, told: Acknowledged): Promise<void> {
  const kept = new Map<string, Receipt>();
  for (const [tag, height] of told.heights) {
    const [dump] = await ledger.dump(tag);
    expect(dump!.seq).toBeGreaterThanOrEqual(height);
    expect(auditLine(dump!, false).problems).toEqual([]);
    for (const receipt of dump!.receipts) kept.set(receipt.reservation, receipt);
  }
  for (const [reservation, receipt] of told.receipts) {
    const there = kept.get(reservation);
    expect(there?.seq).toBeGreaterThanOrEqual(receipt.seq);
    if (receipt.actual !== undefined) expect(there?.actual).toEqual(receipt.actual);
  }
}
