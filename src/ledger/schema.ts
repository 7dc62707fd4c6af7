/** In which form a ledger is kept: written once by who comes first, looked at before anything else is done there. */
import type { Redis } from 'ioredis';
import { reasonOf } from './reason.js';
import { LedgerUnavailable } from './types.js';

/** Rises when an older earmark could no longer keep the account right beside a newer one. */
export const SCHEMA = '2';

/** A ledger of another version of earmark: nothing is read from it or written to it. */
export class SchemaUnknown extends LedgerUnavailable {
  constructor(found: string) {
    super(
      `the ledger has schema ${found}, and this earmark knows schema ${SCHEMA}: run the version that made it, or choose another ledger.prefix`,
    );
  }
}

/** Why nothing may be done there, also nothing that is under way; undefined: it may. */
export type Closed = () => LedgerUnavailable | undefined;

/** Throws what `closed` says. */
export function ensureOpen(closed: Closed | undefined): void {
  const why = closed?.();
  if (why !== undefined) throw why;
}

/** Whether it has one at all: an empty ledger has none yet. Throws `SchemaUnknown` where it is of another form. */
export async function checkSchema(redis: Redis, prefix: string): Promise<boolean> {
  const found = await known(redis, redis.get(`${prefix}schema`));
  if (found !== null && found !== SCHEMA) throw new SchemaUnknown(found);
  return found !== null;
}

/** Checks it, and writes it where there is none. */
export async function claimSchema(redis: Redis, prefix: string): Promise<void> {
  // Looked at first: a full server refuses to set even what stands there already.
  if (await checkSchema(redis, prefix)) return;
  await known(redis, redis.set(`${prefix}schema`, SCHEMA, 'NX'));
  await checkSchema(redis, prefix);
}

async function known<T>(redis: Redis, reply: Promise<T>): Promise<T> {
  try {
    return await reply;
  } catch (error) {
    throw new LedgerUnavailable(reasonOf(redis, error));
  }
}
