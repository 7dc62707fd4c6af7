/** Fields of a call from outside: what they may be, and an error that names the one that isn't. */
import { parseReservation } from './ids.js';

/** `field` cannot be what it must be; the message says what that is. */
export class FieldError extends Error {
  override readonly name = 'FieldError';
  readonly field: string;
  constructor(field: string, message: string) {
    super(`${field}: ${message}`);
    this.field = field;
  }
}

/** A text of 1 to `bytesMax` bytes that isn't blank. Never repeated in the error: it may be long. */
export function textField(field: string, value: unknown, bytesMax: number): string {
  if (typeof value !== 'string' || value.trim() === '') throw new FieldError(field, 'is missing');
  if (Buffer.byteLength(value) > bytesMax) {
    throw new FieldError(field, `is longer than ${bytesMax} bytes`);
  }
  return value;
}

/** A whole number from `least` to `most`: a number of JSON, or an int64 as its decimal digits. */
export function wholeField(field: string, value: unknown, least: number, most: number): number {
  const digits = typeof value === 'string' && /^-?\d{1,20}$/.test(value);
  const number = digits ? Number(value) : value;
  if (!Number.isSafeInteger(number) || Number(number) < least || Number(number) > most) {
    throw new FieldError(field, `must be a whole number from ${least} to ${most}`);
  }
  return Number(number);
}

/** The ID of a reservation, as a reserve or a Check gave it. */
export function reservationField(field: string, value: unknown): string {
  const text = textField(field, value, 64);
  if (parseReservation(text) === undefined) {
    throw new FieldError(field, 'is no ID of a reservation (rl-…)');
  }
  return text;
}
