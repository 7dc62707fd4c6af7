/** Message authentication of what travels through Envoy and comes back. */
import { createHmac, timingSafeEqual } from 'node:crypto';

/** HMAC-SHA256 over the parts, each with its length in front, so that no part can reach into the next. */
export function macOf(key: Uint8Array, parts: readonly string[]): string {
  let text = '';
  for (const part of parts) text += `${Buffer.byteLength(part)}:${part}`;
  return createHmac('sha256', key).update(text).digest('base64url');
}

/** Compares in constant time. */
export function macHolds(key: Uint8Array, parts: readonly string[], mac: string): boolean {
  const right = Buffer.from(macOf(key, parts));
  const given = Buffer.from(mac);
  return right.length === given.length && timingSafeEqual(right, given);
}
