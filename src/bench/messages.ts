/** Real messages with other IDs in them: made by copying, so that sending load costs little beside answering it. */
import protobuf from 'protobufjs/minimal.js';
import { CHECK_REQUEST, LOG_MESSAGE, REQUEST_ID, TENANT } from './captured.js';

/** The namespace of the access log in which a Check's metadata returns. */
const OWN_NAMESPACE = 'envoy.filters.http.ext_authz';

const bytesTag = (field: number): number => (field << 3) | 2;

function placesOf(bytes: Buffer, text: string): number[] {
  const places: number[] = [];
  for (let at = bytes.indexOf(text); at >= 0; at = bytes.indexOf(text, at + 1)) places.push(at);
  return places;
}

/** Request IDs differ in the last twelve of their characters. */
function requestId(n: number): string {
  return REQUEST_ID.slice(0, -12) + n.toString().padStart(12, '0');
}

const checkIds = placesOf(CHECK_REQUEST, REQUEST_ID);
const checkTenants = placesOf(CHECK_REQUEST, TENANT);

/** The Check of request `n`, for one of up to a million tenants. */
export function checkMessage(n: number, tenant: number): Buffer {
  const bytes = Buffer.from(CHECK_REQUEST);
  const name = TENANT.slice(0, -6) + tenant.toString().padStart(6, '0');
  for (const at of checkTenants) bytes.write(name, at, 'latin1');
  for (const at of checkIds) bytes.write(requestId(n), at, 'latin1');
  return bytes;
}

/** The metadata of a CheckResponse that lets the request through; throws at any other. */
export function metadataOf(answer: Buffer): Buffer {
  const reader = protobuf.Reader.create(answer);
  let ok = false;
  while (reader.pos < reader.len) {
    const tag = reader.uint32();
    if (tag === bytesTag(4) && ok) return reader.bytes() as Buffer;
    if (tag === bytesTag(3)) ok = true;
    reader.skipType(tag & 7);
  }
  throw new Error(`a Check was not let through: ${answer.toString('latin1')}`);
}

/** The message with the field at the end of `path` changed, and every length around it. */
function changed(
  bytes: Uint8Array,
  path: readonly number[],
  change: (value: Uint8Array) => Uint8Array,
): Uint8Array {
  const [field, ...rest] = path;
  if (field === undefined) return change(bytes);
  const reader = protobuf.Reader.create(bytes);
  const parts: Uint8Array[] = [];
  while (reader.pos < reader.len) {
    const start = reader.pos;
    const tag = reader.uint32();
    if (tag === bytesTag(field)) {
      const value = changed(reader.bytes(), rest, change);
      parts.push(protobuf.Writer.create().uint32(tag).bytes(value).finish());
    } else {
      reader.skipType(tag & 7);
      parts.push(bytes.subarray(start, reader.pos));
    }
  }
  return Buffer.concat(parts);
}

/** Down to filter_metadata: http_logs, log_entry, common_properties, metadata. */
const FILTER_METADATA = [2, 1, 1, 17, 1];

interface Template {
  readonly bytes: Buffer;
  readonly metadataAt: number;
  readonly idsAt: readonly number[];
}

function templateFor(metadata: Buffer): Template {
  const own = (entry: Uint8Array): Uint8Array =>
    Buffer.from(entry).includes(OWN_NAMESPACE) ? changed(entry, [2], () => metadata) : entry;
  const bytes = Buffer.from(changed(LOG_MESSAGE, FILTER_METADATA, own));
  return { bytes, metadataAt: bytes.indexOf(metadata), idsAt: placesOf(bytes, REQUEST_ID) };
}

/** By the length of the metadata: an answer's own is always as long as the last one's, or nearly always. */
const templates = new Map<number, Template>();

/** The access-log message that ends request `n`, of which the Check was answered with this metadata. */
export function logMessage(n: number, metadata: Buffer): Buffer {
  let template = templates.get(metadata.length);
  if (template === undefined) {
    template = templateFor(metadata);
    templates.set(metadata.length, template);
  }
  const bytes = Buffer.from(template.bytes);
  metadata.copy(bytes, template.metadataAt);
  for (const at of template.idsAt) bytes.write(requestId(n), at, 'latin1');
  return bytes;
}

/** As gRPC sends a message: not compressed, its length in front. */
export function framed(message: Buffer): Buffer {
  const frame = Buffer.allocUnsafe(message.length + 5);
  frame[0] = 0;
  frame.writeUInt32BE(message.length, 1);
  message.copy(frame, 5);
  return frame;
}
