/** Puts a rollout in force, unless it speaks of routes that its generation does not have. */
import { DocumentRefused, type Documents } from '../ledger/documents.js';
import type { Rollout } from './types.js';

/** As `Documents.applyRollout`, `madeFrom` included; a rule for a route that is not there would silently never hold. */
export async function applyRollout(
  documents: Documents,
  rollout: Rollout,
  madeFrom?: string,
): Promise<'moved' | 'same'> {
  const { generation } = rollout;
  const stored = await documents.policy(generation);
  // Where it is not published the ledger refuses by itself.
  if (stored !== undefined) {
    const { budgets } = JSON.parse(stored.canonical) as { budgets: readonly { route: string }[] };
    const known = budgets.map(({ route }) => route);
    const stray = Object.keys(rollout.routes).filter((route) => !known.includes(route));
    if (stray.length > 0) {
      throw new DocumentRefused(
        'route',
        `routes: generation ${generation} has no ${stray.map((route) => JSON.stringify(route)).join(', ')}: there are ${known.join(', ')}`,
      );
    }
  }
  return documents.applyRollout(rollout, madeFrom);
}
