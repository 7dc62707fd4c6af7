/** Why the ledger did not do what was asked, in a sentence with what to do instead. */
import type { Refusal } from './types.js';

const SENTENCES: Readonly<Record<Refusal, string>> = {
  digest: 'the key was used with another request: send the same request again, or use a new key',
  attempt: 'the key has another newest attempt: reserve again with the one after the newest',
  stale: 'the line is at a newer generation: ask again with the generation in force',
  content: 'the line has other content of this generation: ask again with what is published',
  expired: 'it was not started in time: reserve again with the next attempt',
  bound: 'another operation has started it: only that one goes on, reserve anew for this one',
  state: 'it has gone too far for that, or has ended: get the reservation to see how it is',
  'not-found':
    'no such receipt is kept: check the ID; what ended long ago has been folded into sums',
  'too-late':
    'what it is about has been folded into sums already: nothing more can be booked on it',
  conflict:
    'another amount was booked for this operation, and stands: `earmark reservation show` has both, for an operator to judge',
  overflow: 'a counter would leave 0 to 2^53 - 1, so nothing moved: check the amount',
  invalid: 'the amounts are not what the budget has limits for: send one, or one for each limit',
};

/** `conflict: another amount was …`: the first word is for programs. */
export function refusalMessage(why: Refusal, detail: string): string {
  const said = detail === '' ? '' : ` (${detail})`;
  return `${why}: ${SENTENCES[why]}${said}`;
}
