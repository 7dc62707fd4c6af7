/** What makes two requests the same one, and what names a request in the access log. */
import { hash } from 'node:crypto';

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

const framed = (part: string): string => `${Buffer.byteLength(part)}:${part}`;

/** One buffer for one hash: several updates of a Hash object take longer than the copy. */
function digestOf(head: string, body: Body): string {
  const { bytes, cut, declaredBytes } = body;
  const front = Buffer.from(`${head}${bytes.length}:`);
  const tail = cut ? framed('cut') + framed(String(declaredBytes)) : '';
  return hash('sha256', Buffer.concat([front, bytes, Buffer.from(tail)]), 'base64url');
}

/** SHA-256 over method, path with query, subject, route and body, each with its length in front: 43 characters. */
export function requestDigest(
  method: string,
  path: string,
  subject: string,
  route: string,
  body: Body,
): string {
  return digestOf(framed(method) + framed(path) + framed(subject) + framed(route), body);
}

/** The body's own digest, for expressions: 43 characters. */
export function bodyDigest(body: Body): string {
  return digestOf('', body);
}

/**
 * What a request's record is kept under. An ID alone may come from a client, and then stands on every repeat, also on
 * those that end before they are asked about; no two of them began at the same instant.
 */
export function requestName(requestId: string, startedAt: string): string {
  return `${startedAt} ${requestId}`;
}

/** Method and path as the request ID's record holds them: as the access log can say them. */
export function methodPath(method: string, path: string): string {
  return `${METHODS.includes(method) ? method : ''} ${path}`;
}
