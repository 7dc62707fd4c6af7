/**
 * Writes a protobuf message from its last byte to its first: when the length of a part is written, the part is there
 * already and its length known. So nothing is measured, moved or kept in lists of what to do later.
 */

/** Room for an answer with everything in it; a longer one makes more. */
const BYTES = 1024;
const VARINT_BYTES_MAX = 5;

/** For one message. What stands last in it is written first. */
export class TailWriter {
  #bytes = Buffer.allocUnsafe(BYTES);
  #at = BYTES;

  /** Bytes written so far: `close` counts from such a mark. */
  get length(): number {
    return this.#bytes.length - this.#at;
  }

  varint(tag: number, value: number): void {
    this.#number(value);
    this.#number(tag);
  }

  double(tag: number, value: number): void {
    this.#room(8);
    this.#at -= 8;
    this.#bytes.writeDoubleLE(value, this.#at);
    this.#number(tag);
  }

  text(tag: number, value: string): void {
    const length = this.#ascii(value) ? value.length : this.#utf8(value);
    this.#number(length);
    this.#number(tag);
  }

  /** Makes everything written since `mark` the content of one field. */
  close(tag: number, mark: number): void {
    this.#number(this.length - mark);
    this.#number(tag);
  }

  finish(): Buffer {
    return this.#bytes.subarray(this.#at);
  }

  /** Nearly every text is; false where this one isn't, and nothing is written. */
  #ascii(value: string): boolean {
    const { length } = value;
    this.#room(length);
    const bytes = this.#bytes;
    const start = this.#at - length;
    for (let i = 0; i < length; i++) {
      const code = value.charCodeAt(i);
      if (code > 0x7f) return false;
      bytes[start + i] = code;
    }
    this.#at = start;
    return true;
  }

  #utf8(value: string): number {
    const length = Buffer.byteLength(value);
    this.#room(length);
    this.#at -= length;
    this.#bytes.write(value, this.#at);
    return length;
  }

  /** A varint: below 2^31, as tags, lengths and enums are. */
  #number(value: number): void {
    this.#room(VARINT_BYTES_MAX);
    let bytes = 1;
    for (let rest = value >>> 7; rest > 0; rest >>>= 7) bytes++;
    this.#at -= bytes;
    let rest = value;
    let place = this.#at;
    for (; rest > 0x7f; rest >>>= 7) this.#bytes[place++] = (rest & 0x7f) | 0x80;
    this.#bytes[place] = rest;
  }

  #room(bytes: number): void {
    if (bytes <= this.#at) return;
    const before = this.finish();
    const larger = Buffer.allocUnsafe(2 * this.#bytes.length + bytes);
    this.#at = larger.length - before.length;
    larger.set(before, this.#at);
    this.#bytes = larger;
  }
}
