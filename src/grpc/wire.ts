/** Reading protobuf messages field by field, without the parts that nobody looks at. */
import protobuf from 'protobufjs/minimal.js';

export type Reader = protobuf.Reader;

/** Reads one field; `tag` is its number and wire type, as it stands in the message. */
export type Visit<T> = (reader: Reader, tag: number, into: T) => void;

/** What is nested deeper is left out: it is nobody's usage or claim, and no reason to lose the rest. */
const DEPTH_MAX = 16;

export const text = (field: number): number => (field << 3) | 2;
export const varint = (field: number): number => field << 3;
const double = (field: number): number => (field << 3) | 1;

export const TEXT_1 = text(1);
export const TEXT_2 = text(2);
export const TEXT_3 = text(3);
export const TEXT_4 = text(4);
export const TEXT_5 = text(5);
export const TEXT_6 = text(6);
export const TEXT_9 = text(9);
export const TEXT_10 = text(10);
export const TEXT_11 = text(11);
export const TEXT_12 = text(12);
export const TEXT_13 = text(13);
export const TEXT_17 = text(17);
export const TEXT_26 = text(26);
export const VARINT_1 = varint(1);
export const VARINT_4 = varint(4);
export const VARINT_24 = varint(24);
export const VARINT_31 = varint(31);
export const VARINT_33 = varint(33);
export const DOUBLE_2 = double(2);

/** No name is inherited from anywhere, and yet its instances share a shape, unlike those of Object.create(null). */
const Dictionary = function Dictionary() {} as unknown as new () => Record<string, never>;
Dictionary.prototype = Object.create(null);

export function dictionary<T>(): Record<string, T> {
  return new Dictionary() as Record<string, T>;
}

function endOf(reader: Reader): number {
  const end = reader.uint32() + reader.pos;
  if (end > reader.len) throw new RangeError('a field is longer than its message');
  return end;
}

export function read<T>(reader: Reader, into: T, visit: Visit<T>): T {
  const end = endOf(reader);
  while (reader.pos < end) visit(reader, reader.uint32(), into);
  if (reader.pos !== end) throw new RangeError('a field reaches beyond its message');
  return into;
}

export function readAll<T>(bytes: Uint8Array, into: T, visit: Visit<T>): T {
  const reader = protobuf.Reader.create(bytes);
  while (reader.pos < reader.len) visit(reader, reader.uint32(), into);
  return into;
}

/** A message that is only compared with its like. */
export function readOpaque(reader: Reader): string {
  return (reader.bytes() as Buffer).toString('base64');
}

/** Steps over a field that isn't needed. */
export function skip(reader: Reader, tag: number): void {
  reader.skipType(tag & 7);
}

/* Maps and Structs */

/** One entry of a map of strings, which is what most of a Check consists of: no object in between. */
export function readPair(reader: Reader, into: Record<string, string>): void {
  const end = endOf(reader);
  let key = '';
  let value = '';
  while (reader.pos < end) {
    const tag = reader.uint32();
    if (tag === TEXT_1) key = reader.string();
    else if (tag === TEXT_2) value = reader.string();
    else skip(reader, tag);
  }
  if (reader.pos !== end) throw new RangeError('a field reaches beyond its message');
  into[key] = value;
}

interface ValueSlot {
  key: string;
  value: unknown;
  depth: number;
}

const structValue: Visit<ValueSlot> = (reader, tag, slot) => {
  if (tag === DOUBLE_2) slot.value = reader.double();
  else if (tag === TEXT_3) slot.value = reader.string();
  else if (tag === VARINT_4) slot.value = reader.bool();
  else if (slot.depth === DEPTH_MAX) skip(reader, tag);
  else if (tag === TEXT_5) slot.value = readStruct(reader, slot.depth + 1);
  else if (tag === TEXT_6) {
    const list: unknown[] = [];
    read(reader, { list, depth: slot.depth + 1 }, listValue);
    slot.value = list;
  } else skip(reader, tag);
};

const listValue: Visit<{ list: unknown[]; depth: number }> = (reader, tag, { list, depth }) => {
  if (tag === TEXT_1) list.push(read(reader, { key: '', value: null, depth }, structValue).value);
  else skip(reader, tag);
};

const structField: Visit<ValueSlot> = (reader, tag, slot) => {
  if (tag === TEXT_1) slot.key = reader.string();
  else if (tag === TEXT_2) read(reader, slot, structValue);
  else skip(reader, tag);
};

const struct: Visit<{ fields: Record<string, unknown>; depth: number }> = (reader, tag, into) => {
  if (tag !== TEXT_1) return skip(reader, tag);
  const slot: ValueSlot = { key: '', value: null, depth: into.depth };
  read(reader, slot, structField);
  into.fields[slot.key] = slot.value;
};

function readStruct(reader: Reader, depth: number): Record<string, unknown> {
  return read(reader, { fields: dictionary<unknown>(), depth }, struct).fields;
}

interface NamespaceSlot {
  key: string;
  value: Record<string, unknown>;
}

const namespaceEntry: Visit<NamespaceSlot> = (reader, tag, slot) => {
  if (tag === TEXT_1) slot.key = reader.string();
  else if (tag === TEXT_2) slot.value = readStruct(reader, 0);
  else skip(reader, tag);
};

/** config.core.v3.Metadata: the untyped part. */
export const filterMetadata: Visit<Record<string, Record<string, unknown>>> = (
  reader,
  tag,
  into,
) => {
  if (tag !== TEXT_1) return skip(reader, tag);
  const slot = read(reader, { key: '', value: dictionary<unknown>() }, namespaceEntry);
  into[slot.key] = slot.value;
};
