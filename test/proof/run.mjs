/**
 * The proof: `node test/setup.mjs proof [--short|--ci] [--cases N] [--seed N] [--only LAYER]`. Runs every layer at the
 * size that is asked for (a million stories and a hundred kills by default), and writes docs/proof.md and
 * .tools/proof/proof.json from what the layers themselves have counted.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));
const figures = join(root, '.tools/proof');

/** What each layer runs, shows and cannot show. */
const LAYERS = [
  {
    name: 'worlds',
    files: ['test/model/world.test.ts'],
    shows:
      'Every transition of small closed worlds is the same on the scripts and in the model: reply, counters, receipts.',
    not: 'Nothing beyond their few reservations, amounts and instants.',
  },
  {
    name: 'stories',
    files: ['test/proof/million.test.ts', 'test/model/random.test.ts'],
    shows:
      'Random stories (duplicates, late and repeated questions, clocks that stand still, jump and step back, every boundary, generations, epochs, plans, limits, shadow, folding): every reply and, at the end, the whole line as the model has it.',
    not: 'A sample: a rule that needs more than its 19 operations on one line is not reached.',
  },
  {
    name: 'mutants',
    files: ['test/proof/mutants.test.ts'],
    shows: 'The rules of the scripts broken one by one: the stories notice.',
    not: 'Those that survive are listed; faults of more than one place at once are not tried.',
  },
  {
    name: 'concurrency',
    files: ['test/proof/concurrent.test.ts', 'test/proof/sidecars.test.ts', 'test/fault'],
    shows:
      'Three gateways, many callers, networks that cut, delay, drop and double: each line has one history, it is linearizable, and answers that were lost are found to have run once or not at all.',
    not: 'One machine; the order across lines is not claimed.',
  },
  {
    name: 'durability',
    files: ['test/proof/kills.test.ts', 'test/proof/failover.test.ts', 'test/fault/redis.test.ts'],
    shows:
      'A server killed under load has all it acknowledged; a replica that lost writes is seen, its lines are frozen, and what was used is booked.',
    not:
      'Power loss and broken disks. A line that no living gateway had seen, or one that has outgrown what was lost ' +
      'before a gateway asks again, is not noticed.',
  },
  {
    name: 'envoy',
    files: ['test/envoy'],
    shows:
      'A real Envoy with clients and backends that misbehave, and 49 recorded endings of requests, also brought about again and audited: each is booked as what it was.',
    not: 'Other versions of Envoy.',
  },
];

function options(args) {
  const found = { scale: 'full', env: {}, only: undefined };
  while (args.length > 0) {
    const option = args.shift();
    if (option === '--short' || option === '--ci') found.scale = option.slice(2);
    else if (option === '--cases') found.env.EARMARK_PROOF_CASES = args.shift();
    else if (option === '--seed') found.env.EARMARK_PROOF_SEED = args.shift();
    else if (option === '--only') found.only = args.shift();
    else usage(`no option ${option}`);
  }
  const known = LAYERS.map(({ name }) => name);
  if (found.only !== undefined && !known.includes(found.only)) usage(`--only ${known.join('|')}`);
  return found;
}

function usage(message) {
  process.stderr.write(
    `proof: ${message}\nusage: proof [--short|--ci] [--cases N] [--seed N] [--only LAYER]\n`,
  );
  process.exit(2);
}

/** Without a file to run vitest would run all there are. */
function isThere({ files }) {
  return files.some((file) => existsSync(join(root, file)));
}

function run(layer, { scale, env }, seed) {
  const files = layer.files.filter((file) => existsSync(join(root, file)));
  const began = performance.now();
  const vitest = join(root, 'node_modules/vitest/vitest.mjs');
  const { status } = spawnSync(process.execPath, [vitest, 'run', ...files], {
    cwd: root,
    stdio: 'inherit',
    env: {
      ...process.env,
      EARMARK_PROOF: scale,
      EARMARK_PROOF_SEED: String(seed),
      EARMARK_PROOF_FIGURES: figures,
      EARMARK_SEED: String(seed),
      ...(scale === 'short' ? {} : { EARMARK_WORLDS: 'all', EARMARK_CASES: '20000' }),
      ...env,
    },
  });
  return {
    name: layer.name,
    passed: status === 0,
    seconds: Math.round((performance.now() - began) / 1000),
  };
}

function gitCommit() {
  try {
    return execFileSync('git', ['rev-parse', '--short', 'HEAD'], {
      cwd: root,
      encoding: 'utf8',
    }).trim();
  } catch {
    return 'unknown';
  }
}

