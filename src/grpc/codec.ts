/**
 * A CheckRequest read and its answer written, without the parts that earmark never looks at (proto/envoy names all
 * that it does). A generated decoder makes an object of everything; that costs several times as much.
 */
import protobuf from 'protobufjs/minimal.js';
import type { CheckAnswer, CheckRequest, Header, Metadata, MetadataValue } from '../envoy/types.js';
import {
  DOUBLE_2,
  dictionary,
  filterMetadata,
  read,
  readAll,
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

type Writer = protobuf.Writer;

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

function writeHeaders(writer: Writer, field: number, headers: readonly Header[]): void {
  for (const [name, value] of headers) {
    writer.uint32(text(field)).fork();
    writer.uint32(TEXT_1).fork();
    writer.uint32(TEXT_1).string(name).uint32(TEXT_2).string(value).ldelim();
    writer.uint32(varint(3)).uint32(OVERWRITE_IF_EXISTS_OR_ADD).ldelim();
  }
}

function writeValue(writer: Writer, value: MetadataValue): void {
  if (value === null) writer.uint32(VARINT_1).uint32(0);
  else if (typeof value === 'string') writer.uint32(TEXT_3).string(value);
  else if (typeof value === 'number') writer.uint32(DOUBLE_2).double(value);
  else if (typeof value === 'boolean') writer.uint32(VARINT_4).bool(value);
  else if (isList(value)) {
    writer.uint32(TEXT_6).fork();
    for (const item of value) {
      writer.uint32(TEXT_1).fork();
      writeValue(writer, item);
      writer.ldelim();
    }
    writer.ldelim();
  } else {
    writer.uint32(TEXT_5).fork();
    writeStruct(writer, value);
    writer.ldelim();
  }
}

function isList(value: MetadataValue): value is readonly MetadataValue[] {
  return Array.isArray(value);
}

function writeStruct(writer: Writer, fields: Metadata): void {
  for (const name in fields) {
    writer.uint32(TEXT_1).fork().uint32(TEXT_1).string(name).uint32(TEXT_2).fork();
    writeValue(writer, fields[name]!);
    writer.ldelim().ldelim();
  }
}

export function encodeCheckAnswer(answer: CheckAnswer): Buffer {
  const writer = protobuf.Writer.create();
  writer.uint32(TEXT_1).fork();
  if (answer.kind === 'denied') writer.uint32(VARINT_1).uint32(PERMISSION_DENIED);
  if (answer.kind === 'error') writer.uint32(VARINT_1).uint32(UNAVAILABLE);
  writer.ldelim();
  if (answer.kind === 'ok') {
    writer.uint32(TEXT_3).fork();
    writeHeaders(writer, 2, answer.requestHeaders);
    for (const name of answer.removed) writer.uint32(TEXT_5).string(name);
    writeHeaders(writer, 6, answer.responseHeaders);
    writer.ldelim();
  } else {
    writer.uint32(answer.kind === 'denied' ? TEXT_2 : TEXT_5).fork();
    writer.uint32(TEXT_1).fork().uint32(VARINT_1).uint32(answer.status).ldelim();
    writeHeaders(writer, 2, answer.headers);
    writer.uint32(TEXT_3).string(answer.body).ldelim();
  }
  writer.uint32(TEXT_4).fork();
  writeStruct(writer, answer.metadata);
  return writer.ldelim().finish() as Buffer;
}
