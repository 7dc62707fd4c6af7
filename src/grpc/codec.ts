/**
 * A CheckRequest read and its answer written, without the parts that earmark never looks at (proto/envoy names all
 * that it does). A generated decoder makes an object of everything; that costs several times as much.
 */
import type {
  CheckAnswer,
  CheckRequest,
  Header,
  Metadata,
  MetadataValue,
  Passed,
  Refused,
} from '../envoy/types.js';
import { TailWriter } from './tail-writer.js';
import {
  DOUBLE_2,
  dictionary,
  filterMetadata,
  read,
  readAll,
  readOpaque,
  readPair,
  skip,
  TEXT_1,
  TEXT_2,
  TEXT_3,
  TEXT_4,
  TEXT_5,
  TEXT_6,
  TEXT_10,
  TEXT_11,
  TEXT_12,
  TEXT_13,
  text,
  VARINT_1,
  VARINT_4,
  type Visit,
  varint,
} from './wire.js';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

interface CheckTarget extends Mutable<CheckRequest> {
  headers: Record<string, string>;
  context: Record<string, string>;
  metadata: Record<string, Record<string, unknown>>;
}

interface RawHeader {
  key: string;
  value: string;
}

const rawHeader: Visit<RawHeader> = (reader, tag, entry) => {
  if (tag === TEXT_1) entry.key = reader.string();
  else if (tag === TEXT_2 || tag === TEXT_3) entry.value = reader.string();
  else skip(reader, tag);
};

/** `encode_raw_headers`: a list, in which a name may stand twice. */
const headerMap: Visit<Record<string, string>> = (reader, tag, headers) => {
  if (tag !== TEXT_1) return skip(reader, tag);
  const { key, value } = read(reader, { key: '', value: '' }, rawHeader);
  const before = headers[key];
  headers[key] = before === undefined ? value : `${before},${value}`;
};

const httpRequest: Visit<CheckTarget> = (reader, tag, into) => {
  if (tag === TEXT_3) readPair(reader, into.headers);
  else if (tag === TEXT_2) into.method = reader.string();
  else if (tag === TEXT_4) into.path = reader.string();
  else if (tag === TEXT_5) into.host = reader.string();
  else if (tag === TEXT_11 || tag === TEXT_12) into.body = reader.bytes() as Buffer;
  else if (tag === TEXT_13) read(reader, into.headers, headerMap);
  else skip(reader, tag);
};

const request: Visit<CheckTarget> = (reader, tag, into) => {
  if (tag === TEXT_2) read(reader, into, httpRequest);
  else if (tag === TEXT_1) into.startedAt = readOpaque(reader);
  else skip(reader, tag);
};

const peer: Visit<CheckTarget> = (reader, tag, into) => {
  if (tag === TEXT_4) into.principal = reader.string();
  else skip(reader, tag);
};

const attributes: Visit<CheckTarget> = (reader, tag, into) => {
  if (tag === TEXT_1) read(reader, into, peer);
  else if (tag === TEXT_4) read(reader, into, request);
  else if (tag === TEXT_10) readPair(reader, into.context);
  else if (tag === TEXT_11) read(reader, into.metadata, filterMetadata);
  else skip(reader, tag);
};

const checkRequest: Visit<CheckTarget> = (reader, tag, into) => {
  if (tag === TEXT_1) read(reader, into, attributes);
  else skip(reader, tag);
};

const NO_BODY = Buffer.alloc(0);

/** The body is a view of `bytes`, not a copy. Throws where the bytes are no CheckRequest. */
export function decodeCheckRequest(bytes: Buffer): CheckRequest {
  const into: CheckTarget = {
    startedAt: '',
    method: '',
    path: '',
    host: '',
    headers: dictionary(),
    body: NO_BODY,
    context: dictionary(),
    principal: '',
    metadata: dictionary(),
  };
  return readAll(bytes, into, checkRequest);
}

const OVERWRITE_IF_EXISTS_OR_ADD = 2;
const PERMISSION_DENIED = 7;
const UNAVAILABLE = 14;

function writeHeaders(writer: TailWriter, field: number, headers: readonly Header[]): void {
  for (const [name, value] of headers.toReversed()) {
    const option = writer.length;
    writer.varint(varint(3), OVERWRITE_IF_EXISTS_OR_ADD);
    const header = writer.length;
    writer.text(TEXT_2, value);
    writer.text(TEXT_1, name);
    writer.close(TEXT_1, header);
    writer.close(text(field), option);
  }
}

function writeValue(writer: TailWriter, value: MetadataValue): void {
  if (value === null) writer.varint(VARINT_1, 0);
  else if (typeof value === 'string') writer.text(TEXT_3, value);
  else if (typeof value === 'number') writer.double(DOUBLE_2, value);
  else if (typeof value === 'boolean') writer.varint(VARINT_4, value ? 1 : 0);
  else {
    const mark = writer.length;
    if (isList(value)) writeList(writer, value);
    else writeStruct(writer, value);
    writer.close(isList(value) ? TEXT_6 : TEXT_5, mark);
  }
}

function writeList(writer: TailWriter, list: readonly MetadataValue[]): void {
  for (const item of list.toReversed()) {
    const mark = writer.length;
    writeValue(writer, item);
    writer.close(TEXT_1, mark);
  }
}

function isList(value: MetadataValue): value is readonly MetadataValue[] {
  return Array.isArray(value);
}

/** A Struct is a map: it has no order to keep. */
function writeStruct(writer: TailWriter, fields: Metadata): void {
  for (const name in fields) {
    const mark = writer.length;
    writeValue(writer, fields[name]!);
    writer.close(TEXT_2, mark);
    writer.text(TEXT_1, name);
    writer.close(TEXT_1, mark);
  }
}

function writePassed(writer: TailWriter, answer: Passed): void {
  const mark = writer.length;
  writeHeaders(writer, 6, answer.responseHeaders);
  for (const name of answer.removed.toReversed()) writer.text(TEXT_5, name);
  writeHeaders(writer, 2, answer.requestHeaders);
  writer.close(TEXT_3, mark);
}

function writeRefused(writer: TailWriter, answer: Refused): void {
  const mark = writer.length;
  writer.text(TEXT_3, answer.body);
  writeHeaders(writer, 2, answer.headers);
  const httpStatus = writer.length;
  writer.varint(VARINT_1, answer.status);
  writer.close(TEXT_1, httpStatus);
  writer.close(answer.kind === 'denied' ? TEXT_2 : TEXT_5, mark);
}

const CODES = { ok: 0, denied: PERMISSION_DENIED, error: UNAVAILABLE };

export function encodeCheckAnswer(answer: CheckAnswer): Buffer {
  const writer = new TailWriter();
  writeStruct(writer, answer.metadata);
  writer.close(TEXT_4, 0);
  if (answer.kind === 'ok') writePassed(writer, answer);
  else writeRefused(writer, answer);
  const mark = writer.length;
  writer.varint(VARINT_1, CODES[answer.kind]);
  writer.close(TEXT_1, mark);
  return writer.finish();
}
