/** Evidence on disk while the ledger is away for longer than memory should hold it: files of JSON lines. */
import { randomBytes } from 'node:crypto';
import {
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import type { LogEntry } from './types.js';

/** At about 2 KB an entry, 130,000 of them. */
export const SPOOL_BYTES_MAX = 256 * 1024 * 1024;
/** The number says how a line is to be read. */
const NAME = /^evidence\.v1\.\d{13}-[\w-]{11}\.jsonl$/;

/** What is kept of an entry: itself, and when it arrived (ms since 1970). */
export interface Kept {
  readonly entry: LogEntry;
  readonly since: number;
}

/**
 * A file is written whole, never changed, and removed when the ledger has taken all of it. Two that share a folder may
 * read the same file: evidence that comes twice moves nothing.
 */
export class DiskSpool {
  readonly #folder: string;
  readonly #bytesMax: number;

  /** Throws where the folder can't be made or written. */
  constructor(folder: string, bytesMax = SPOOL_BYTES_MAX) {
    this.#folder = folder;
    this.#bytesMax = bytesMax;
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const probe = join(folder, `probe-${randomBytes(8).toString('base64url')}`);
    writeFileSync(probe, '');
    rmSync(probe);
  }

  /** Bytes of all files. */
  get size(): number {
    return this.files().reduce((sum, name) => sum + this.#sizeOf(name), 0);
  }

  /** Oldest first. */
  files(): string[] {
    return readdirSync(this.#folder)
      .filter((name) => NAME.test(name))
      .sort();
  }

  /** All of them in a new file, or an error: the disk is full, or more than it may hold. */
  put(items: readonly Kept[]): void {
    const lines = items.map(({ entry, since }) => `${JSON.stringify({ entry, since })}\n`);
    const text = lines.join('');
    if (this.size + Buffer.byteLength(text) > this.#bytesMax) {
      throw new Error(`the spool holds ${this.#bytesMax} bytes at most`);
    }
    const drawn = randomBytes(8).toString('base64url');
    const name = `evidence.v1.${String(Date.now()).padStart(13, '0')}-${drawn}.jsonl`;
    const unfinished = join(this.#folder, `unfinished-${drawn}`);
    try {
      writeFileSync(unfinished, text, { mode: 0o600 });
      renameSync(unfinished, join(this.#folder, name));
    } catch (error) {
      rmSync(unfinished, { force: true });
      throw error;
    }
  }

  /** What a file holds; `broken` lines are those that cannot be read. */
  read(name: string): { readonly items: readonly Kept[]; readonly broken: number } {
    const items: Kept[] = [];
    let broken = 0;
    for (const line of readFileSync(join(this.#folder, name), 'utf8').split('\n')) {
      if (line === '') continue;
      try {
        items.push(JSON.parse(line) as Kept);
      } catch {
        broken++;
      }
    }
    return { items, broken };
  }

  remove(name: string): void {
    rmSync(join(this.#folder, name), { force: true });
  }

  #sizeOf(name: string): number {
    // Another process may have removed it meanwhile.
    return statSync(join(this.#folder, name), { throwIfNoEntry: false })?.size ?? 0;
  }
}
