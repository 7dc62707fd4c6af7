/** The form of a document that is stored and compared: defaults filled in, keys sorted, nothing that says nothing. */
import { createHash } from 'node:crypto';

export type Json =
  | string
  | number
  | boolean
  | null
  | readonly Json[]
  | { readonly [key: string]: Json };

export function canonicalJson(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`;
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  const keys = Object.keys(value).sort();
  const object = value as { readonly [key: string]: Json };
  return `{${keys.map((key) => `${JSON.stringify(key)}:${canonicalJson(object[key]!)}`).join(',')}}`;
}

/** SHA-256 of a canonical form, hex. */
export function contentOf(canonical: string): string {
  return createHash('sha256').update(canonical).digest('hex');
}
