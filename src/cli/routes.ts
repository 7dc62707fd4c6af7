/** Which routes there are: those of the policy in force, those frozen, and those of lines of older policies. */
import type { LedgerContext } from './context.js';
import { type CommandResult, failed } from './policy.js';

/** Undefined where the route is known; else the failure that names those that are. */
export async function unknownRoute(
  route: string,
  context: LedgerContext,
): Promise<CommandResult | undefined> {
  // Whether it is a ledger of ours at all.
  await context.now();
  const { newest, rollout, freezes } = await context.documents().state();
  const stored = await context.documents().policy(rollout?.generation ?? newest);
  const known = new Set(freezes.keys());
  for (const name of stored === undefined ? [] : routesOf(stored.canonical)) known.add(name);
  if (known.has(route)) return undefined;
  // Older lines last: only they take a look at the whole ledger.
  const ledger = await context.ledger();
  for await (const tags of ledger.lines()) {
    for (const tag of tags) {
      for (const line of await ledger.dump(tag)) known.add(line.route);
      if (known.has(route)) return undefined;
    }
  }
  const there =
    known.size === 0 ? 'there is none yet' : `there are ${[...known].sort().join(', ')}`;
  return failed(`no route ${JSON.stringify(route)} is known: ${there}`);
}

function routesOf(canonical: string): string[] {
  const { budgets } = JSON.parse(canonical) as { budgets: readonly { route: string }[] };
  return budgets.map((budget) => budget.route);
}
