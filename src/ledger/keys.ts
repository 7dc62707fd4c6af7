/** The only place where a Redis key is spelled. All keys of a line share its tag, and so one slot. */

import { hash22 } from '../core/ids.js';

/** Due indexes are spread over so many keys, so that none of them grows without bound. */
export const DUE_SHARDS = 16;

export interface Keys {
  readonly prefix: string;
  line(tag: string): string;
  due(tag: string): string;
  done(tag: string): string;
  /** Checks by request ID. */
  request(requestId: string): string;
  /** Lines by the time at which they want a sweep; a hint. */
  dueLines(shard: number): string;
  shardOf(tag: string): number;
  /** The tag of a line's key; undefined for any other key. */
  tagOf(key: string): string | undefined;
  /** A SCAN pattern that finds all lines of this prefix and of no other. */
  readonly linePattern: string;
  readonly macKey: string;
  /** A capped stream of evidence that contradicts a receipt. */
  readonly conflicts: string;
}

export function keysOf(prefix: string): Keys {
  const escaped = prefix.replace(/[*?[\]\\]/g, '\\$&');
  return {
    prefix,
    line: (tag) => `${prefix}{${tag}}:l`,
    due: (tag) => `${prefix}{${tag}}:due`,
    done: (tag) => `${prefix}{${tag}}:done`,
    request: (requestId) => `${prefix}request:${hash22(requestId)}`,
    dueLines: (shard) => `${prefix}due:${shard}`,
    shardOf: (tag) => (tag.charCodeAt(0) * 31 + tag.charCodeAt(1)) % DUE_SHARDS,
    tagOf(key) {
      const inner = key.slice(prefix.length);
      return key.startsWith(prefix) && /^\{[A-Za-z0-9_-]{22}\}:l$/.test(inner)
        ? inner.slice(1, 23)
        : undefined;
    },
    linePattern: `${escaped}{*}:l`,
    macKey: `${prefix}mac-key`,
    conflicts: `${prefix}conflicts`,
  };
}
