/** Lengths of time as people write them: 150ms, 30s, 10m, 24h, 1d, 1w. */

const UNITS: Readonly<Record<string, number>> = {
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 604_800_000,
};

/** Milliseconds; undefined where the text is no length of time or the number has no exact value. */
export function parseDuration(text: string): number | undefined {
  const match = /^(\d{1,15})(ms|s|m|h|d|w)$/.exec(text);
  if (!match) return undefined;
  const ms = Number(match[1]) * UNITS[match[2]!]!;
  return Number.isSafeInteger(ms) ? ms : undefined;
}
