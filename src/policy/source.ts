/** A YAML document read field by field: every error at once, each with its line, column, path and remedy. */
import {
  type Document,
  isAlias,
  isMap,
  isScalar,
  isSeq,
  LineCounter,
  type Node,
  parseDocument,
} from 'yaml';
import { type Decimal, parseDecimal } from '../core/decimal.js';
import { parseDuration } from './duration.js';
import type { Problem } from './types.js';

/** What people write. The canonical form of it, with every default in it, is several times as long. */
const BYTES_MAX = 1 << 20;

/** One document with what is wrong with it. A warning stops nothing. */
export class Source {
  readonly problems: Problem[] = [];
  readonly warnings: Problem[] = [];
  readonly file: string;
  readonly document: Document | undefined;
  private readonly lines = new LineCounter();

  constructor(text: string, file: string, bytesMax = BYTES_MAX) {
    this.file = file;
    if (text.length > bytesMax) {
      this.problems.push({ ...this.at(0, ''), message: 'is above 1 MiB: split it' });
      return;
    }
    this.document = parseDocument(text, { lineCounter: this.lines, prettyErrors: false });
    for (const error of this.document.errors) {
      this.problems.push({
        ...this.at(error.pos[0], ''),
        message: `is not YAML: ${error.message}`,
      });
    }
  }

  /** The document as a whole; undefined where it could not even be read. */
  root(): Cursor | undefined {
    if (this.problems.length > 0 || this.document === undefined) return undefined;
    return new Cursor(this, this.document.contents ?? undefined, '', 0);
  }

  /** In the order of the document. */
  sorted(): { problems: readonly Problem[]; warnings: readonly Problem[] } {
    const order = (a: Problem, b: Problem): number => a.line - b.line || a.column - b.column;
    return { problems: this.problems.toSorted(order), warnings: this.warnings.toSorted(order) };
  }

  at(offset: number, path: string): Omit<Problem, 'message'> {
    const { line, col } = offset === 0 ? { line: 1, col: 1 } : this.lines.linePos(offset);
    return { file: this.file, line, column: col, path };
  }
}

/** One place in the document. What fails is noted and gives the default, so that reading goes on. */
export class Cursor {
  readonly path: string;
  readonly source: Source;
  private readonly node: Node | undefined;
  private readonly keyOffset: number;
  private readonly offset: number;

  constructor(source: Source, node: Node | undefined, path: string, offset: number) {
    this.source = source;
    this.node = isAlias(node) ? node.resolve(source.document!) : node;
    this.path = path;
    this.keyOffset = offset;
    this.offset = node?.range?.[0] ?? offset;
  }

  /** A key without a value (`burst:`) counts as left out. */
  get present(): boolean {
    return this.node !== undefined && !(isScalar(this.node) && this.node.value === null);
  }

  get isEmptyList(): boolean {
    return isSeq(this.node) && this.node.items.length === 0;
  }

  get isList(): boolean {
    return isSeq(this.node);
  }

  get isMapping(): boolean {
    return isMap(this.node);
  }

  /** Is the scalar of this value. */
  is(value: string | number): boolean {
    return this.scalar() === value;
  }

  /** Of the whole document, so far: whether reading a part of it added one. */
  get problems(): number {
    return this.source.problems.length;
  }

  fail(message: string): void {
    this.source.problems.push({ ...this.source.at(this.offset, this.path), message });
  }

  /** What is wrong is the key, not what it holds. */
  private failKey(message: string): void {
    this.source.problems.push({ ...this.source.at(this.keyOffset, this.path), message });
  }

  warn(message: string): void {
    this.source.warnings.push({ ...this.source.at(this.offset, this.path), message });
  }

  /** This place as a mapping that has no other key than these. */
  mapping(known: readonly string[]): (key: string) => Cursor {
    const entries = this.entries();
    for (const [key, value] of entries) {
      if (!known.includes(key)) value.failKey(`is unknown: ${remedyFor(key, known)}`);
    }
    const byKey = new Map(entries);
    return (key) =>
      byKey.get(key) ?? new Cursor(this.source, undefined, this.pathOf(key), this.offset);
  }

