/** What nobody should send and somebody will: over gRPC as Envoy would pass it on, into a real ledger. */
import { once } from 'node:events';
import { connect as connectHttp2 } from 'node:http2';
import { connect } from 'node:net';
import { gzipSync } from 'node:zlib';
import { Client, credentials, type ServiceError, status } from '@grpc/grpc-js';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { lineTag } from '../../src/core/ids.js';
import { auditLine } from '../../src/ledger/audit.js';
import { envoyBytes } from '../support/envoy-messages.js';
import {
  type Answer,
  type Gateway,
  type Json,
  readAnswer,
  startGateway,
} from '../support/gateway.js';
import { startRedis, type TestRedis } from '../support/redis.js';

const policy = `
schema: admissionBudget.v1
generation: 7
unmatched: refuse
budgets:
  - route: "odd: {route} ✓"
    match: context.route == "odd"
    subject: request.headers["x-tenant"]
    burst: 10000000
  - route: other
    subject: request.headers["x-tenant"]
    burst: 10000000
`;
const ROUTE = 'odd: {route} ✓';
const rollout = '{ schema: rollout.v1, generation: 7, default: { mode: enforce } }';
const CHECK = '/envoy.service.auth.v3.Authorization/Check';
const MIB = 2 ** 20;

let redis: TestRedis;
let gateway: Gateway;
let requests = 0;
let tenant = '';

beforeAll(async () => {
  redis = await startRedis();
  gateway = await startGateway({ socket: redis.socket, folder: redis.folder, policy, rollout });
});
afterAll(async () => {
  await gateway.stop();
  await redis.stop();
});
beforeEach(() => {
  tenant = `tenant ${++requests}`;
});

function http(headers: Json = {}, body?: string | Buffer): Json {
  const all = {
    ...{ 'x-tenant': tenant, 'x-request-id': `r${++requests}`, 'content-type': 'application/json' },
    ...headers,
  };
  const sent = body === undefined ? {} : { raw_body: Buffer.from(body) };
  return { method: 'POST', path: '/v1/chat', headers: all, ...sent };
}

const ask = (headers?: Json, body?: string | Buffer): Promise<Answer> =>
  gateway.check(http(headers, body), { context: { route: 'odd' }, deadlineMs: 15_000 });

const held = async (subject = tenant, route = ROUTE): Promise<readonly number[]> => {
  const [dump] = await gateway.ledger.dump(lineTag(subject, route));
  if (dump === undefined) return [];
  expect(auditLine(dump, false).problems).toEqual([]);
  expect([dump.subject, dump.route]).toEqual([subject, route]);
  return dump.receipts.flatMap(({ units }) => units);
};

describe('headers', () => {
  test('a value of 8 KB, a thousand of them', async () => {
    const many = Object.fromEntries(
      Array.from({ length: 1000 }, (_none, at) => [`x-header-${at}`, 'v']),
    );
    expect((await ask({ ...many, 'x-long': 'l'.repeat(8192) })).kind).toBe('ok');
    const answer = await ask({ 'x-tenant': 's'.repeat(8192) });
    expect([answer.status, answer.body.error.code]).toEqual([400, 'subject_too_long']);
    const keyed = await ask({ 'idempotency-key': 'k'.repeat(65_536) });
    expect([keyed.status, keyed.body.error.code]).toEqual([400, 'key_too_long']);
    for (const { headers, body, metadata } of [answer, keyed]) {
      expect(JSON.stringify({ headers, body, metadata })).not.toMatch(/s{1000}|k{1000}/);
    }
  });

  test.each([
    ...['a:b', '{a}', '}{', 'a b', 'Jürgen  Groß\t✓', '😀', 'line\nbreak', 'n\0ul', '__proto__'],
    ...['constructor', '%41', '../x', '\u202e', '*', '[1]', '"', "'", '\\'],
  ])('%j as subject, route and key has a line of its own', async (odd) => {
    tenant = odd;
    const answer = await ask({ 'idempotency-key': odd }, '{"max_tokens":5}');
    expect(answer.kind).toBe('ok');
    expect(answer.metadata).toMatchObject({ subject: odd, route: ROUTE });
    expect(await held()).toHaveLength(1);
    const again = await ask({ 'idempotency-key': odd }, '{"max_tokens":5}');
    expect(again.status).toBe(409);
    expect(await held()).toHaveLength(1);
  });

  test('pairs that a separator would make one are two', async () => {
    for (const [subject, key] of [
      ['a:b', 'c'],
      ['a', 'b:c'],
    ]) {
      tenant = subject!;
      expect((await ask({ 'idempotency-key': key })).kind).toBe('ok');
      expect((await held()).length).toBeGreaterThan(0);
    }
    expect(lineTag('a:b', 'c')).not.toBe(lineTag('a', 'b:c'));
  });

  test.each(['', ' ', '  \t '])('%j is no subject', async (empty) => {
    const answer = await ask({ 'x-tenant': empty });
    expect([answer.status, answer.body.error.code]).toEqual([403, 'no_subject']);
    expect(await held(empty)).toEqual([]);
  });

  test('bytes that are no UTF-8 are read as far as they can be, and fall over nothing', async () => {
    const raw = [
      { key: 'x-tenant', raw_value: Buffer.from(tenant) },
      { key: 'x-request-id', raw_value: Buffer.from('r') },
      { key: 'x-junk', raw_value: Buffer.from([0xff, 0xfe, 0xc3, 0x28]) },
    ];
    const attributes = { request: { http: { method: 'POST', header_map: { headers: raw } } } };
    expect((await send(message(attributes))).kind).toBe('ok');
    expect(await held(tenant, 'other')).toHaveLength(1);
  });
});

