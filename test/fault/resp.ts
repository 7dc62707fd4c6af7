/** Where one message of Redis' protocol ends (RESP 2 and 3), so that a proxy can count them. */

const LINES = '+-:_,#(';
const BULKS = '$=!';
const LISTS = '*~>';
const PAIRS = '%|';

/** The index behind the message that starts at `at`; -1 where the rest of it is still to come. */
export function messageEnd(bytes: Buffer, at: number): number {
  const line = bytes.indexOf('\r\n', at, 'latin1');
  if (line < 0) return -1;
  const type = String.fromCharCode(bytes[at]!);
  const body = line + 2;
  if (LINES.includes(type)) return body;
  const length = Number(bytes.toString('latin1', at + 1, line));
  if (BULKS.includes(type)) {
    if (length < 0) return body;
    return bytes.length >= body + length + 2 ? body + length + 2 : -1;
  }
  const items = LISTS.includes(type) ? length : PAIRS.includes(type) ? 2 * length : Number.NaN;
  if (Number.isNaN(items)) throw new Error(`no type of RESP: ${type}`);
  // An attribute stands in front of the message that it belongs to.
  const wanted = type === '|' ? items + 1 : items;
  let end = body;
  for (let item = 0; item < wanted && end >= 0; item++) {
    end = end < bytes.length ? messageEnd(bytes, end) : -1;
  }
  return end;
}

/** Cuts a stream of bytes into messages. */
export class Messages {
  #rest: Buffer = Buffer.alloc(0);

  add(bytes: Buffer): Buffer[] {
    this.#rest = this.#rest.length === 0 ? bytes : Buffer.concat([this.#rest, bytes]);
    const messages: Buffer[] = [];
    let start = 0;
    while (start < this.#rest.length) {
      const end = messageEnd(this.#rest, start);
      if (end < 0) break;
      messages.push(this.#rest.subarray(start, end));
      start = end;
    }
    this.#rest = this.#rest.subarray(start);
    return messages;
  }
}

/** The words of a command: a list of bulk strings. */
export function words(command: Buffer): Buffer[] {
  const found: Buffer[] = [];
  let at = command.indexOf('\r\n', 0, 'latin1') + 2;
  while (at < command.length) {
    const body = command.indexOf('\r\n', at, 'latin1') + 2;
    const length = Number(command.toString('latin1', at + 1, body - 2));
    found.push(command.subarray(body, body + length));
    at = body + length + 2;
  }
  return found;
}
