/** How much a proof does: in `npm test`, in CI, in the full run. */
export type Scale = 'short' | 'ci' | 'full';

export const SCALE = (process.env.EARMARK_PROOF ?? 'short') as Scale;

export function scale(counts: Readonly<Record<Scale, number>>): number {
  const count = counts[SCALE];
  if (count === undefined) throw new Error('EARMARK_PROOF must be short, ci or full');
  return count;
}
