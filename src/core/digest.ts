/** What makes two requests the same one (design: requestDigest), and what names a request in the access log. */
import { createHash, type Hash } from 'node:crypto';

/** The methods that an access-log entry can name. */
export const METHODS = [
  '',
  'GET',
  'HEAD',
  'POST',
  'PUT',
  'DELETE',
  'CONNECT',
  'OPTIONS',
  'TRACE',
  'PATCH',
];

/** A request's body as Envoy gave it. */
export interface Body {
  readonly bytes: Uint8Array;
  /** Envoy sent only its beginning. */
  readonly cut: boolean;
  /** The whole body's length as the client declared it; -1: not declared. */
  readonly declaredBytes: number;
}

function framed(hashing: Hash, part: string | Uint8Array): void {
  hashing.update(`${typeof part === 'string' ? Buffer.byteLength(part) : part.length}:`);
  hashing.update(part);
}

function addBody(hashing: Hash, body: Body): void {
  framed(hashing, body.bytes);
  if (!body.cut) return;
  framed(hashing, 'cut');
  framed(hashing, String(body.declaredBytes));
}

/** SHA-256 over method, path with query, subject, route and body, each with its length in front: 43 characters. */
export function requestDigest(
  method: string,
  path: string,
  subject: string,
  route: string,
  body: Body,
): string {
  const hashing = createHash('sha256');
  let head = '';
  for (const part of [method, path, subject, route]) head += `${Buffer.byteLength(part)}:${part}`;
  hashing.update(head);
  addBody(hashing, body);
  return hashing.digest('base64url');
}

/** The body's own digest, for expressions: 43 characters. */
export function bodyDigest(body: Body): string {
  const hashing = createHash('sha256');
  addBody(hashing, body);
  return hashing.digest('base64url');
}

/** Method and path as the request ID's record holds them: as the access log can say them. */
export function methodPath(method: string, path: string): string {
  return `${METHODS.includes(method) ? method : ''} ${path}`;
}
