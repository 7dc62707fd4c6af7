/** Messages for every door of earmark, drawn from one seed: whole ones full of oddities, mutated ones, and noise. */
import { gzipSync } from 'node:zlib';
import { envoyBytes } from '../support/envoy-messages.js';

export type Kind = 'valid' | 'mutated' | 'random';

/** mulberry32: small, and the same everywhere. */
export class Dice {
  #state: number;
  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** 0 to 1, without 1. */
  real(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = this.#state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  }

  below(count: number): number {
    return Math.floor(this.real() * count);
  }

  chance(of: number): boolean {
    return this.real() < of;
  }

  one<T>(list: readonly T[]): T {
    return list[this.below(list.length)]!;
  }

  bytes(count: number): Buffer {
    const bytes = Buffer.alloc(count);
    for (let at = 0; at < count; at++) bytes[at] = this.below(256);
    return bytes;
  }
}

const ODD_TEXTS = [
  ...['', ' ', '\t\r\n', '\0', 'a\0b', 'a\nb', ':', '{', '}', '{}', 'a:b', '{a}:b', '%', '*?[]\\'],
  ...['é', '✓', '😀', '\u{1f468}\u200d\u{1f469}', '\ufeff', '\u202eabc', '\uffff', '__proto__'],
  ...['constructor', 'toString', 'undefined', 'null', 'NaN', '-1', '0', '1e999', '1.5', '0x10'],
  ...['9007199254740991', '9007199254740992', '9223372036854775807', '18446744073709551615'],
  ...['"', "'", '\\', '<script>', '../../etc', 'Infinity', '2026-12-01', 'k1,k1', 'rl-'],
];

const ODD_NUMBERS = [
  ...[0, -0, -1, 1, 1.5, 2 ** 31, 2 ** 32, 2 ** 53 - 1, 2 ** 53, 2 ** 63, 2 ** 64, 1e308],
  ...[Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, Number.MIN_VALUE],
];

function text(dice: Dice): string {
  if (dice.chance(0.01)) return dice.one(['x', '😀', '{']).repeat(dice.below(8192));
  if (dice.chance(0.3)) return dice.one(ODD_TEXTS) + dice.one(ODD_TEXTS);
  return dice.one(ODD_TEXTS);
}

/** Anything a Struct or a JSON body may hold. */
function anything(dice: Dice, depth = 0): unknown {
  const kind = dice.below(depth > 3 ? 4 : 6);
  if (kind === 0) return null;
  if (kind === 1) return dice.chance(0.5);
  if (kind === 2) return dice.one(ODD_NUMBERS);
  if (kind === 3) return text(dice);
  const count = dice.below(4);
  if (kind === 4) return Array.from({ length: count }, () => anything(dice, depth + 1));
  return Object.fromEntries(
    Array.from({ length: count }, () => [text(dice), anything(dice, depth + 1)]),
  );
}

function nested(depth: number): string {
  return `${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`;
}

const BODY_FIELDS = ['model', 'stream', 'max_tokens', 'max_completion_tokens', 'n', 'messages'];

function body(dice: Dice): Buffer {
  const kind = dice.below(10);
  if (kind === 0) return Buffer.alloc(0);
  if (kind === 1) return dice.bytes(dice.below(200));
  if (kind === 2) return gzipSync('{"max_tokens":5}');
  if (kind === 3) return Buffer.from(nested(dice.below(2000)));
  if (kind === 4) return Buffer.from('{"max_tokens":1,"max_tokens":2,"__proto__":{"n":3}}');
  const fields = Object.fromEntries(
    BODY_FIELDS.filter(() => dice.chance(0.4)).map((name) => [name, anything(dice)]),
  );
  const whole = JSON.stringify({ ...fields, ...(dice.chance(0.5) ? { max_tokens: 5 } : {}) });
  return Buffer.from(kind === 5 ? whole.slice(0, dice.below(whole.length)) : whole);
}

const HEADERS = [
  ...['x-tenant', 'x-request-id', 'idempotency-key', 'content-type', 'content-length'],
  ...['x-envoy-auth-partial-body', 'x-earmark-reservation', 'accept-encoding', 'x-other'],
];

const SUBJECTS = ['a', 'b', 'c', 'a:b', '{a}', 'ü ✓', '\0', '😀'];

const ROUTES = ['chat', 'refilled', 'both', 'executor'];

/**
 * Few at a time, so that messages meet on a line, and those of one number under one key; new ones when the old are in
 * debt for good.
 */
function subject(dice: Dice, number: number): string {
  const one = dice.chance(0.9) ? SUBJECTS[number % SUBJECTS.length] : dice.one(SUBJECTS);
  return `${one}${Math.floor(number / 2000)}`;
}

function route(dice: Dice, number: number): string {
  return dice.chance(0.9) ? ROUTES[number % ROUTES.length]! : text(dice);
}

function headers(dice: Dice, number: number): Record<string, string> {
  const odd = Object.fromEntries(
    HEADERS.filter(() => dice.chance(0.15)).map((name) => [name, text(dice)]),
  );
  const many = dice.chance(0.005)
    ? Object.fromEntries(Array.from({ length: 1000 }, (_none, at) => [`x-${at}`, 'v']))
    : {};
  const json = dice.chance(0.7) ? { 'content-type': 'application/json' } : {};
  const named = { 'x-tenant': subject(dice, number), 'x-request-id': `request-${number}` };
  return { ...named, ...json, ...many, ...odd };
}

const PATH = '/v1/chat/completions';
const BEGAN = '2027-03-09T12:00:00Z';

export function checkRequest(dice: Dice, number: number): Buffer {
  const path = dice.chance(0.9) ? PATH : text(dice);
  const raw = { [dice.chance(0.5) ? 'body' : 'raw_body']: '' };
  const bytes = body(dice);
  const http = {
    ...{ method: dice.chance(0.9) ? 'POST' : text(dice), path, host: 'llm' },
    headers: headers(dice, number),
    ...('body' in raw ? { body: bytes.toString() } : { raw_body: bytes }),
  };
  const attributes = {
    request: { time: BEGAN, http },
    context_extensions: { route: route(dice, number) },
    ...(dice.chance(0.2) ? { source: { principal: text(dice) } } : {}),
    ...(dice.chance(0.2) ? { metadata_context: { filter_metadata: metadata(dice) } } : {}),
  };
  return envoyBytes('envoy.service.auth.v3.CheckRequest', { attributes });
}

function object(dice: Dice): object {
  return { [text(dice)]: anything(dice), [text(dice)]: anything(dice) };
}

function metadata(dice: Dice): Record<string, object> {
  return { [text(dice)]: object(dice), 'llm.usage': object(dice) };
}

const OURS = 'envoy.filters.http.ext_authz';

/** About a Check that was made, or about none; with our metadata, with a forgery, or without. */
export function logMessage(
  dice: Dice,
  about: { readonly requestId: string; readonly ours: object },
): Buffer {
  const ours = dice.chance(0.8) ? about.ours : { ...about.ours, ...object(dice) };
  const usage = dice.chance(0.95)
    ? { total_tokens: dice.below(200) }
    : { [dice.one(['total_tokens', 'prompt_tokens', 'usage'])]: anything(dice) };
  const trailers = dice.chance(0.2)
    ? { [dice.one(['x-usage-total-tokens', 'x-usage-input-tokens'])]: text(dice) }
    : {};
  const entry = {
    common_properties: {
      start_time: BEGAN,
      ...(dice.chance(0.7) ? { time_to_last_upstream_rx_byte: '0.009s' } : {}),
      metadata: {
        filter_metadata: {
          ...(dice.chance(0.7) ? { [OURS]: ours } : {}),
          ...(dice.chance(0.7) ? { 'llm.usage': usage } : {}),
        },
      },
      upstream_request_attempt_count: dice.chance(0.8) ? 1 : dice.below(2 ** 32),
      ...(dice.chance(0.8)
        ? { upstream_wire_bytes_sent: dice.one(['0', '300', '4294967296']) }
        : {}),
      ...(dice.chance(0.9) ? { access_log_type: 'DownstreamEnd' } : {}),
    },
    request: { request_method: 'POST', path: PATH, request_id: about.requestId },
    response: {
      response_code: { value: dice.one([200, 200, 400, 429, 500, 0]) }.value,
      response_trailers: trailers,
      response_code_details: dice.one(['via_upstream', 'ext_authz_denied', text(dice)]),
    },
  };
  return envoyBytes('envoy.service.accesslog.v3.StreamAccessLogsMessage', {
    http_logs: { log_entry: dice.chance(0.9) ? [entry] : [entry, entry] },
  });
}

const ODD_AMOUNTS = ['-1', '9007199254740991', '9007199254740992', '-9223372036854775808'];

/** Fields of a call of earmark.v1, by the method's name; `known` are reservations that were made. */
export function ledgerFields(
  dice: Dice,
  known: readonly { readonly reservation: string; readonly operation: string }[],
  number: number,
): { readonly method: string; readonly fields: object } {
  const amounts = dice.chance(0.98) ? ['0', '1', '5'] : ODD_AMOUNTS;
  const some = known.length > 0 && dice.chance(0.8) ? dice.one(known) : undefined;
  const unknown = dice.chance(0.5) ? text(dice) : `rl-${'A'.repeat(22)}-${'B'.repeat(22)}`;
  const reservation = some?.reservation ?? unknown;
  const operation = dice.chance(0.8) ? (some?.operation ?? 'op') : text(dice);
  const digest = `sha256:${'ab'.repeat(32)}`;
  const method = dice.one([
    ...['ReserveCapacity', 'StartOperation', 'SettleUsage', 'ReleaseReservation', 'GetReservation'],
  ]);
  if (method !== 'ReserveCapacity') {
    return { method, fields: { reservation, operation, actualUnits: dice.one(amounts) } };
  }
  const fields = {
    subject: dice.chance(0.9) ? subject(dice, number) : text(dice),
    route: route(dice, number),
    idempotencyKey: dice.chance(0.9) ? `k${dice.below(1_000_000)}` : text(dice),
    requestDigest: dice.chance(0.9) ? digest : text(dice),
    units: dice.one(amounts),
    policyGeneration: dice.chance(0.9) ? 0 : dice.one(amounts),
    attempt: dice.chance(0.9) ? 0 : dice.one([-1, 1, 2, 1000, 2147483647]),
  };
  return { method, fields };
}

/** One to four of: a bit flipped, a byte set, a piece cut, doubled, or put in; the end cut off. */
export function mutated(dice: Dice, bytes: Buffer): Buffer {
  let result = bytes;
  for (let times = 1 + dice.below(4); times > 0; times--) {
    const at = dice.below(result.length + 1);
    const piece = dice.below(16);
    const before = result.subarray(0, at);
    const after = result.subarray(at);
    const how = dice.below(6);
    if (how === 0 && at < result.length) {
      result = Buffer.from(result);
      result[at]! ^= 1 << dice.below(8);
    } else if (how === 1 && at < result.length) {
      result = Buffer.from(result);
      result[at] = dice.one([0, 0x7f, 0x80, 0xff]);
    } else if (how === 2) result = Buffer.concat([before, after.subarray(piece)]);
    else if (how === 3) result = Buffer.concat([before, after.subarray(0, piece), after]);
    else if (how === 4) result = Buffer.concat([before, dice.bytes(piece), after]);
    else result = before;
  }
  return result;
}

export function noise(dice: Dice): Buffer {
  // Groups within groups, and lengths without an end, are worth more than chance.
  if (dice.chance(0.02)) return Buffer.alloc(dice.below(5000), dice.one([0x0b, 0x0a, 0xff, 0x80]));
  return dice.bytes(dice.below(300));
}
