/** All that is stored of many lines, read by one script: cheap enough to look at after every operation. */
import type { Redis } from 'ioredis';
import { unpack } from '../../src/ledger/stored.js';

/** KEYS: line, due and done of each line. Answers how long each text is, and the texts one after the other. */
const SNAPSHOT = `
local lengths, texts = {}, {}
local function take(list)
  local own = {}
  for i, text in ipairs(list) do
    own[i], texts[#texts + 1] = #text, text
  end
  return own
end
for i = 1, #KEYS, 3 do
  local hash = take(redis.call('HGETALL', KEYS[i]))
  lengths[#lengths + 1] = { hash, take(redis.call('ZRANGE', KEYS[i + 1], 0, -1, 'WITHSCORES')) }
end
return { cmsgpack.pack(lengths), table.concat(texts) }`;

type Lengths = readonly [hash: readonly number[], due: readonly number[]];

export class Snapshot {
  /** Everything, to tell at a glance whether something changed. */
  readonly bytes: Buffer;
  readonly #lengths: Lengths;

  constructor(bytes: Buffer, lengths: Lengths) {
    this.bytes = bytes;
    this.#lengths = lengths;
  }

  /** Fields of the line's hash. */
  fields(): ReadonlyMap<string, Buffer> {
    return pairs(this.bytes, 0, this.#lengths[0]);
  }

  /** When each receipt that waits for time is due. */
  due(): Record<string, number> {
    const entries = pairs(this.bytes, sum(this.#lengths[0]), this.#lengths[1]);
    return Object.fromEntries([...entries].map(([field, score]) => [field, Number(score)]));
  }
}

function sum(lengths: readonly number[]): number {
  let total = 0;
  for (const length of lengths) total += length;
  return total;
}

function pairs(bytes: Buffer, from: number, lengths: readonly number[]): Map<string, Buffer> {
  const found = new Map<string, Buffer>();
  let at = from;
  for (let i = 0; i < lengths.length; i += 2) {
    const value = at + lengths[i]!;
    const end = value + lengths[i + 1]!;
    found.set(bytes.toString('latin1', at, value), bytes.subarray(value, end));
    at = end;
  }
  return found;
}

/** `keys`: three of each line. */
export async function snapshotsOf(redis: Redis, keys: readonly string[]): Promise<Snapshot[]> {
  const answer = await redis.callBuffer('EVAL', SNAPSHOT, keys.length, ...keys);
  const [lengths, bytes] = answer as [Buffer, Buffer];
  let at = 0;
  return (unpack(lengths) as Lengths[]).map((own) => {
    const from = at;
    at += sum(own[0]) + sum(own[1]);
    return new Snapshot(bytes.subarray(from, at), own);
  });
}
