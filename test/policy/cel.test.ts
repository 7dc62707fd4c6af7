import { describe, expect, test } from 'vitest';
import { compile } from '../../src/policy/cel.js';
import { facts } from '../support/facts.js';

const request = facts({
  path: '/v1/chat/completions?a=1',
  headers: { 'x-tenant': 'acme', authorization: 'Bearer abc' },
  model: 'gpt-4o-mini',
  maxTokens: 700,
  context: { route: 'chat.generate' },
  principal: 'spiffe://a/b',
  metadata: { jwt: { claims: { sub: 'u1', tier: 3, roles: ['admin', 'dev'] }, nothing: null } },
  digest: () => 'd'.repeat(43),
});

const value = (text: string, wants: 'bool' | 'string' = 'string') =>
  compile(text, wants).run(request);

describe('what is there', () => {
  test.each([
    ['request.method + request.host', 'POSTllm.test'],
    ['request.headers["x-tenant"]', 'acme'],
    ['request["model"]', 'gpt-4o-mini'],
    ['context.route', 'chat.generate'],
    ['source.principal', 'spiffe://a/b'],
    ['metadata["jwt"].claims["sub"]', 'u1'],
    ['metadata.jwt.claims.roles[1]', 'dev'],
    ['request.path.split("/")[2]', 'chat'],
    ['string(request.maxTokens + 1)', '701'],
    ['digest', 'd'.repeat(43)],
    ['request.stream ? "s" : "n"', 'n'],
    ['cel.bind(h, request.headers["x-tenant"], h + h)', 'acmeacme'],
    ['request.headers["authorization"].substring(7)', 'abc'],
  ])('%s', (text, expected) => expect(value(text)).toBe(expected));

  test.each([
    ['context.route == "chat.generate"', true],
    ['"x-tenant" in request.headers', true],
    ['"x-other" in request.headers', false],
    ['has(request.headers.authorization)', true],
    ['has(request.headers.missing)', false],
    ['has(metadata.jwt.claims.tier)', true],
    ['has(metadata.jwt.other.tier)', false],
    ['metadata.jwt.claims.tier > 2', true],
    ['metadata.jwt.claims.roles.exists(r, r == "admin")', true],
    ['"dev" in metadata.jwt.claims.roles', true],
    ['request.headers.all(name, name != "x")', true],
    ['request.maxTokens >= 700 && !request.stream', true],
    ['request.model.matches("^gpt-4o(-mini)?$")', true],
    ['request.model.matches("o-m")', true],
    ['request.model.matches("^claude")', false],
  ])('%s', (text, expected) => expect(value(text, 'bool')).toBe(expected));
});

describe('what is absent is "", never an error', () => {
  test.each([
    'request.headers["x-missing"]',
    'request.headers.missing',
    'request.headers["constructor"]',
    'context["toString"]',
    'context.nothing',
    'metadata.none',
    'metadata["none"]["of"].these',
    'metadata.jwt.claims.sub.deeper',
    'metadata.jwt.nothing',
    'metadata.jwt.claims.roles[9]',
    'request.path.split("/")[99]',
  ])('%s', (text) => expect(value(text)).toBe(''));

  test.each(['"a" in metadata.none.roles', 'metadata.none.roles.exists(r, r == "a")'])(
    '%s',
    (text) => expect(value(text, 'bool')).toBe(false),
  );
});

describe('refused before it is published', () => {
  test.each([
    ['request.header["x"]', /No such key: header.*there are request \(method, path/],
    ['tenant', /Unknown variable: tenant.*there are request/],
    ['earmarkAny(request, "x")', /earmarkAny/],
    ['request.maxTokens', /gives int, but string is needed/],
    ['request.headers', /gives map<string, string>, but string is needed/],
    ['request.model == ', /Unexpected token/],
    ['request.model + 1', /no such overload/],
    ['has(request.model) ? "a" : "b"', /always there/],
    ['request.model.matches("(a)\\\\1") ? "a" : "b"', /RE2/],
    ['request.model.matches("(?=a)") ? "a" : "b"', /RE2/],
    ['request.model.matches(request.host) ? "a" : "b"', /literal/],
    [`${'"a" + '.repeat(300)}"a"`, /larger than 500 nodes/],
    [
      'request.headers.exists(a, request.headers.exists(b, a == b)) ? "a" : "b"',
      /inside another loop/,
    ],
  ])('%s', (text, message) => expect(() => compile(text, 'string')).toThrow(message));
});

test('an error at run time is an error, not a value', () => {
  expect(() => value('metadata.jwt.claims.tier')).toThrow(/string is needed/);
  expect(() => value('metadata.jwt.claims.tier + "a" == "b"', 'bool')).toThrow();
  expect(() => value('string(1 / (request.maxTokens - 700))')).toThrow(/division by zero/i);
});

test('a regular expression that would take exponential time elsewhere is linear', () => {
  const hostile = facts({ model: `${'a'.repeat(50_000)}!` });
  const started = performance.now();
  expect(compile('request.model.matches("^(a+)+$")', 'bool').run(hostile)).toBe(false);
  expect(performance.now() - started).toBeLessThan(2000);
});
