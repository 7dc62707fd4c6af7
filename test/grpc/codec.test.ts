/** Our codecs against Envoy's own descriptors: what Envoy sends is read, what we send is understood. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Header, Metadata, Passed } from '../../src/envoy/types.js';
import { decodeCheckRequest, encodeCheckAnswer } from '../../src/grpc/codec.js';
import { decodeLogEntries } from '../../src/grpc/log-codec.js';
import { envoyBytes, envoyReads, plainStruct } from '../support/envoy-messages.js';

const CHECK = 'envoy.service.auth.v3.CheckRequest';
const ANSWER = 'envoy.service.auth.v3.CheckResponse';
const LOGS = 'envoy.service.accesslog.v3.StreamAccessLogsMessage';

const checkJson = {
  attributes: {
    source: {
      address: { socket_address: { address: '10.0.0.7', port_value: 4711 } },
      principal: 'spiffe://mesh/ns/a/sa/b',
      certificate: 'a certificate',
    },
    destination: { principal: 'not this one', labels: { a: 'b' } },
    request: {
      time: '2026-07-19T14:00:00Z',
      http: {
        id: '1',
        method: 'POST',
        headers: { ':path': '/v1/chat?a=b', 'x-tenant': 'Jürgen ✓', __proto__x: 'y' },
        path: '/v1/chat?a=b',
        host: 'llm',
        scheme: 'http',
        query: 'a=b',
        size: '70',
        protocol: 'HTTP/1.1',
        raw_body: Buffer.from([0xff, 0x00, 0x7b]).toString('base64'),
      },
    },
    context_extensions: { route: 'chat.generate', other: '' },
    metadata_context: {
      filter_metadata: {
        'envoy.filters.http.jwt_authn': {
          claims: { sub: 'acme', list: [1, 'b', null, true, { deep: 0.5 }], none: null },
        },
      },
    },
    tls_session: { sni: 'llm.test' },
  },
};

describe('CheckRequest', () => {
  test('everything that is looked at is read, everything else stepped over', () => {
    expect(decodeCheckRequest(envoyBytes(CHECK, checkJson))).toEqual({
      startedAt: 'COCw89IG',
      method: 'POST',
      path: '/v1/chat?a=b',
      host: 'llm',
      headers: { ':path': '/v1/chat?a=b', 'x-tenant': 'Jürgen ✓', __proto__x: 'y' },
      body: Buffer.from([0xff, 0x00, 0x7b]),
      context: { route: 'chat.generate', other: '' },
      principal: 'spiffe://mesh/ns/a/sa/b',
      metadata: {
        'envoy.filters.http.jwt_authn': {
          claims: { sub: 'acme', list: [1, 'b', null, true, { deep: 0.5 }], none: null },
        },
      },
    });
  });

  test('a body as text gives the same bytes as a raw one', () => {
    const http = (body: object) => ({ attributes: { request: { http: body } } });
    const text = decodeCheckRequest(envoyBytes(CHECK, http({ body: '{"a":"ü"}' })));
    const raw_body = Buffer.from('{"a":"ü"}').toString('base64');
    const raw = decodeCheckRequest(envoyBytes(CHECK, http({ raw_body })));
    expect(text.body).toEqual(raw.body);
    expect(text.body.toString()).toBe('{"a":"ü"}');
  });

  test('raw headers: a name that stands twice is joined, as Envoy joins it elsewhere', () => {
    const value = (text: string) => Buffer.from(text).toString('base64');
    const headers = [
      { key: 'x-tenant', raw_value: value('Jürgen') },
      { key: 'idempotency-key', raw_value: value('k1') },
      { key: 'idempotency-key', raw_value: value('k2') },
    ];
    const json = { attributes: { request: { http: { header_map: { headers } } } } };
    expect(decodeCheckRequest(envoyBytes(CHECK, json)).headers).toEqual({
      'x-tenant': 'Jürgen',
      'idempotency-key': 'k1,k2',
    });
  });

  test('an empty message is a request without anything', () => {
    const empty = decodeCheckRequest(Buffer.alloc(0));
    expect(empty).toMatchObject({ method: '', path: '', principal: '' });
    expect(Object.keys(empty.headers)).toEqual([]);
    expect(empty.body.length).toBe(0);
  });

  test('a cut message throws at every length, or is a shorter message', () => {
    const whole = envoyBytes(CHECK, checkJson);
    for (let length = 1; length < whole.length; length++) {
      expect(() => decodeCheckRequest(whole.subarray(0, length)), `${length} bytes`).toThrow();
    }
  });

  test('random bytes are read or refused, never more than that', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        for (const decode of [decodeCheckRequest, decodeLogEntries]) {
          try {
            decode(Buffer.from(bytes));
          } catch (error) {
            if (!(error instanceof Error)) throw error;
          }
        }
      }),
      { numRuns: 2000 },
    );
  });

  test('metadata nested too deeply is left out, the rest is read', () => {
    let nested: unknown = 'deep';
    for (let depth = 0; depth < 24; depth++) nested = depth % 2 ? { a: nested } : [nested];
    const namespaces = { ns: { nested, b: 1 } };
    const json = { attributes: { metadata_context: { filter_metadata: namespaces } } };
    const { metadata } = decodeCheckRequest(envoyBytes(CHECK, json));
    expect(metadata).toMatchObject({ ns: { b: 1 } });
    expect(JSON.stringify(metadata)).not.toContain('deep');
    expect(JSON.stringify(metadata)).toContain('[null]');
  });
});

describe('access-log entries', () => {
  const entry = {
    common_properties: {
      start_time: '2026-12-01T05:33:24.452076Z',
      time_to_last_upstream_rx_byte: '0.009181493s',
      metadata: { filter_metadata: { 'llm.usage': { total_tokens: 33, usage_state: 'ok' } } },
      response_flags: { downstream_connection_termination: true },
      upstream_request_attempt_count: 2,
      stream_id: 'stream',
      upstream_wire_bytes_sent: '4294967296',
      access_log_type: 'DownstreamEnd',
    },
    protocol_version: 'HTTP11',
    request: {
      request_method: 'POST',
      path: '/rewritten',
      original_path: '/v1/chat?a=b',
      request_id: 'request',
      request_headers: { a: 'b' },
    },
    response: {
      response_code: 200,
      response_headers: { 'content-type': 'text/event-stream' },
      response_trailers: { 'x-usage-total-tokens': '33' },
      response_code_details: 'via_upstream',
    },
  };
  const message = (...entries: object[]) =>
    envoyBytes(LOGS, {
      identifier: { log_name: 'earmark', node: { id: 'a' } },
      http_logs: { log_entry: entries },
    });

  test('everything that is looked at is read, everything else stepped over', () => {
    expect(decodeLogEntries(message(entry))).toEqual([
      {
        type: 'DownstreamEnd',
        startedAt: 'CKS4udgG',
        requestId: 'request',
        method: 'POST',
        path: '/v1/chat?a=b',
        upstreamBytesSent: 4294967296,
        attempts: 2,
        complete: true,
        status: 200,
        details: 'via_upstream',
        responseHeaders: { 'content-type': 'text/event-stream' },
        responseTrailers: { 'x-usage-total-tokens': '33' },
        metadata: { 'llm.usage': { total_tokens: 33, usage_state: 'ok' } },
      },
    ]);
  });

  test('what is absent is empty; the stream ID stands in for the request ID', () => {
    const bare = { common_properties: { stream_id: 'stream' } };
    const [first, second] = decodeLogEntries(message(bare, entry));
    expect(first).toMatchObject({
      ...{ type: '', requestId: 'stream', method: '', path: '', upstreamBytesSent: 0 },
      ...{ attempts: 0, complete: false, status: 0, details: '' },
    });
    expect(second!.requestId).toBe('request');
  });

  test('a type that is no end is kept apart from one that is none', () => {
    const typed = (access_log_type: string) => ({ common_properties: { access_log_type } });
    const types = [
      'NotSet',
      'DownstreamStart',
      'DownstreamPeriodic',
      'DownstreamEnd',
      'UpstreamEnd',
    ];
    const read = decodeLogEntries(message(...types.map(typed))).map(({ type }) => type);
    expect(read).toEqual(['', '4', '5', 'DownstreamEnd', '9']);
  });

  test('TCP entries are none of ours', () => {
    const bytes = envoyBytes(LOGS, { tcp_logs: { log_entry: [{ common_properties: {} }] } });
    expect(decodeLogEntries(bytes)).toEqual([]);
  });
});

const headersOf = (list: unknown): Header[] =>
  ((list ?? []) as { header: { key: string; value: string }; appendAction: string }[]).map(
    ({ header, appendAction }) => {
      expect(appendAction).toBe('OVERWRITE_IF_EXISTS_OR_ADD');
      return [header.key, header.value];
    },
  );

describe('CheckResponse', () => {
  const metadata: Metadata = {
    reservation: 'rl-a-b',
    units: [600, 1],
    generation: 31,
    shadow: false,
    more: { nothing: null, text: 'ü' },
  };

  test('an OK, as Envoy reads it', () => {
    const answer: Passed = {
      kind: 'ok',
      requestHeaders: [['x-earmark-reservation', 'rl-a-b']],
      removed: ['accept-encoding', 'x-earmark-x'],
      responseHeaders: [['x-ratelimit-remaining-tokens', '0']],
      metadata,
    };
    const read = envoyReads(ANSWER, encodeCheckAnswer(answer));
    const ok = read.okResponse as Record<string, unknown>;
    expect(read.httpResponse).toBe('okResponse');
    expect((read.status as { code?: number }).code ?? 0).toBe(0);
    expect(headersOf(ok.headers)).toEqual(answer.requestHeaders);
    expect(headersOf(ok.responseHeadersToAdd)).toEqual(answer.responseHeaders);
    expect(ok.headersToRemove).toEqual(answer.removed);
    expect(plainStruct(read.dynamicMetadata)).toEqual(metadata);
  });

  test('a denial, as Envoy reads it', () => {
    const headers: Header[] = [['retry-after', '4']];
    const denied = { kind: 'denied', status: 429, headers, body: '{"ü":1}', metadata } as const;
    const read = envoyReads(ANSWER, encodeCheckAnswer(denied));
    const response = read.deniedResponse as Record<string, unknown>;
    expect((read.status as { code: number }).code).toBe(7);
    expect(response.status).toEqual({ code: 'TooManyRequests' });
    expect(headersOf(response.headers)).toEqual(headers);
    expect(response.body).toBe('{"ü":1}');
    expect(plainStruct(read.dynamicMetadata)).toEqual(metadata);
  });

  test('an answer of any length: whatever it outgrows', () => {
    for (let length = 0; length < 20_000; length = 2 * length + 1) {
      for (const text of ['x'.repeat(length), 'ü'.repeat(length)]) {
        const headers: Header[] = [['x-text', text]];
        const denied = { kind: 'denied', status: 429, headers, body: text } as const;
        const read = envoyReads(ANSWER, encodeCheckAnswer({ ...denied, metadata: { text } }));
        const response = read.deniedResponse as Record<string, unknown>;
        expect(headersOf(response.headers)).toEqual(headers);
        expect(response.body ?? '').toBe(text);
        expect(plainStruct(read.dynamicMetadata)).toEqual({ text });
      }
    }
  });

  test('any metadata survives', () => {
    const value = fc.letrec<{ value: never }>((tie) => ({
      value: fc.oneof(
        { maxDepth: 3 },
        fc.string({ unit: 'binary' }),
        fc.double({ noNaN: true }),
        fc.boolean(),
        fc.constant(null),
        fc.array(tie('value'), { maxLength: 3 }),
        fc.dictionary(fc.string({ minLength: 1 }), tie('value'), {
          maxKeys: 3,
          noNullPrototype: true,
        }),
      ) as never,
    })).value;
    fc.assert(
      fc.property(fc.dictionary(fc.string(), value, { noNullPrototype: true }), (any) => {
        const ok = { requestHeaders: [], removed: [], responseHeaders: [] };
        const bytes = encodeCheckAnswer({ kind: 'ok', ...ok, metadata: any });
        const read = envoyReads(ANSWER, bytes);
        expect(plainStruct(read.dynamicMetadata)).toEqual(any);
      }),
      { numRuns: 200 },
    );
  });
});
