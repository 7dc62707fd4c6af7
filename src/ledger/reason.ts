/** Why a command came to nothing, in words for whoever asked: the client speaks of its own options. */
import type { Redis } from 'ioredis';

const UNCONNECTED = /^Stream isn't writeable|^Connection is closed|max retries per request/;

/** Where the server is; never who we are there. */
function addressOf({ options }: Pick<Redis, 'options'>): string {
  return options.path ?? `${options.host ?? '127.0.0.1'}:${options.port ?? 6379}`;
}

/** How the text begins where nobody is there. */
export const NO_CONNECTION = 'there is no connection to the ledger';

export function noConnection(redis: Pick<Redis, 'options'>): string {
  return `${NO_CONNECTION} at ${addressOf(redis)}`;
}

export function reasonOf(redis: Pick<Redis, 'options'>, error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  if (UNCONNECTED.test(message)) return noConnection(redis);
  return message === 'Command timed out' ? 'no answer from the ledger in time' : message;
}
