/** Where a budget's reports of use are looked for. */
import type { Json } from './canonical.js';
import { FREE_STATUSES, USAGE_FIELDS, USAGE_KEYS } from './schema.js';
import type { Cursor } from './source.js';
import type { UsageRules } from './types.js';

const SOURCES = ['trailers', 'headers', 'metadata'] as const;
type UsageField = keyof typeof USAGE_FIELDS;

export function readUsage(
  at: Cursor,
  onlyFor: (at: Cursor, accepted: string) => void,
): { rules: UsageRules; canonical: { readonly [key: string]: Json } } {
  const field = at.mapping(USAGE_KEYS);
  onlyFor(field('unreported'), 'unknown');
  onlyFor(field('lookup'), 'none');
  const rules: UsageRules = {
    from: list(field('from'), SOURCES, (item) => item.choice(SOURCES)),
    fields: readFields(field('fields')),
    namespaces: list(field('namespaces'), ['llm.usage'], (item) => item.text(undefined)),
    partial: field('partial').choice(['trust', 'atLeast'], 'trust'),
    freeStatuses: list(field('freeStatuses'), FREE_STATUSES, readStatus),
    retriesBeforeSendingOnly: field('retriesBeforeSendingOnly').flag(false),
  };
  const canonical = { ...rules, unreported: 'unknown', lookup: 'none' };
  return { rules, canonical: canonical as unknown as { readonly [key: string]: Json } };
}

function list<T>(at: Cursor, fallback: readonly T[], read: (item: Cursor) => T): readonly T[] {
  if (!at.present) return fallback;
  const { problems } = at.source;
  const before = problems.length;
  const items = at.items();
  const values = items.map(read);
  if (problems.length > before) return fallback;
  const twice = values.findIndex((value, i) => values.indexOf(value) < i);
  if (twice >= 0) items[twice]!.fail('stands there twice: remove one');
  return values;
}

function readStatus(at: Cursor): number {
  const status = at.integer(100);
  // A success that said nothing may well have run.
  if (status < 400 || status > 599) at.fail('must be a status from 400 to 599');
  return status;
}

/** What a document leaves out keeps its default name. */
function readFields(at: Cursor): UsageRules['fields'] {
  const names = Object.keys(USAGE_FIELDS) as UsageField[];
  const field = at.mapping(names);
  const read = names.map((name) => {
    const header = field(name).text(USAGE_FIELDS[name]);
    if (!/^[a-z0-9][a-z0-9_-]*$/.test(header)) {
      field(name).fail('must be the name of a header in lower case, as Envoy reports it');
    }
    return [name, header] as const;
  });
  return Object.fromEntries(read);
}
