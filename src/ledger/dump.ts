/** Reads a whole line, page by page, as the audit and the proof need it: nothing is added up here. */
import type { Redis } from 'ioredis';
import { dumpReceipt, readLine, readOwner, readPage } from './stored.js';
import type { LineDump, PageDump } from './types.js';

/** Fields of the line's hash read at once. */
const FIELDS_A_PAGE = 500;
/** A line that moves while it is read is read again so often. */
const TRIES = 3;

type Fields = ReadonlyMap<string, Buffer>;

/** Undefined where a twin moved between the first page and the last. */
async function readFields(redis: Redis, key: string): Promise<Fields | undefined> {
  const twins = async () =>
    Buffer.concat((await redis.hmgetBuffer(key, 'line', 'shadow')).filter(isThere));
  const before = await twins();
  const fields = new Map<string, Buffer>();
  let cursor = '0';
  do {
    const [next, found] = await redis.hscanBuffer(key, cursor, 'COUNT', FIELDS_A_PAGE);
    cursor = next.toString();
    for (let i = 0; i < found.length; i += 2) fields.set(found[i]!.toString(), found[i + 1]!);
  } while (cursor !== '0');
  return before.equals(await twins()) ? fields : undefined;
}

function isThere(value: Buffer | null): value is Buffer {
  return value !== null;
}

function isEarlier(a: PageDump, b: PageDump): number {
  return a.generation - b.generation || a.epoch - b.epoch;
}

function twinOf(tag: string, fields: Fields, shadow: boolean): LineDump | undefined {
  const bytes = fields.get(shadow ? 'shadow' : 'line');
  if (bytes === undefined) return undefined;
  const rules = fields.get(shadow ? 'srules' : 'rules');
  const owner = fields.get('owner');
  if (rules === undefined || owner === undefined) {
    throw new Error(`the line ${tag} is not whole: its rules or its owner are missing`);
  }
  const line = readLine(tag, shadow, bytes, rules, readOwner(owner.toString()));
  const entries = [...fields];
  const closed = entries
    .filter(([field]) => field.startsWith(shadow ? 'sb:' : 'b:'))
    .map(([field, page]) => readPage(field, page))
    .sort(isEarlier);
  const receipts = entries
    .filter(([field]) => field.startsWith('r:') || field.startsWith('u:'))
    .map(([field, receipt]) => dumpReceipt(tag, field, receipt, line))
    .filter((receipt) => receipt.shadow === shadow);
  return { ...line, pages: [...closed, ...line.pages], receipts };
}

/** Both twins as of one instant. */
export async function dumpLine(
  redis: Redis,
  key: string,
  tag: string,
): Promise<readonly LineDump[]> {
  let fields: Fields | undefined;
  for (let tries = 0; tries < TRIES && fields === undefined; tries++) {
    fields = await readFields(redis, key);
  }
  // A line that never holds still is read by one command, which keeps Redis from others a little longer.
  const still = fields ?? new Map(Object.entries(await redis.hgetallBuffer(key)));
  return readDump(tag, still);
}

/** Both twins from the fields of a line's hash. */
export function readDump(tag: string, fields: Fields): readonly LineDump[] {
  return [false, true].flatMap((shadow) => twinOf(tag, fields, shadow) ?? []);
}
