/** How much a proof does, in `npm test`, in CI and in the full run; and the figures it leaves behind. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export type Scale = 'short' | 'ci' | 'full';

export const SCALE = (process.env.EARMARK_PROOF ?? 'short') as Scale;

export function scale(counts: Readonly<Record<Scale, number>>): number {
  const count = counts[SCALE];
  if (count === undefined) throw new Error('EARMARK_PROOF must be short, ci or full');
  return count;
}

/** For the report of `npm run proof`, which says where. */
export function tell(what: string, figures: object): void {
  const folder = process.env.EARMARK_PROOF_FIGURES;
  if (folder === undefined) return;
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, `${what.replace(/\W+/g, '-')}.json`), JSON.stringify(figures));
}
