/** `npm run bench`: what a request costs. Exit code 1: a target is missed, or something did not add up. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { topOf } from './profile.js';
import { documentOf, missed, targetsOf } from './report.js';
import { Bench, measureRound, type Round, SHAPES } from './round.js';

const USAGE = `npm run bench -- [--requests N] [--rounds N] [--out FILE] [--profile]

  --requests N  of each measurement (20,000); fewer than 10,000 say little about 10,000 lines
  --rounds N    of which the median counts (3)
  --out FILE    what is written (docs/performance.md)
  --profile     measures nothing: prints which functions of earmark take the time, at 4 × 32
`;

const DOCUMENT = fileURLToPath(new URL('../../docs/performance.md', import.meta.url));
const PROFILE_LINES = 40;

interface Options {
  readonly requests: number;
  readonly rounds: number;
  readonly out: string;
  readonly profile: boolean;
}

function numberOf(name: string, text: string): number {
  const number = Number(text);
  if (Number.isSafeInteger(number) && number > 0) return number;
  throw new Error(`--${name} ${text}: give a whole number from 1`);
}

function readOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      requests: { type: 'string', default: '20000' },
      rounds: { type: 'string', default: '3' },
      out: { type: 'string', default: DOCUMENT },
      profile: { type: 'boolean', default: false },
    },
  });
  return {
    requests: numberOf('requests', values.requests),
    rounds: numberOf('rounds', values.rounds),
    out: values.out,
    profile: values.profile,
  };
}

const say = (text: string): boolean => process.stderr.write(`bench: ${text}\n`);

async function measure({ requests, rounds, out }: Options): Promise<number> {
  const done: Round[] = [];
  while (done.length < rounds) {
    const round = done.length + 1;
    done.push(await measureRound(requests, (text) => say(`round ${round}: ${text}`)));
  }
  const machine = {
    cores: availableParallelism(),
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    node: process.versions.node,
  };
  const text = documentOf(done, machine, requests);
  writeFileSync(out, text);
  process.stdout.write(text);
  return targetsOf(done).some(missed) ? 1 : 0;
}

async function profile({ requests }: Options): Promise<number> {
  const folder = mkdtempSync(join(tmpdir(), 'earmark-profile-'));
  const shape = SHAPES.at(-1)!;
  try {
    const bench = await Bench.start(['--cpu-prof', `--cpu-prof-dir=${folder}`]);
    try {
      await bench.run(shape, requests);
    } finally {
      await bench.stop();
    }
    const file = readdirSync(folder)[0];
    if (file === undefined) throw new Error('Node wrote no profile');
    const profiled = JSON.parse(readFileSync(join(folder, file), 'utf8'));
    process.stdout.write(`${topOf(profiled, requests, PROFILE_LINES)}\n`);
    return 0;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function main(args: readonly string[]): Promise<number> {
  let options: Options;
  try {
    options = readOptions(args);
  } catch (error) {
    process.stderr.write(`bench: ${(error as Error).message}\n\n${USAGE}`);
    return 2;
  }
  try {
    return await (options.profile ? profile(options) : measure(options));
  } catch (error) {
    say((error as Error).message);
    return 1;
  }
}

process.exitCode = await main(process.argv.slice(2));
