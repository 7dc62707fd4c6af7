/**
 * The real side of the comparison: the shipped scripts on a real server, many lines in one run. A line lives under keys
 * of any name, so one that stands in some state is copied inside the server, moved on, and read back.
 */
import { Redis } from 'ioredis';
import { Batcher } from '../../src/ledger/batcher.js';
import { dumpLine } from '../../src/ledger/dump.js';
import { keysOf as keysOfLedger } from '../../src/ledger/keys.js';
import { loadScript } from '../../src/ledger/scripts.js';
import type { LineDump } from '../../src/ledger/types.js';
import {
  decodeOutcome,
  decodeSweep,
  encodeRelease,
  encodeReserve,
  encodeSettle,
  encodeStart,
  encodeSweep,
  encodeUnknown,
  type Operation,
} from '../../src/ledger/wire.js';
import type { Reply } from './model.js';
import type { Event, LineState } from './state.js';

/** Operations in one run of a script: enough that the way there costs nothing. */
const BATCH = 128;
/** A busy machine is no difference. */
const PATIENCE_MS = 120_000;

/** KEYS: from and to, three each. Copies what is there. */
const COPY = `
for i = 1, #KEYS, 6 do
  for k = 0, 2 do redis.call('COPY', KEYS[i + k], KEYS[i + 3 + k]) end
end`;

/** One digest for all that is stored of each line, without its format being known. */
const DIGEST = `
local digests = {}
for i = 1, #KEYS, 3 do
  local hash = redis.call('HGETALL', KEYS[i])
  local fields = {}
  for f = 1, #hash, 2 do fields[#fields + 1] = hash[f] .. '=' .. #hash[f + 1] .. hash[f + 1] end
  table.sort(fields)
  local due = table.concat(redis.call('ZRANGE', KEYS[i + 1], 0, -1, 'WITHSCORES'), ',')
  local done = table.concat(redis.call('LRANGE', KEYS[i + 2], 0, -1), ',')
  digests[#digests + 1] = redis.sha1hex(table.concat(fields, ';') .. due .. ';' .. done)
end
return digests`;

/** Where a line is stored: the model's state says whose it is. */
export interface Question {
  readonly at: string;
  readonly line: LineState;
  readonly event: Event;
}

export class Real {
  readonly #redis: Redis;
  readonly #admissions: Batcher;
  readonly #movements: Batcher;

  constructor(socket: string) {
    this.#redis = new Redis({ path: socket, replyMapping: 'legacy' });
    const keys = { ...keysOfLedger('m:'), ...PLACES };
    const shared = { redis: this.#redis, keys, timeoutMs: PATIENCE_MS };
    this.#admissions = new Batcher({ ...shared, script: loadScript('admissions') });
    this.#movements = new Batcher({ ...shared, script: loadScript('movements') });
  }

  async stop(): Promise<void> {
    this.#redis.disconnect();
  }

  /**
   * Puts an event to a line. What is asked at once runs together; its order is only kept on the
   * line where it is awaited.
   */
  async ask({ at, line, event }: Question): Promise<Reply> {
    const operation = encode(line, event);
    const isAdmission = event.op === 'reserve' || event.op === 'admit';
    const batcher = isAdmission ? this.#admissions : this.#movements;
    const { reply, stored } = await batcher.submit({ ...operation, tag: at }, event.now);
    return event.op === 'sweep' ? decodeSweep(reply) : decodeOutcome(line.tag, reply, stored);
  }

  /** Copies lines as they are stored; `to` must be new names. */
  async copy(pairs: readonly (readonly [from: string, to: string])[]): Promise<void> {
    await Promise.all(
      chunks(pairs).map((some) => {
        const keys = some.flatMap(([from, to]) => [...keysOf(from), ...keysOf(to)]);
        return this.#redis.eval(COPY, keys.length, ...keys);
      }),
    );
  }

  async digests(places: readonly string[]): Promise<string[]> {
    const some = await Promise.all(
      chunks(places).map((part) => {
        const keys = part.flatMap(keysOf);
        return this.#redis.eval(DIGEST, keys.length, ...keys) as Promise<string[]>;
      }),
    );
    return some.flat();
  }

  dump(at: string, tag: string): Promise<readonly LineDump[]> {
    return dumpLine(this.#redis, keysOf(at)[0]!, tag);
  }

  async forget(places: readonly string[]): Promise<void> {
    const some = chunks(places);
    await Promise.all(some.map((part) => this.#redis.del(...part.flatMap(keysOf))));
  }
}

/** The keys of a line by the name of the place where it stands, not by its tag. */
const PLACES = {
  line: (at: string) => `{${at}}:l`,
  due: (at: string) => `{${at}}:due`,
  done: (at: string) => `{${at}}:done`,
};

function keysOf(at: string): [string, string, string] {
  return [PLACES.line(at), PLACES.due(at), PLACES.done(at)];
}

function chunks<T>(items: readonly T[]): T[][] {
  const result: T[][] = [];
  for (let i = 0; i < items.length; i += BATCH) result.push(items.slice(i, i + BATCH));
  return result;
}

/** An event in the words of the ledger's interface, and so on the wire. */
export function encode(line: LineState, event: Event): Operation {
  const { subject, route, tag } = line;
  const reservation = 'id' in event ? `rl-${tag}-${event.id}` : '';
  switch (event.op) {
    case 'reserve': {
      const { operation: _none, ...request } = event;
      return encodeReserve({ subject, route, ...request });
    }
    case 'admit':
      return encodeReserve({ subject, route, ...event });
    case 'start':
      return encodeStart(reservation, event.operation);
    case 'release':
      return encodeRelease(reservation);
    case 'settle':
      return encodeSettle({ reservation, ...event });
    case 'unknown':
      return encodeUnknown({ reservation, ...event });
    case 'sweep':
      return encodeSweep(tag, event.limit);
    case 'freeze':
      return { name: 'freeze', tag, args: { till: event.until, shadow: event.shadow } };
    case 'unfreeze':
    case 'credit': {
      const { op, now: _now, ...args } = event;
      return { name: op, tag, args };
    }
  }
}
