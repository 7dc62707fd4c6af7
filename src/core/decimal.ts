/** Exact decimals for prices and plan factors: an integer and a number of fraction digits, never a float. */

/** `digits` / 10^`scale`, without trailing zeros in the fraction. */
export interface Decimal {
  readonly digits: bigint;
  readonly scale: number;
}

const FORM = /^(\d{1,16})(?:\.(\d{1,18}))?$/;

/** `undefined` where the text is no plain decimal such as 0.15 (no sign, no exponent). */
export function parseDecimal(text: string): Decimal | undefined {
  const match = FORM.exec(text);
  if (!match) return undefined;
  const fraction = (match[2] ?? '').replace(/0+$/, '');
  return { digits: BigInt(match[1]! + fraction), scale: fraction.length };
}

export function formatDecimal(value: Decimal): string {
  const text = value.digits.toString().padStart(value.scale + 1, '0');
  if (value.scale === 0) return text;
  return `${text.slice(0, -value.scale)}.${text.slice(-value.scale)}`;
}

/** The value as an integer of 10^-scale; `scale` is at least the value's own. */
export function scaled(value: Decimal, scale: number): bigint {
  return value.digits * 10n ** BigInt(scale - value.scale);
}

export function ceilDivide(dividend: bigint, divisor: bigint): bigint {
  return (dividend + divisor - 1n) / divisor;
}

/** In lowest terms. */
export function fraction(value: Decimal): { numerator: bigint; denominator: bigint } {
  let a = value.digits;
  let b = 10n ** BigInt(value.scale);
  const denominator = b;
  while (b > 0n) [a, b] = [b, a % b];
  return { numerator: value.digits / a, denominator: denominator / a };
}
