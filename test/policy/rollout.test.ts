import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { formatProblem } from '../../src/policy/parse.js';
import { decideMode, parseRollout } from '../../src/policy/rollout.js';

const good = fileURLToPath(new URL('./good/rollout.yaml', import.meta.url));

function rollout(routes: string, fallback = '{ mode: shadow }') {
  const text = `schema: rollout.v1\ngeneration: 31\ndefault: ${fallback}\nroutes: ${routes}\n`;
  const { rollout: read, problems } = parseRollout(text, 'r.yaml');
  expect(problems.map(formatProblem)).toEqual([]);
  return read!;
}

const subjects = Array.from({ length: 2000 }, (_, i) => `tenant-${i}`);

describe('reading', () => {
  test('the document that users are shown', () => {
    const { rollout: read, problems } = parseRollout(readFileSync(good, 'utf8'), 'rollout.yaml');
    expect(problems).toEqual([]);
    expect(read!.generation).toBe(31);
    expect(read!.default.mode).toBe('shadow');
    expect(read!.routes['chat.generate']).toEqual({
      mode: 'enforce',
      percent: 1,
      by: 'subject',
      only: [],
      except: [],
    });
  });

  test('its canonical form is a document of its own', () => {
    const { canonical } = rollout(
      '{ a: { mode: enforce, percent: 12.5 }, __proto__: { mode: off } }',
    );
    expect(parseRollout(canonical, '').rollout!.canonical).toBe(canonical);
    expect(
      rollout('{ __proto__: { mode: off }, a: { percent: 12.50, mode: enforce, only: [] } }')
        .canonical,
    ).toBe(canonical);
    expect(rollout('{ a: { mode: enforce, percent: 12.6 } }').canonical).not.toBe(canonical);
  });

  test.each([
    ['- a', '1:1: the document must be a mapping that starts with schema: rollout.v1'],
    ['schema: rollout.v1\ndefault: { mode: off }', '1:1: generation is missing'],
    [
      'schema: rollout.v1\ngeneration: 1',
      '1:1: default is missing: say what every other route does',
    ],
    [
      'schema: rollout.v1\ngeneration: 1\ndefault: { mode: on }',
      '3:18: default.mode must be off, shadow, enforce or refuseAll',
    ],
    [
      'schema: rollout.v1\ngeneration: 1\ndefault: { mode: enforce, percent: 101 }',
      '3:36: default.percent must be from 0 to 100',
    ],
    [
      'schema: rollout.v1\ngeneration: 1\ndefault: { mode: shadow, percent: 5 }',
      '3:35: default.percent belongs to mode enforce',
    ],
    [
      'schema: rollout.v1\ngeneration: 1\ndefault: { mode: enforce, by: user }',
      '3:31: default.by must be subject or request',
    ],
    [
      'schema: rollout.v1\ngeneration: 1\ndefault: { mode: off }\nroutes: { a: { mode: enforce, only: acme } }',
      '4:37: routes.a.only must be a list',
    ],
    [
      'schema: rollout.v1\ngeneration: 1\ndefault: { mode: off }\nroute: {}',
      '4:1: route is unknown: did you mean routes?',
    ],
  ])('%j is refused', (text, message) => {
    const { rollout: read, problems } = parseRollout(text, 'r.yaml');
    expect(read).toBeUndefined();
    expect(problems.map(formatProblem)).toEqual([expect.stringContaining(`r.yaml:${message}`)]);
  });
});

describe('mode of a request', () => {
  test('without a rollout everything runs in shadow', () => {
    expect(decideMode(undefined, 'chat', 's', 'k')).toBe('shadow');
  });

  test.each(['off', 'shadow', 'enforce', 'refuseAll'])('%s, of the route or by default', (mode) => {
    expect(decideMode(rollout(`{ chat: { mode: ${mode} } }`), 'chat', 's', 'k')).toBe(mode);
    expect(decideMode(rollout('{}', `{ mode: ${mode} }`), 'chat', 's', 'k')).toBe(mode);
  });

  test.each(['constructor', '__proto__', 'toString'])(
    'a route called %s has the default',
    (name) => {
      expect(decideMode(rollout('{}', '{ mode: off }'), name, 's', 'k')).toBe('off');
    },
  );

  test('only and except', () => {
    const some = rollout('{ chat: { mode: enforce, only: [a, b], except: [b] } }');
    expect(decideMode(some, 'chat', 'a', '')).toBe('enforce');
    expect(decideMode(some, 'chat', 'b', '')).toBe('shadow');
    expect(decideMode(some, 'chat', 'c', '')).toBe('shadow');
  });

  test.each(['subject', 'request'])('a higher percentage by %s never moves anybody out', (by) => {
    let before = new Set<string>();
    for (const percent of [0, 0.5, 1, 10, 50, 99.9, 100]) {
      const at = rollout(`{ chat: { mode: enforce, percent: ${percent}, by: ${by} } }`);
      const now = new Set(
        subjects.filter((name) => decideMode(at, 'chat', name, `key of ${name}`) === 'enforce'),
      );
      for (const name of before) expect(now.has(name)).toBe(true);
      expect(Math.abs(now.size - (subjects.length * percent) / 100)).toBeLessThan(
        subjects.length * 0.04,
      );
      before = now;
    }
    expect(before.size).toBe(subjects.length);
  });

  test('by subject the key is of no matter, by request it is', () => {
    const modes = (by: string) => {
      const half = rollout(`{ chat: { mode: enforce, percent: 50, by: ${by} } }`);
      return new Set(subjects.map((key) => decideMode(half, 'chat', 'one', key)));
    };
    expect(modes('subject').size).toBe(1);
    expect(modes('request').size).toBe(2);
  });
});
