/** What a Check says about the request: its body, whole or cut, and what makes two requests the same one. */
import { createHash } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { methodPath, requestDigest } from '../../src/core/digest.js';
import { readRequest } from '../../src/envoy/facts.js';
import type { CheckRequest } from '../../src/envoy/types.js';

const request = (body: string | Buffer, headers: Record<string, string> = {}): CheckRequest => ({
  ...{
    method: 'POST',
    path: '/v1/chat?a=b',
    host: 'llm',
    context: {},
    startedAt: '',
    principal: '',
    metadata: {},
  },
  headers,
  body: Buffer.from(body),
});
const JSON_TYPE = { 'content-type': 'application/json' };
const CUT = { 'x-envoy-auth-partial-body': 'true' };

describe('body', () => {
  test('model, stream and maximum come from JSON, also where no type is given', () => {
    const body = JSON.stringify({
      model: 'm',
      stream: true,
      max_tokens: 5,
      max_completion_tokens: 7,
    });
    for (const headers of [JSON_TYPE, {}]) {
      const read = readRequest(request(body, headers));
      expect(read.facts).toMatchObject({ model: 'm', stream: true, maxTokens: 7 });
      expect(read).toMatchObject({ bodyBytes: body.length, problem: undefined });
    }
  });

  test.each(['[]', '"text"', '1', 'null'])('%s is JSON, but no object', (body) => {
    expect(readRequest(request(body, JSON_TYPE))).toMatchObject({
      json: undefined,
      problem: undefined,
    });
  });

  test('values of other types say nothing', () => {
    const body = JSON.stringify({ model: 7, stream: 'true', max_tokens: null });
    const read = readRequest(request(body, JSON_TYPE));
    expect(read.facts).toMatchObject({ model: '', stream: false, maxTokens: 0 });
    expect(read.problem).toBeUndefined();
  });

  test('invalid UTF-8 is no exception', () => {
    const body = Buffer.concat([Buffer.from('{"a":"'), Buffer.from([0xff]), Buffer.from('"}')]);
    expect(readRequest(request(body, JSON_TYPE)).problem).toBeUndefined();
  });

  test('a cut one is no error: its whole length counts, its JSON does not', () => {
    const read = readRequest(
      request('{"max_tokens": 99', { ...JSON_TYPE, ...CUT, 'content-length': '5000' }),
    );
    expect(read).toMatchObject({ bodyBytes: 5000, json: undefined, problem: undefined });
    expect(read.body).toMatchObject({ cut: true, declaredBytes: 5000 });
    const chunked = readRequest(request('{"a', { ...JSON_TYPE, ...CUT }));
    expect(chunked).toMatchObject({ bodyBytes: 3, problem: undefined });
    expect(chunked.body).toMatchObject({ cut: true, declaredBytes: -1 });
  });

  test('a client can’t have its whole body taken for a cut one', () => {
    const body = '{"max_tokens":900}';
    const headers = { ...JSON_TYPE, ...CUT, 'content-length': String(body.length) };
    expect(readRequest(request(body, headers)).facts.maxTokens).toBe(900);
  });

  test('a body that Envoy does not send counts by its length', () => {
    const read = readRequest(request('', { ...JSON_TYPE, 'content-length': '4000' }));
    expect(read).toMatchObject({ bodyBytes: 4000, problem: undefined, body: { cut: true } });
  });
});

describe('digest', () => {
  const whole = (text: string) => ({ bytes: Buffer.from(text), cut: false, declaredBytes: -1 });
  const digest = (
    method: string,
    path: string,
    subject: string,
    route: string,
    body = whole('b'),
  ) => requestDigest(method, path, subject, route, body);
  const base = digest('POST', '/p', 's', 'r');

  test('is SHA-256 over the parts, each with its length in front', () => {
    const hash = createHash('sha256').update('4:POST2:/p2:ü1:r1:b').digest('base64url');
    expect(digest('POST', '/p', 'ü', 'r')).toBe(hash);
    expect(hash.length).toBe(43);
  });

  test('differs with any part, and no part can reach into the next', () => {
    const others = [
      digest('GET', '/p', 's', 'r'),
      digest('POST', '/q', 's', 'r'),
      digest('POST', '/p', 't', 'r'),
      digest('POST', '/p', 's', 'q'),
      digest('POST', '/p', 's', 'r', whole('c')),
      digest('POST', '/ps', '', 'r'),
      digest('POST', '/p', 'sr', ''),
      digest('POST', '/p', 's', '', whole('rb')),
      digest('POST', '/p', 's', 'r', { ...whole('b'), cut: true }),
      digest('POST', '/p', 's', 'r', { ...whole('b'), cut: true, declaredBytes: 9 }),
    ];
    expect(new Set([base, ...others]).size).toBe(11);
  });

  test('a declared length says nothing of a body that is whole', () => {
    expect(digest('POST', '/p', 's', 'r', { ...whole('b'), declaredBytes: 1 })).toBe(base);
  });
});

test('method and path as the access log can say them', () => {
  expect(methodPath('POST', '/v1?a')).toBe('POST /v1?a');
  expect(methodPath('PROPFIND', '/v1')).toBe(' /v1');
});