  /** The entries of a mapping whose keys are names of the user's own. */
  entries(): readonly (readonly [string, Cursor])[] {
    if (!this.present) return [];
    if (!isMap(this.node)) {
      this.fail('must be a mapping such as { key: value }');
      return [];
    }
    return this.node.items.map((pair) => {
      const keyNode = pair.key as Node;
      const key = isScalar(keyNode) ? String(keyNode.value) : '?';
      const offset = keyNode.range?.[0] ?? this.offset;
      const cursor = new Cursor(
        this.source,
        (pair.value as Node) ?? undefined,
        this.pathOf(key),
        offset,
      );
      return [key, cursor] as const;
    });
  }

  items(): readonly Cursor[] {
    if (!this.present) return [];
    if (!isSeq(this.node)) {
      this.fail('must be a list such as [a, b]');
      return [];
    }
    return this.node.items.map(
      (item, i) => new Cursor(this.source, item as Node, `${this.path}[${i}]`, this.offset),
    );
  }

  /** `what` completes "must be". */
  text(fallback: string | undefined, what = 'text'): string {
    const value = this.scalar();
    if (typeof value === 'string') return value;
    const quotes = this.present && isScalar(this.node) ? ': put it in quotes' : '';
    return this.missing(fallback, `must be ${what}${quotes}`) ?? '';
  }

  /** A whole number from `min` to 2^53 - 1; `or` names what else the caller takes. */
  integer(min: number, fallback?: number, or = ''): number {
    const value = this.scalar();
    if (typeof value === 'number' && Number.isSafeInteger(value) && value >= min) return value;
    return (
      this.missing(fallback, `must be ${or}a whole number from ${min} to 9007199254740991`) ?? min
    );
  }

  flag(fallback: boolean): boolean {
    const value = this.scalar();
    if (typeof value === 'boolean') return value;
    return this.missing(fallback, 'must be true or false') ?? fallback;
  }

  choice<T extends string>(values: readonly T[], fallback?: T): T {
    const value = this.scalar();
    const found = values.find((known) => known === value);
    if (found !== undefined) return found;
    return (
      this.missing(fallback, `must be ${values.join(', ')}`.replace(/, ([^,]*)$/, ' or $1')) ??
      values[0]!
    );
  }

  /** A length of time in ms, at least 1 ms; `or` as for `integer`. */
  duration(fallback?: string, or = ''): number {
    const value = this.scalar();
    const ms = typeof value === 'string' ? parseDuration(value) : undefined;
    if (ms !== undefined && ms > 0) return ms;
    const text = this.missing(
      fallback,
      `must be ${or}a length of time such as 150ms, 30s, 10m, 24h, 1d, 1w`,
    );
    return (text === undefined ? undefined : parseDuration(text)) ?? 1;
  }

  /** An exact decimal, read from the text as it stands in the document. */
  decimal(fallback?: string): Decimal {
    const text =
      isScalar(this.node) && this.node.value !== null
        ? (this.node.source ?? String(this.node.value))
        : undefined;
    const value = text === undefined ? undefined : parseDecimal(text);
    if (value !== undefined) return value;
    const known = this.missing(
      fallback,
      'must be a plain decimal of at most 18 places such as 0.15',
    );
    return parseDecimal(known ?? '1')!;
  }

  private scalar(): unknown {
    return isScalar(this.node) ? this.node.value : undefined;
  }

  private missing<T>(fallback: T | undefined, message: string): T | undefined {
    if (this.present) this.fail(message);
    else if (fallback === undefined) this.fail(`is missing: it ${message}`);
    return fallback;
  }

  private pathOf(key: string): string {
    const plain = /^[A-Za-z][\w-]*$/.test(key);
    if (!plain) return `${this.path}[${JSON.stringify(key)}]`;
    return this.path === '' ? key : `${this.path}.${key}`;
  }
}

/** The name that was meant, where one is close; else all that there are. */
function remedyFor(key: string, known: readonly string[]): string {
  const close = known.find((name) => edits(key.toLowerCase(), name.toLowerCase()) <= 2);
  return close === undefined
    ? `remove it; there are ${known.join(', ')}`
    : `did you mean ${close}?`;
}

/** Insertions, deletions, replacements and swaps of neighbours between two short words. */
function edits(a: string, b: string): number {
  const rows = [Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      const best = Math.min(rows[i - 1]![j]! + 1, row[j - 1]! + 1, rows[i - 1]![j - 1]! + same);
      row.push(swapped ? Math.min(best, rows[i - 2]![j - 2]! + 1) : best);
    }
    rows.push(row);
  }
  return rows[a.length]![b.length]!;
}
