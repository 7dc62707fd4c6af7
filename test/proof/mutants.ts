/** Runs mutants of the scripts against stories until one of them tells the mutant from the rule. */
import { cpSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Redis } from 'ioredis';
import { Line } from '../model/samples.js';
import { startRedis, type TestRedis } from '../support/redis.js';
import { storiesByHand } from './by-hand.js';
import { differencesIn } from './check.js';
import { type Mutant, mutantsOf } from './mutate.js';
import { connectTo, Scripts } from './scripts.js';
import { type Story, storyOf } from './stories.js';

export const LUA = realpathSync(fileURLToPath(new URL('../../src/ledger/lua', import.meta.url)));

/** A script that takes longer runs for ever. */
const HANGS_MS = 10_000;

export interface Verdict {
  readonly mutant: Mutant;
  /** `stillborn`: no server loads it, or it can't be asked anything. */
  readonly fate: 'killed' | 'stillborn' | 'survived';
  /** The first difference. */
  readonly by: string;
}

/** A server of its own, begun anew when a mutant hangs it. */
export class Arena {
  #server: TestRedis | undefined;
  #redis: Redis | undefined;
  readonly #folder = mkdtempSync(join(tmpdir(), 'earmark-mutants-'));

  async stop(): Promise<void> {
    await this.#drop();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async #drop(): Promise<void> {
    this.#redis?.disconnect();
    await this.#server?.stop();
    this.#redis = undefined;
  }

  async #connection(): Promise<Redis> {
    if (this.#redis === undefined) {
      this.#server = await startRedis();
      this.#redis = connectTo(this.#server.socket);
      await this.#redis.connect();
    }
    return this.#redis;
  }

  /** Stories in which the shipped scripts and the model agree: only they can tell a mutant. */
  async storiesFrom(seed: number, count: number): Promise<{ agreed: Story[]; parted: string[] }> {
    const drawn = Array.from({ length: count }, (_, i) => storyOf(seed + i));
    const stories = [...storiesByHand(), ...drawn];
    const scripts = new Scripts(await this.#connection(), LUA);
    const parted = await differencesIn(scripts, stories);
    await this.#redis!.flushall();
    return { agreed: stories.filter((story) => !parted.has(story)), parted: [...parted.values()] };
  }

  /** The scripts as they are shipped, judged like a mutant. */
  unbroken(stories: readonly Story[]): Promise<Verdict> {
    const source = readFileSync(join(LUA, 'reserve.lua'), 'utf8');
    return this.judge({ name: 'none', file: 'reserve', sort: 'order', source }, stories);
  }

  async judge(mutant: Mutant, stories: readonly Story[]): Promise<Verdict> {
    const folder = join(this.#folder, 'lua');
    cpSync(LUA, folder, { recursive: true });
    writeFileSync(join(folder, `${mutant.file}.lua`), mutant.source);
    const redis = await this.#connection();
    await redis.flushall();
    await redis.script('FLUSH');
    let scripts: Scripts;
    try {
      scripts = new Scripts(redis, folder, HANGS_MS);
      for (const { source } of scripts.sources) await redis.script('LOAD', source);
    } catch (error) {
      return { mutant, fate: 'stillborn', by: (error as Error).message };
    }
    try {
      const [found] = (await differencesIn(scripts, stories, true)).values();
      const by = found ?? (await clockDifference(scripts));
      return { mutant, fate: by === undefined ? 'survived' : 'killed', by: by ?? '' };
    } catch (error) {
      const { message } = error as Error;
      if (message.includes('no answer')) await this.#drop();
      return { mutant, fate: 'killed', by: `the scripts fail: ${message}` };
    }
  }
}

/** Stories bring their own time; without one the ledger's clock is the server's. */
async function clockDifference(scripts: Scripts): Promise<string | undefined> {
  const line = new Line('clock');
  const before = Date.now();
  for (const event of [line.reserve(-1, 'a', 1), line.release(-1, 'a')]) {
    const reply = await scripts.ask('clock', line.empty(), event);
    if (!('line' in reply) || reply.kind !== 'moved') return 'without a time nothing moves';
    const { now } = reply.line;
    if (now < before - 1 || now > Date.now() + 1) return `the ledger's clock says ${now}`;
  }
  return undefined;
}

/** The mutants of one run: all, or every n-th. */
export function mutantsIn(folder = LUA, every = 1, from = 0): Mutant[] {
  return mutantsOf(folder).filter((_, i) => i % every === from);
}
