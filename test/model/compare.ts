/** What the model says and what the scripts say: the first few fields in which they differ, by path. */
import type { LineDump } from '../../src/ledger/types.js';
import type { Reply } from './model.js';

/** `detail` is text for people. */
const FREE = new Set(['detail']);

export function differences(model: unknown, real: unknown, path = ''): string[] {
  if (agree(model, real)) return [];
  if (isObject(model) && isObject(real)) {
    const names = new Set([...Object.keys(model), ...Object.keys(real)]);
    return [...names]
      .filter((name) => !FREE.has(name))
      .flatMap((name) => differences(model[name], real[name], `${path}.${name}`));
  }
  return [`${path || 'all'}: model ${JSON.stringify(model)}, scripts ${JSON.stringify(real)}`];
}

/** The same question without an answer to print: all but always yes, so it must be quick. */
function agree(model: unknown, real: unknown): boolean {
  if (Object.is(model, real)) return true;
  if (!isObject(model) || !isObject(real)) return false;
  for (const name in model) {
    if (!FREE.has(name) && !agree(model[name], real[name])) return false;
  }
  for (const name in real) if (!(name in model) && real[name] !== undefined) return false;
  return true;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null;
}

export function replyDifferences(model: Reply, real: Reply): string[] {
  return differences(model, real, 'reply');
}

export function dumpDifferences(model: readonly LineDump[], real: readonly LineDump[]): string[] {
  return differences(model.map(sorted), real.map(sorted), 'line');
}

/** Receipts and archives come in no order. */
function sorted(dump: LineDump) {
  const receipts = Object.fromEntries(
    dump.receipts.map((receipt) => [
      `${receipt.reservation}${receipt.own ? `:${receipt.operation}` : ''}`,
      receipt,
    ]),
  );
  const archive = Object.fromEntries(dump.archive.map((book) => [book.limit, book]));
  return { ...dump, receipts, archive };
}
