/** Access-log entries read without the parts that earmark never looks at. */
import { METHODS } from '../core/digest.js';
import type { LogEntry } from '../settle/types.js';
import {
  dictionary,
  filterMetadata,
  type Reader,
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
  TEXT_9,
  TEXT_10,
  TEXT_17,
  TEXT_26,
  VARINT_1,
  VARINT_24,
  VARINT_31,
  VARINT_33,
  type Visit,
} from './wire.js';

const TYPES: Readonly<Record<number, string>> = { 0: '', 6: 'DownstreamEnd' };

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

type Entry = Mutable<LogEntry> & {
  responseHeaders: Record<string, string>;
  responseTrailers: Record<string, string>;
  metadata: Record<string, Record<string, unknown>>;
};

interface EntryTarget {
  readonly entry: Entry;
  streamId: string;
  originalPath: string;
}

const common: Visit<EntryTarget> = (reader, tag, into) => {
  const { entry } = into;
  if (tag === TEXT_10) {
    entry.complete = true;
    skip(reader, tag);
  } else if (tag === TEXT_5) entry.startedAt = readOpaque(reader);
  else if (tag === TEXT_17) read(reader, entry.metadata, filterMetadata);
  else if (tag === VARINT_24) entry.attempts = reader.uint32();
  else if (tag === TEXT_26) into.streamId = reader.string();
  else if (tag === VARINT_31) entry.upstreamBytesSent = Number(reader.uint64());
  else if (tag === VARINT_33) {
    const type = reader.uint32();
    entry.type = TYPES[type] ?? String(type);
  } else skip(reader, tag);
};

const loggedRequest: Visit<EntryTarget> = (reader, tag, into) => {
  const { entry } = into;
  if (tag === VARINT_1) entry.method = METHODS[reader.uint32()] ?? '';
  else if (tag === TEXT_5) entry.path = reader.string();
  else if (tag === TEXT_9) entry.requestId = reader.string();
  else if (tag === TEXT_10) into.originalPath = reader.string();
  else skip(reader, tag);
};

const responseCode: Visit<EntryTarget> = (reader, tag, { entry }) => {
  if (tag === VARINT_1) entry.status = reader.uint32();
  else skip(reader, tag);
};

const loggedResponse: Visit<EntryTarget> = (reader, tag, into) => {
  const { entry } = into;
  if (tag === TEXT_1) read(reader, into, responseCode);
  else if (tag === TEXT_4) readPair(reader, entry.responseHeaders);
  else if (tag === TEXT_5) readPair(reader, entry.responseTrailers);
  else if (tag === TEXT_6) entry.details = reader.string();
  else skip(reader, tag);
};

const httpEntry: Visit<EntryTarget> = (reader, tag, into) => {
  if (tag === TEXT_1) read(reader, into, common);
  else if (tag === TEXT_3) read(reader, into, loggedRequest);
  else if (tag === TEXT_4) read(reader, into, loggedResponse);
  else skip(reader, tag);
};

function emptyEntry(): Entry {
  return {
    type: '',
    startedAt: '',
    requestId: '',
    method: '',
    path: '',
    upstreamBytesSent: 0,
    attempts: 0,
    complete: false,
    status: 0,
    details: '',
    responseHeaders: dictionary(),
    responseTrailers: dictionary(),
    metadata: dictionary(),
  };
}

function readEntry(reader: Reader): LogEntry {
  const target: EntryTarget = { entry: emptyEntry(), streamId: '', originalPath: '' };
  const { entry, streamId, originalPath } = read(reader, target, httpEntry);
  if (entry.requestId === '') entry.requestId = streamId;
  if (originalPath !== '') entry.path = originalPath;
  return entry;
}

const httpEntries: Visit<LogEntry[]> = (reader, tag, entries) => {
  if (tag === TEXT_1) entries.push(readEntry(reader));
  else skip(reader, tag);
};

const logsMessage: Visit<LogEntry[]> = (reader, tag, entries) => {
  if (tag === TEXT_2) read(reader, entries, httpEntries);
  else skip(reader, tag);
};

/** The HTTP entries of one StreamAccessLogsMessage. Throws where the bytes are none. */
export function decodeLogEntries(bytes: Buffer): LogEntry[] {
  return readAll(bytes, [], logsMessage);
}
