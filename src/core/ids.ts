/** Identities: which Redis slot a line has, and which receipt a request means. */
import { hash, randomBytes } from 'node:crypto';

const RESERVATION = /^rl-([A-Za-z0-9_-]{22})-([A-Za-z0-9_-]{22})$/;

/** 22 characters of SHA-256 over the parts, each with its length in front, so that no character can move a boundary. */
export function hash22(...parts: readonly string[]): string {
  let text = '';
  for (const part of parts) text += `${Buffer.byteLength(part)}:${part}`;
  return hash('sha256', text, 'base64url').slice(0, 22);
}

/** The Redis hash tag of every key of the line (subject, route). */
export function lineTag(subject: string, route: string): string {
  return hash22('line', subject, route);
}

/** The part of a reservation's ID that names the receipt on its line. */
export function receiptId(subject: string, route: string, key: string, attempt: number): string {
  return hash22('receipt', subject, route, key, String(attempt));
}

export function reservationId(tag: string, id: string): string {
  return `rl-${tag}-${id}`;
}

/** `undefined` where the text is no reservation ID. */
export function parseReservation(text: string): { tag: string; id: string } | undefined {
  const match = RESERVATION.exec(text);
  return match ? { tag: match[1]!, id: match[2]! } : undefined;
}

/** Drawn in pages: asking the system for each operation costs more than the rest of a Check's hashing. */
const PAGE = 4096;
let page: Buffer = Buffer.alloc(0);
let used = PAGE;

/** 128 random bits, drawn anew for each Check. */
export function newOperation(): string {
  if (used + 16 > page.length) {
    page = randomBytes(PAGE);
    used = 0;
  }
  used += 16;
  return page.toString('base64url', used - 16, used);
}
