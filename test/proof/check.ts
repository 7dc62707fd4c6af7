/** Stories put on the scripts: every reply, and all that is stored after it, held against the model's. */
import { readDump } from '../../src/ledger/dump.js';
import { differences, dumpDifferences, replyDifferences } from '../model/compare.js';
import { dumpLine, type LineState } from '../model/state.js';
import { tell } from '../model/story.js';
import type { Scripts } from './scripts.js';
import type { Snapshot } from './snapshot.js';
import type { Story } from './stories.js';

/** Stories that run side by side, step by step. */
const ABREAST = 100;

/** Each story in which model and scripts part, with the way to the first difference. */
export async function differencesIn(
  scripts: Scripts,
  stories: readonly Story[],
  stopAtFirst = false,
): Promise<ReadonlyMap<Story, string>> {
  const found = new Map<Story, string>();
  for (let from = 0; from < stories.length; from += ABREAST) {
    const some = stories.slice(from, from + ABREAST);
    await abreast(scripts, some, found, stopAtFirst);
    if (stopAtFirst && found.size > 0) break;
    await scripts.forget(some.map(placeOf));
  }
  return found;
}

function placeOf({ seed }: Story): string {
  return `story ${seed}`;
}

/** What was stored when it was last looked at. */
interface Seen {
  readonly state: LineState;
  readonly bytes: Buffer;
}

async function abreast(
  scripts: Scripts,
  stories: readonly Story[],
  found: Map<Story, string>,
  stopAtFirst: boolean,
): Promise<void> {
  const longest = Math.max(...stories.map(({ events }) => events.length));
  const seen = new Map<Story, Seen>();
  for (let i = 0; i < longest && !(stopAtFirst && found.size > 0); i++) {
    const some = stories.filter((story) => i < story.events.length && !found.has(story));
    if (some.length === 0) break;
    const asked = some.map((story) => scripts.ask(placeOf(story), story.first, story.events[i]!));
    const replies = await Promise.all(asked);
    const shots = await scripts.snapshots(some.map(placeOf));
    for (const [n, story] of some.entries()) {
      const after = story.after[i]!;
      const parted = replyDifferences(story.replies[i]!, replies[n]!);
      parted.push(...storedDifferences(seen.get(story), after, shots[n]!));
      seen.set(story, { state: after, bytes: shots[n]!.bytes });
      if (parted.length > 0) found.set(story, told(story, i, parted));
    }
  }
}

/** The model's very state from before says that nothing was written: then no byte may differ. */
function storedDifferences(before: Seen | undefined, after: LineState, shot: Snapshot): string[] {
  if (before?.state === after && before.bytes.equals(shot.bytes)) return [];
  return [
    ...dumpDifferences(dumpLine(after), readDump(after.tag, shot.fields())),
    ...differences(dueOf(after), shot.due(), 'due'),
  ];
}

function dueOf(state: LineState): Record<string, number> {
  const open = [...state.receipts.values()].filter(({ due }) => due > 0);
  return Object.fromEntries(open.map(({ id, due }) => [`r:${id}`, due]));
}

function told({ seed, events }: Story, upTo: number, parted: readonly string[]): string {
  const way = events.slice(0, upTo + 1).map(tell);
  return [`seed ${seed}`, ...way, ...parted.map((text) => `  ${text}`)].join('\n');
}