function readFigures() {
  const all = {};
  for (const file of readdirSync(figures).filter((name) => name.endsWith('.json'))) {
    all[file.slice(0, -5)] = JSON.parse(readFileSync(join(figures, file), 'utf8'));
  }
  return all;
}

function page({ scale, seed, commit, results, figures: found }) {
  const { stories, mutants } = found;
  const lines = [
    '# The proof',
    '',
    `Written by \`npm run proof\`; its last run: ${scale} size, seed ${seed}, commit ${commit}, Node ${process.versions.node}.`,
    '',
    '| layer | passed | seconds | it shows | it cannot show |',
    '| --- | --- | --- | --- | --- |',
    ...LAYERS.map(({ name, shows, not }) => {
      const result = results.find((one) => one.name === name);
      const passed = result === undefined ? 'not run' : result.passed ? 'yes' : '**no**';
      return `| ${name} | ${passed} | ${result?.seconds ?? ''} | ${shows} | ${not} |`;
    }),
    '',
    'Claimed, for one ledger on one server: no unit is lost or made, no key has two reservations, no refund is booked twice, no debt is missed, no unknown use',
    'counts as unused, and nothing is admitted while a line has debt. Not claimed: an order across lines, and anything of a server that loses what it acknowledged',
    'but that it is noticed, as far as said above. Nobody independent has looked at it yet.',
    '',
  ];
  if (stories !== undefined) {
    lines.push('## Stories', '');
    lines.push(
      `${stories.stories} stories, ${stories.operations} operations, ${stories.parted} in which model and scripts part.`,
      '',
    );
    lines.push('| answer | times |', '| --- | ---: |');
    for (const [kind, count] of Object.entries(stories.kinds)) lines.push(`| ${kind} | ${count} |`);
    lines.push('');
  }
  if (mutants !== undefined) {
    lines.push('## Mutants', '');
    lines.push(`${mutants.killed} of ${mutants.mutants} killed by ${mutants.stories} stories.`, '');
    lines.push('| rule | killed |', '| --- | ---: |');
    for (const [name, count] of Object.entries(mutants.files)) lines.push(`| ${name} | ${count} |`);
    lines.push('', 'Survivors:', '', '```');
    lines.push(...mutants.survivors, '```', '');
  }
  const rest = Object.entries(found).filter(
    ([name]) => !['stories', 'mutants', 'proof'].includes(name),
  );
  if (rest.length > 0) {
    lines.push('## More figures', '', '| what | figures |', '| --- | --- |');
    for (const [name, values] of rest) {
      const text = Object.entries(values).map(([key, value]) => `${key} ${value}`);
      lines.push(`| ${name} | ${text.join(', ')} |`);
    }
    lines.push('');
  }
  return lines.join('\n');
}

const chosen = options(process.argv.slice(2));
const seed = Number(chosen.env.EARMARK_PROOF_SEED ?? Date.now() % 1_000_000_000);
const commit = gitCommit();
process.stdout.write(`proof: ${chosen.scale}, seed ${seed}, commit ${commit}\n`);
rmSync(figures, { recursive: true, force: true });
mkdirSync(figures, { recursive: true });
const layers = LAYERS.filter(({ name }) => chosen.only === undefined || name === chosen.only);
const results = layers.filter(isThere).map((layer) => run(layer, chosen, seed));
const report = { scale: chosen.scale, seed, commit, results, figures: readFigures() };
writeFileSync(join(figures, 'proof.json'), JSON.stringify(report, null, 2));
// A part says nothing of the whole, and a smaller run nothing that the page of a full one doesn't say.
const file = join(root, 'docs/proof.md');
if (chosen.only === undefined && (chosen.scale === 'full' || !existsSync(file))) {
  writeFileSync(file, page(report));
  const biome = join(root, 'node_modules/@biomejs/biome/bin/biome');
  spawnSync(process.execPath, [biome, 'format', '--write', 'docs/proof.md'], { cwd: root });
}
for (const { name, passed, seconds } of results) {
  process.stdout.write(`proof: ${name} ${passed ? 'passed' : 'FAILED'} in ${seconds} s\n`);
}
const missing = layers.filter((layer) => !isThere(layer));
for (const { name } of missing) process.stdout.write(`proof: ${name} has no tests yet\n`);
process.exit(missing.length === 0 && results.every(({ passed }) => passed) ? 0 : 1);