describe('bodies', () => {
  test('16 MiB', async () => {
    const body = JSON.stringify({ max_tokens: 5, text: 'x'.repeat(16 * MIB - 30) });
    expect((await ask({}, body)).kind).toBe('ok');
    expect(await held()).toEqual([Math.ceil(body.length / 4) + 5]);
  });

  test('cut in a string: the whole length counts, and the marker is in the digest', async () => {
    const whole = JSON.stringify({ text: 'x'.repeat(500), max_tokens: 7 });
    const headers = {
      ...{ 'content-length': String(whole.length), 'x-envoy-auth-partial-body': 'true' },
      'idempotency-key': 'k',
    };
    expect((await ask(headers, whole.slice(0, 100))).kind).toBe('ok');
    // It can't be seen what it asks for: all that one reservation may.
    expect(await held()).toEqual([10_000_000]);
    expect((await ask({ 'idempotency-key': 'k' }, whole.slice(0, 100))).status).toBe(400);
    const text = { ...headers, 'content-type': 'text/plain', 'content-length': '100' };
    expect((await ask(text, whole.slice(0, 100))).status).toBe(422);
  });

  test('gzip', async () => {
    const zipped = gzipSync(JSON.stringify({ max_tokens: 5 }));
    const claimed = await ask({ 'content-encoding': 'gzip' }, zipped);
    const free = await ask({ 'content-encoding': 'gzip', 'content-type': 'text/plain' }, zipped);
    expect(claimed.kind === 'ok' || claimed.body.error.code === 'bad_request').toBe(true);
    expect(free.kind).toBe('ok');
  });

  test('10,000 levels deep', async () => {
    const deep = `{"max_tokens":5,"a":${'['.repeat(10_000)}${']'.repeat(10_000)}}`;
    expect((await ask({}, deep)).kind).toBe('ok');
    expect(await held()).toEqual([Math.ceil(deep.length / 4) + 5]);
    const objects = `${'{"a":'.repeat(10_000)}1${'}'.repeat(10_000)}`;
    expect((await ask({}, objects)).kind).toBe('ok');
  });

  test('a key that stands twice: the last counts, as for those who execute it', async () => {
    const body = '{"max_tokens":999,"max_tokens":5,"__proto__":{"max_tokens":1e6}}';
    expect((await ask({}, body)).kind).toBe('ok');
    expect(await held()).toEqual([Math.ceil(body.length / 4) + 5]);
  });

  test('the same bytes as text and as raw bytes are one request', async () => {
    const body = '{"max_tokens":5,"text":"ü"}';
    const { raw_body: _raw, ...rest } = http({ 'idempotency-key': 'k' }, body);
    const context = { route: 'odd' };
    expect((await gateway.check({ ...rest, body }, { context })).kind).toBe('ok');
    const raw = http({ 'idempotency-key': 'k' }, body);
    expect((await gateway.check(raw, { context })).status).toBe(409);
  });

  test('fields that nobody knows, and types that nobody expects', async () => {
    const odd = { model: 7, stream: 'yes', messages: {}, n: -1, unknown: null, max_tokens: 5 };
    expect((await ask({}, JSON.stringify(odd))).kind).toBe('ok');
    const wrong = await ask({}, JSON.stringify({ max_tokens: '5' }));
    expect([wrong.status, wrong.body.error.message]).toEqual([
      400,
      expect.stringContaining('max_tokens'),
    ]);
    expect(await held()).toHaveLength(1);
  });
});

