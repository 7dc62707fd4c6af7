/** Stories put on the scripts: every reply, and at the end the whole line, held against the model's. */
import { dumpDifferences, replyDifferences } from '../model/compare.js';
import type { Reply } from '../model/model.js';
import { dumpLine } from '../model/state.js';
import { tell } from '../model/story.js';
import type { Scripts } from './scripts.js';
import type { Story } from './stories.js';

/** Stories that run side by side, step by step. */
const ABREAST = 100;

const NO_LINE = { seq: 0, now: 0, generation: 0, epoch: 0, frozenUntil: 0, limits: [] };

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

/**
 * What overflows is refused from within the account: such an answer says nothing about the line. And a sweep may be
 * wanted too early, for what has folded with its group: that is no harm, too late would be.
 */
function comparable(reply: Reply, model: Reply): Reply {
  if ('nextDue' in reply && 'nextDue' in model) {
    const early = model.nextDue === 0 || (reply.nextDue > 0 && reply.nextDue < model.nextDue);
    return early ? { ...reply, nextDue: model.nextDue } : reply;
  }
  const bare = 'kind' in reply && reply.kind === 'refused' && reply.why === 'overflow';
  return bare ? { ...reply, receipt: undefined, line: NO_LINE } : reply;
}

function placeOf({ seed }: Story): string {
  return `story ${seed}`;
}

async function abreast(
  scripts: Scripts,
  stories: readonly Story[],
  found: Map<Story, string>,
  stopAtFirst: boolean,
): Promise<void> {
  const longest = Math.max(...stories.map(({ events }) => events.length));
  for (let i = 0; i < longest && !(stopAtFirst && found.size > 0); i++) {
    const some = stories.filter((story) => i < story.events.length && !found.has(story));
    const replies = await Promise.all(
      some.map((story) => scripts.ask(placeOf(story), story.first, story.events[i]!)),
    );
    for (const [n, story] of some.entries()) {
      const wanted = story.replies[i]!;
      const parted = replyDifferences(comparable(wanted, wanted), comparable(replies[n]!, wanted));
      if (parted.length > 0) found.set(story, told(story, i, parted));
    }
  }
  if (stopAtFirst && found.size > 0) return;
  const whole = stories.filter((story) => !found.has(story));
  const dumps = await Promise.all(whole.map((story) => scripts.dump(placeOf(story), story.first)));
  for (const [n, story] of whole.entries()) {
    const parted = dumpDifferences(dumpLine(story.last), dumps[n]!);
    if (parted.length > 0) found.set(story, told(story, story.events.length - 1, parted));
  }
}

function told({ seed, events }: Story, upTo: number, parted: readonly string[]): string {
  const way = events.slice(0, upTo + 1).map(tell);
  return [`seed ${seed}`, ...way, ...parted.map((text) => `  ${text}`)].join('\n');
}
