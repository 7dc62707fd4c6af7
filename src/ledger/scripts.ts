/** The Lua scripts as shipped: includes flattened once, operations and their arguments read from the source. */
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
const OPERATION = /operation\('(\w+)', (\w+), /g;
const PLACED = /(\w+) = p\[(\d+)\]/g;

/** Both `src/ledger` and `dist/ledger` lie two levels below the package. */
function defaultFolder(): string {
  return fileURLToPath(new URL('../../src/ledger/lua/', import.meta.url));
}

/** The names in the order of their places: `{ id = p[2], operation = p[3] }`; p[1] is the operation's own name. */
function argumentsOf(source: string, reader: string): readonly string[] {
  const body = new RegExp(`local function ${reader}\\(p\\)\\s+return \\{([^}]*)\\}`).exec(
    source,
  )?.[1];
  if (body === undefined) throw new Error(`no list of arguments ${reader}`);
  const places = [...body.matchAll(PLACED)].map(([, name, at]) => [name!, Number(at)] as const);
  if (places.some(([, at], i) => at !== i + 2)) throw new Error(`${reader}: a place is missing`);
  return places.map(([name]) => name);
}

function operationsOf(source: string): ReadonlyMap<string, readonly string[]> {
  const found = [...source.matchAll(OPERATION)];
  return new Map(found.map(([, name, reader]) => [name!, argumentsOf(source, reader!)]));
}

/** Reads `<name>.lua` and what it includes; EARMARK_LUA_DIR replaces the folder (tests break a rule that way). */
export function loadScript(name: string, folder = process.env.EARMARK_LUA_DIR): Script {
  const root = folder ?? defaultFolder();
  const read = (file: string): string => readFileSync(`${root}/${file}.lua`, 'utf8');
  const source = read(name).replace(INCLUDE, (_line, kind: string, file: string) =>
    read(kind === 'include' ? `include/${file}` : file),
  );
  const sha = createHash('sha1').update(source).digest('hex');
  return { name, source, sha, operations: operationsOf(source) };
}
