/** Our metadata: what is signed can't be changed on its way. */
import { createHmac } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { Mac } from '../../src/core/mac.js';
import {
  epochText,
  type OwnFields,
  readMetadata,
  signMetadata,
} from '../../src/settle/metadata.js';

const key = new Mac(Buffer.alloc(32, 7));
const own: OwnFields = {
  reservation: 'rl-a-b',
  operation: 'op',
  generation: 31,
  epoch: '2026-07-19T14:00Z',
  subject: 'acme',
  route: 'chat',
  units: [600],
  reservedAt: 1_785_423_600_000,
  shadow: false,
  unreserved: false,
};

test('comes back as it went, also through JSON, and whatever Envoy adds', () => {
  for (const some of [{}, { units: [600, 1] }, { shadow: true }, { unreserved: true }]) {
    const signed = signMetadata(key, { ...own, ...some });
    const returned = { ...JSON.parse(JSON.stringify(signed)), ext_authz_duration: 7 };
    expect(readMetadata(key, returned)).toEqual({ ...own, ...some, mac: signed.mac });
  }
  expect(signMetadata(key, own).units).toBe(600);
});

describe('forged', () => {
  const signed = signMetadata(key, own);
  test.each([
    ['reservation', 'rl-a-c'],
    ['operation', 'other'],
    ['generation', 30],
    ['epoch', '2026-07-20T14:00Z'],
    ['subject', 'other'],
    ['route', 'other'],
    ['units', 1],
    ['units', [600, 600]],
    ['units', -1],
    ['reservedAt', 1_785_423_600_001],
    ['reservedAt', 'now'],
    ['shadow', true],
    ['unreserved', true],
    ['mac', 'x'.repeat(43)],
    ['mac', ''],
    ['mac', undefined],
    ['subject', undefined],
    ['generation', '31'],
  ])('%s: %j', (field, value) => {
    expect(readMetadata(key, { ...signed, [field]: value })).toBe('forged');
  });

  test('another ledger’s key', () => {
    expect(readMetadata(new Mac(Buffer.alloc(32, 8)), { ...signed })).toBe('forged');
  });

  test('no part can reach into the next', () => {
    const moved = { ...signed, subject: 'acm', route: 'echat' };
    expect(readMetadata(key, moved)).toBe('forged');
  });
});

test('a Check that made no reservation says so', () => {
  expect(readMetadata(key, { reservation: '', why: 'off' })).toBe('none');
});

test('an epoch as people read it', () => {
  expect(epochText(Date.UTC(2026, 6, 19, 14))).toBe('2026-07-19T14:00Z');
});

test.each([0, 1, 32, 64])('HMAC-SHA256 as Node computes it, with a key of %i bytes', (length) => {
  const secret = Buffer.alloc(length, 'key');
  const mac = new Mac(secret);
  for (const text of ['', 'a', 'ü', 'x'.repeat(5000), 'b']) {
    const framed = `${Buffer.byteLength(text)}:${text}1:z`;
    expect(mac.of([text, 'z'])).toBe(
      createHmac('sha256', secret).update(framed).digest('base64url'),
    );
  }
});

test('a key longer than a block is refused', () => {
  expect(() => new Mac(Buffer.alloc(65))).toThrow(/64/);
});
