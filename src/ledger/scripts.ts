/** The Lua scripts as they are shipped: includes flattened once, operations and their arguments read from the source. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** A script ready to be run by its SHA-1. */
export interface Script {
  readonly name: string;
  readonly source: string;
  readonly sha: string;
  /** Argument names of each operation that the script takes, in their order. */
  readonly operations: ReadonlyMap<string, readonly string[]>;
}

const INCLUDE = /^--- @(include|script) (\w+)$/gm;
const OPERATION = /operation\('(\w+)', (\w+|\{[^}]*\}), /g;

/** Both `src/ledger` and `dist/ledger` lie two levels below the package. */
function defaultFolder(): string {
  return fileURLToPath(new URL('../../src/ledger/lua/', import.meta.url));
}

function names(list: string): readonly string[] {
  return [...list.matchAll(/'(\w+)'/g)].map((match) => match[1]!);
}

function operationsOf(source: string): ReadonlyMap<string, readonly string[]> {
  const operations = new Map<string, readonly string[]>();
  for (const [, name, list] of source.matchAll(OPERATION)) {
    const table = list!.startsWith('{')
      ? list!
      : new RegExp(`local ${list} = (\\{[^}]*\\})`).exec(source)?.[1];
    if (table === undefined) throw new Error(`operation ${name}: no list of arguments ${list}`);
    operations.set(name!, names(table));
  }
  return operations;
}

/** Reads `<name>.lua` and what it includes; EARMARK_LUA_DIR replaces the folder (tests break a rule that way). */
export function loadScript(name: string, folder = process.env['EARMARK_LUA_DIR']): Script {
  const root = folder ?? defaultFolder();
  const read = (file: string): string => readFileSync(`${root}/${file}.lua`, 'utf8');
  const source = read(name).replace(INCLUDE, (_line, kind: string, file: string) =>
    read(kind === 'include' ? `include/${file}` : file),
  );
  const sha = createHash('sha1').update(source).digest('hex');
  return { name, source, sha, operations: operationsOf(source) };
}