const message = (attributes: Json): Buffer =>
  envoyBytes('envoy.service.auth.v3.CheckRequest', { attributes });

const same = (value: Buffer): Buffer => value;

async function send(bytes: Buffer, options: object = {}): Promise<Answer> {
  const client = new Client(gateway.address, credentials.createInsecure(), options);
  try {
    return await new Promise<Answer>((resolve, reject) =>
      client.makeUnaryRequest(CHECK, same, readAnswer, bytes, (error, answer) =>
        error ? reject(error) : resolve(answer!),
      ),
    );
  } finally {
    client.close();
  }
}

/** A gRPC call of these bytes as they are, and the status it ended with. */
async function raw(data: Buffer): Promise<number> {
  const path = gateway.address.slice('unix:'.length);
  const session = connectHttp2('http://gateway', { createConnection: () => connect(path) });
  try {
    const headers = { ':method': 'POST', ':path': CHECK, te: 'trailers' };
    const stream = session.request({ ...headers, 'content-type': 'application/grpc' });
    let code = -1;
    const read = (answer: object): void => {
      const found = (answer as Record<string, string>)['grpc-status'];
      if (found !== undefined) code = Number(found);
    };
    stream.on('response', read);
    stream.on('trailers', read);
    stream.resume();
    stream.end(data);
    await once(stream, 'close');
    return code;
  } finally {
    session.close();
  }
}

describe('gRPC messages', () => {
  const attributes = (): Json => ({ request: { http: http({}, '{"max_tokens":5}') } });

  test('unknown fields of every wire type are stepped over', async () => {
    const unknown = Buffer.from([
      ...[0xf8, 0x3f, 0x05],
      ...[0xf9, 0x3f, 1, 2, 3, 4, 5, 6, 7, 8],
      ...[0xfa, 0x3f, 0x02, 0x61, 0x62],
      ...[0xfb, 0x3f, 0xf8, 0x3f, 0x01, 0xfc, 0x3f],
      ...[0xfd, 0x3f, 1, 2, 3, 4],
    ]);
    expect((await send(Buffer.concat([unknown, message(attributes()), unknown]))).kind).toBe('ok');
    expect(await held(tenant, 'other')).toHaveLength(1);
  });

  test('compressed', async () => {
    const gzip = { 'grpc.default_compression_algorithm': 2, 'grpc.default_compression_level': 2 };
    expect((await send(message(attributes()), gzip)).kind).toBe('ok');
  });

  test('empty: a request of nobody', async () => {
    const answer = await send(Buffer.alloc(0));
    expect([answer.status, answer.body.error.code]).toEqual([403, 'no_subject']);
  });

  test('above the limit: refused by size, and the connection goes on', async () => {
    const client = new Client(gateway.address, credentials.createInsecure());
    const call = (bytes: Buffer) =>
      new Promise<number>((resolve) =>
        client.makeUnaryRequest(CHECK, same, same, bytes, (error: ServiceError | null) =>
          resolve(error?.code ?? status.OK),
        ),
      );
    const big = message({ request: { http: http({}, Buffer.alloc(18 * MIB)) } });
    expect(await call(big)).toBe(status.RESOURCE_EXHAUSTED);
    expect(await call(message(attributes()))).toBe(status.OK);
    client.close();
    expect(await held(tenant, 'other')).toHaveLength(1);
  });

  test('cut, or of a length that is none: an error status, and the next call is answered', async () => {
    const whole = message(attributes());
    const framed = (length: number, data: Buffer): Buffer => {
      const head = Buffer.alloc(5);
      head.writeUInt32BE(length, 1);
      return Buffer.concat([head, data]);
    };
    expect(await raw(framed(whole.length, whole))).toBe(status.OK);
    expect(await raw(framed(whole.length + 10, whole))).toBeGreaterThan(0);
    expect(await raw(framed(0xffff_ffff, whole))).toBe(status.RESOURCE_EXHAUSTED);
    expect(await raw(Buffer.from([0, 0]))).toBeGreaterThan(0);
    expect(await raw(Buffer.alloc(0))).toBeGreaterThan(0);
    expect((await send(message(attributes()))).kind).toBe('ok');
  });
});
