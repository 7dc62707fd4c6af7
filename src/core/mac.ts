/** Message authentication of what travels through Envoy and comes back. */
import { hash, timingSafeEqual } from 'node:crypto';

const BLOCK = 64;
const DIGEST = 32;

function padded(key: Uint8Array, filler: number, length: number): Buffer {
  const block = Buffer.alloc(length);
  for (let at = 0; at < BLOCK; at++) block[at] = (key[at] ?? 0) ^ filler;
  return block;
}

/**
 * HMAC-SHA256 under one key (RFC 2104), over parts, each with its length in front, so that none can reach into the
 * next. Written out, because two hashes of a prepared block take a fifth of the time of Node's Hmac object.
 */
export class Mac {
  #inner: Buffer;
  readonly #outer: Buffer;

  constructor(key: Uint8Array) {
    if (key.length > BLOCK) throw new RangeError(`a key of ${key.length} bytes: at most ${BLOCK}`);
    this.#inner = padded(key, 0x36, 1024);
    this.#outer = padded(key, 0x5c, BLOCK + DIGEST);
  }

  /** 43 characters. */
  of(parts: readonly string[]): string {
    let text = '';
    for (const part of parts) text += `${Buffer.byteLength(part)}:${part}`;
    const end = BLOCK + Buffer.byteLength(text);
    if (end > this.#inner.length) {
      this.#inner = Buffer.concat([this.#inner.subarray(0, BLOCK), Buffer.alloc(2 * end)]);
    }
    this.#inner.write(text, BLOCK);
    this.#outer.write(hash('sha256', this.#inner.subarray(0, end), 'binary'), BLOCK, 'binary');
    return hash('sha256', this.#outer, 'base64url');
  }

  /** Compares in constant time. */
  holds(parts: readonly string[], mac: string): boolean {
    const right = Buffer.from(this.of(parts));
    const given = Buffer.from(mac);
    return right.length === given.length && timingSafeEqual(right, given);
  }
}
