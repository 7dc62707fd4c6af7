/**
 * Every rule of the scripts, broken mechanically: one change of one place each. Headers, comments, texts and the
 * places of arguments (`p[3]`, which the client reads) stay as they are.
 */
import { readdirSync, readFileSync } from 'node:fs';

export const SORTS = [
  'comparison',
  'sign',
  'bound',
  'logic',
  'condition',
  'dropped call',
  'dropped assignment',
  'order',
] as const;
export type Sort = (typeof SORTS)[number];

export interface Mutant {
  /** file:line:column sort text -> text, the same in each run. */
  readonly name: string;
  readonly file: string;
  readonly sort: Sort;
  /** The whole file, changed. */
  readonly source: string;
}

/** What admissions.lua and movements.lua are made of: the rules of the account. */
const FILES = [
  ...['reserve', 'start', 'release', 'settle', 'unknown', 'sweep', 'freeze'],
  ...['account', 'batch', 'context', 'ending', 'evidence', 'line', 'number'].map(inInclude),
  ...['receipt', 'reply', 'start', 'window'].map(inInclude),
];

function inInclude(name: string): string {
  return `include/${name}`;
}

interface Change {
  readonly sort: Sort;
  readonly from: number;
  readonly to: number;
  readonly text: string;
}

export function mutantsOf(folder: string): Mutant[] {
  const known = new Set([
    ...readdirSync(folder),
    ...readdirSync(`${folder}/include`).map(inInclude),
  ]);
  return FILES.filter((file) => known.has(`${file}.lua`)).flatMap((file) => {
    const source = readFileSync(`${folder}/${file}.lua`, 'utf8');
    return changesOf(source).map((change) => {
      const { sort, from, to, text } = change;
      const before = source.slice(0, from);
      const line = before.split('\n').length;
      const column = from - before.lastIndexOf('\n');
      const was = oneLine(source.slice(from, to));
      return {
        ...{ file, sort, name: `${file}:${line}:${column} ${sort}: ${was} -> ${oneLine(text)}` },
        source: before + text + source.slice(to),
      };
    });
  });
}

function oneLine(text: string): string {
  return text.replace(/\s+/g, ' ').trim() || '(nothing)';
}

/** The text with everything that is no code blanked, character for character. */
function codeOf(source: string): string {
  return source.replace(/--[^\n]*|'[^'\n]*'|#!lua[^\n]*/g, (text) =>
    text.startsWith("'") ? `'${'_'.repeat(text.length - 2)}'` : ' '.repeat(text.length),
  );
}

function changesOf(source: string): Change[] {
  const code = codeOf(source);
  const all = [...tokens(code), ...conditions(code), ...statements(code, source)];
  return all.filter(({ from }) => !isOfTheWire(code, from)).sort((a, b) => a.from - b.from);
}

/** In a reader of arguments (`p[2]`), or in the top lines that read or write packed bytes by their place. */
function isOfTheWire(code: string, at: number): boolean {
  const line = code.slice(code.lastIndexOf('\n', at - 1) + 1, code.indexOf('\n', at));
  return /\b[pfl]\[\d+\]/.test(line) || /string\.rep|HEAD_BYTES|BOOK_BYTES|struct\./.test(line);
}

const SWAPS: readonly (readonly [Sort, RegExp, (text: string) => string[]])[] = [
  ['comparison', /<=|>=|==|~=|<|>/g, comparisonsFor],
  ['sign', / [-+*] /g, (text) => [text.includes('+') ? ' - ' : ' + ']],
  ['bound', /math\.(?:min|max)\b/g, (text) => [text.endsWith('min') ? 'math.max' : 'math.min']],
  ['bound', /(?<![\w.\]'])\d+(?![\w.])/g, (text) => [String(Number(text) + 1)]],
  ['logic', /\b(?:and|or)\b/g, (text) => [text === 'and' ? 'or' : 'and']],
  ['logic', /\bnot /g, () => ['']],
  ['logic', /\b(?:true|false)\b/g, (text) => [text === 'true' ? 'false' : 'true']],
];

function comparisonsFor(operator: string): string[] {
  switch (operator) {
    case '<':
      return ['<=', '>='];
    case '<=':
      return ['<', '>'];
    case '>':
      return ['>=', '<='];
    case '>=':
      return ['>', '<'];
    default:
      return [operator === '==' ? '~=' : '=='];
  }
}

function tokens(code: string): Change[] {
  return SWAPS.flatMap(([sort, pattern, others]) =>
    [...code.matchAll(pattern)].flatMap((match) =>
      others(match[0]).map((text) => {
        return { sort, from: match.index, to: match.index + match[0].length, text };
      }),
    ),
  );
}

/** A check that is always passed, or never: the missing idempotency checks are among them. */
function conditions(code: string): Change[] {
  return [...code.matchAll(/\b(?:else)?if ([^\n]+?) then\b/g)].flatMap((match) => {
    const from = match.index + match[0].indexOf(match[1]!);
    const to = from + match[1]!.length;
    return ['true', 'false'].map((text) => ({ sort: 'condition' as const, from, to, text }));
  });
}

/** One statement on one line; what declares a name can't go without breaking the rest. */
const CALL = /^ *(?! |return\b|function\b|if\b|for\b|while\b|local\b|operation\()[\w.]+\(.*\)$/;
const ASSIGNMENT =
  /^ *(?! |local\b|return\b|for\b|if\b|function\b|while\b)[\w.[\], ]+ = [^{]*[^{,(]$/;

/** Whole lines of one statement: dropped, and changed places with the next one. */
function statements(code: string, source: string): Change[] {
  const changes: Change[] = [];
  const lines = code.split('\n');
  const sortOf = (line: string | undefined): Sort | undefined => {
    if (line === undefined || !balanced(line)) return undefined;
    if (CALL.test(line)) return 'dropped call';
    return ASSIGNMENT.test(line) ? 'dropped assignment' : undefined;
  };
  let from = 0;
  for (const [i, line] of lines.entries()) {
    const to = from + line.length;
    const sort = sortOf(line);
    const next = lines[i + 1];
    if (sort !== undefined && line.startsWith(' ')) {
      changes.push({ sort, from, to, text: '' });
      // Two assignments seldom depend on each other; where a call is one of both, what is written when is a rule.
      const calls = sort === 'dropped call' || sortOf(next) === 'dropped call';
      if (calls && sortOf(next) !== undefined && indent(line) === indent(next!)) {
        const end = to + 1 + next!.length;
        const text = `${source.slice(to + 1, end)}\n${source.slice(from, to)}`;
        changes.push({ sort: 'order', from, to: end, text });
      }
    }
    from = to + 1;
  }
  return changes;
}

function indent(line: string): number {
  return line.length - line.trimStart().length;
}

function balanced(line: string): boolean {
  return line.split('(').length === line.split(')').length;
}
