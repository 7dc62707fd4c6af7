/** Scripts from any folder on a real server, many lines in one run; each line at a place of its own. */
import { Redis } from 'ioredis';
import { Batcher, type Replied } from '../../src/ledger/batcher.js';
import { dumpLine } from '../../src/ledger/dump.js';
import type { Keys } from '../../src/ledger/keys.js';
import { loadScript, type Script } from '../../src/ledger/scripts.js';
import type { LineDump } from '../../src/ledger/types.js';
import { decodeOutcome, decodeSweep } from '../../src/ledger/wire.js';
import type { Reply } from '../model/model.js';
import { encode } from '../model/real.js';
import type { Event, LineState } from '../model/state.js';
import { type Snapshot, snapshotsOf } from './snapshot.js';

const PLACES = {
  line: (at: string) => `{${at}}:l`,
  due: (at: string) => `{${at}}:due`,
  done: (at: string) => `{${at}}:done`,
};

export function keysOf(at: string): string[] {
  return [PLACES.line(at), PLACES.due(at), PLACES.done(at)];
}

/** A connection as patient as a proof on a busy machine must be. */
export function connectTo(socket: string): Redis {
  const redis = new Redis({
    ...{ path: socket, maxRetriesPerRequest: 0, retryStrategy: () => null },
    ...{ replyMapping: 'legacy' as const, lazyConnect: true },
  });
  redis.on('error', () => undefined);
  return redis;
}

export class Scripts {
  readonly redis: Redis;
  readonly #admissions: Batcher;
  readonly #movements: Batcher;
  readonly sources: readonly Script[];

  constructor(redis: Redis, folder: string | undefined, timeoutMs = 60_000) {
    this.redis = redis;
    const shared = { redis, keys: PLACES as unknown as Keys, timeoutMs };
    const [admissions, movements] = [
      loadScript('admissions', folder),
      loadScript('movements', folder),
    ];
    this.sources = [admissions, movements];
    this.#admissions = new Batcher({ ...shared, script: admissions });
    this.#movements = new Batcher({ ...shared, script: movements });
  }

  submit(at: string, line: LineState, event: Event): Promise<Replied> {
    const isAdmission = event.op === 'reserve' || event.op === 'admit';
    const batcher = isAdmission ? this.#admissions : this.#movements;
    return batcher.submit({ ...encode(line, event), tag: at }, event.now);
  }

  async ask(at: string, line: LineState, event: Event): Promise<Reply> {
    return decode(line, event, await this.submit(at, line, event));
  }

  dump(at: string, line: LineState): Promise<readonly LineDump[]> {
    return dumpLine(this.redis, PLACES.line(at), line.tag);
  }

  snapshots(places: readonly string[]): Promise<Snapshot[]> {
    return snapshotsOf(this.redis, places.flatMap(keysOf));
  }

  async forget(places: readonly string[]): Promise<void> {
    if (places.length > 0) await this.redis.unlink(...places.flatMap(keysOf));
  }
}

export function decode(line: LineState, event: Event, { reply, stored }: Replied): Reply {
  const swept = event.op === 'sweep' && reply[0] === 'swept';
  return swept ? decodeSweep(reply) : decodeOutcome(line.tag, reply, stored);
}
