/** Could the stories see a broken rule at all? Each rule of the scripts is broken, and they must. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Arena, mutantsIn, type Verdict } from './mutants.js';
import { Random } from './random.js';
import { SCALE, tell } from './scale.js';
import type { Story } from './stories.js';

const SEED = Number(process.env.EARMARK_PROOF_SEED ?? Date.now() % 1_000_000);
/** The short form takes some, by the seed. */
const SOME = 12;
/** Of all mutants, so many may be no different from the rule. */
const SURVIVE = SCALE === 'short' ? 0.4 : 0.1;
const STORIES = SCALE === 'short' ? 400 : 1200;

const arena = new Arena();
let stories: Story[];

beforeAll(async () => {
  stories = (await arena.storiesFrom(1, STORIES)).agreed;
}, 120_000);
afterAll(() => arena.stop());

/** A rule that no honest test could miss, broken by hand: were it to live, the arena itself would be broken. */
test('a reserve that takes nothing is killed, and the rule itself is not', async () => {
  const named = mutantsIn().find(({ name }) =>
    /^reserve:.*dropped assignment: book\.available/.test(name),
  );
  expect((await arena.judge(named!, stories)).fate).toBe('killed');
  expect((await arena.unbroken(stories)).fate).toBe('survived');
});

test(`mutants of the scripts are killed (seed ${SEED})`, async () => {
  const all = mutantsIn();
  expect(all.length).toBeGreaterThan(300);
  const some = SCALE === 'short' ? new Random(SEED).shuffled(all).slice(0, SOME) : all;
  const verdicts: Verdict[] = [];
  for (const mutant of some) verdicts.push(await arena.judge(mutant, stories));
  const born = verdicts.filter(({ fate }) => fate !== 'stillborn');
  const survivors = born.filter(({ fate }) => fate === 'survived');
  tell('mutants', {
    ...{ mutants: born.length, killed: born.length - survivors.length, stories: stories.length },
    files: tableOf(born),
    survivors: survivors.map(({ mutant }) => mutant.name),
  });
  const names = survivors.map(({ mutant }) => mutant.name).join('\n');
  expect(survivors.length, names).toBeLessThanOrEqual(born.length * SURVIVE);
}, 7_200_000);

/** By file and sort: killed of all. */
function tableOf(verdicts: readonly Verdict[]): Record<string, string> {
  const counts = new Map<string, [killed: number, all: number]>();
  for (const { mutant, fate } of verdicts) {
    const name = `${mutant.file} ${mutant.sort}`;
    const [killed, all] = counts.get(name) ?? [0, 0];
    counts.set(name, [killed + Number(fate === 'killed'), all + 1]);
  }
  return Object.fromEntries([...counts].map(([name, [killed, all]]) => [name, `${killed}/${all}`]));
}
