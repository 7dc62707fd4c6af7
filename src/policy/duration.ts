/** Lengths of time as documents write them: 150ms 30s 10m 24h 1d 1w. */

const MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 } as const;

/** `undefined` where the text is no length of time, or one above 2^53 - 1 ms. */
export function parseDuration(text: string): number | undefined {
  const match = /^(\d{1,16})(ms|s|m|h|d|w)$/.exec(text);
  if (!match) return undefined;
  const ms = Number(match[1]) * MS[match[2] as keyof typeof MS];
  return Number.isSafeInteger(ms) ? ms : undefined;
}

/** The one spelling that canonical documents use. */
export function formatDuration(ms: number): string {
  return `${ms}ms`;
}
