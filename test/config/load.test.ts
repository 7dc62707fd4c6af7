import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { environmentName, FIELDS } from '../../src/config/fields.js';
import { ConfigError, type Environment, loadConfig } from '../../src/config/load.js';

let folder = '';
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'earmark-config-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function write(text: string): string {
  const file = join(folder, 'earmark.yaml');
  writeFileSync(file, text);
  return file;
}

function load(text: string, environment: Environment = {}) {
  return loadConfig(write(text), environment);
}

/** The errors of a file, without its path in front. */
function errors(text: string, environment: Environment = {}): string[] {
  try {
    load(text, environment);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.message.split('\n').map((line) => line.replace(`${folder}/`, ''));
  }
  return [];
}

const LEDGER = 'ledger: { url: redis://127.0.0.1:6379 }\n';

describe('settings', () => {
  it('has a default for everything but the ledger', () => {
    const config = load(LEDGER);
    expect(config).toEqual({
      gateway: config.gateway,
      listen: { envoy: '127.0.0.1:9191', api: undefined, admin: '127.0.0.1:9192' },
      ledger: {
        url: 'redis://127.0.0.1:6379',
        data: undefined,
        password: undefined,
        prefix: 'earmark:',
        timeoutMs: 150,
      },
      policy: undefined,
      rollout: undefined,
      override: 'none',
      logLevel: 'info',
    });
    expect(load(LEDGER).gateway).not.toBe(config.gateway);
  });

  it('reads every setting, paths from the folder of the file', () => {
    writeFileSync(join(folder, 'secret'), 's3cret\n');
    const config = load(`
gateway: "a"
listen: { envoy: "unix:/run/e.sock", api: "[::1]:0", admin: localhost:1 }
ledger: { url: rediss://user@redis.internal/2, passwordFile: secret, prefix: "x:", timeout: 1s }
policy: ./policy.yaml
rollout: /etc/rollout.yaml
override: off
logLevel: debug
`);
    expect(config).toEqual({
      gateway: 'a',
      listen: { envoy: 'unix:/run/e.sock', api: '[::1]:0', admin: 'localhost:1' },
      ledger: {
        url: 'rediss://user@redis.internal/2',
        data: undefined,
        password: 's3cret',
        prefix: 'x:',
        timeoutMs: 1000,
      },
      policy: join(folder, 'policy.yaml'),
      rollout: '/etc/rollout.yaml',
      override: 'off',
      logLevel: 'debug',
    });
  });

  it('takes each from the environment first, and all without a file', () => {
    const config = load(`${LEDGER}override: none`, {
      EARMARK_OVERRIDE: 'off',
      EARMARK_LISTEN_ENVOY: '0.0.0.0:1',
      EARMARK_GATEWAY: '',
    });
    expect([config.override, config.listen.envoy]).toEqual(['off', '0.0.0.0:1']);
    const alone = loadConfig(undefined, { EARMARK_LEDGER_DATA: '/var/lib/earmark' });
    expect(alone.ledger).toMatchObject({ url: undefined, data: '/var/lib/earmark' });
  });

  it('lets a ledger of the environment stand in place of the one in the file', () => {
    const url = 'unix:/run/redis.sock';
    expect(load('ledger: { data: ./d }', { EARMARK_LEDGER_URL: url }).ledger).toMatchObject({
      url,
      data: undefined,
    });
    expect(load(LEDGER, { EARMARK_LEDGER_DATA: '/d' }).ledger).toMatchObject({
      url: undefined,
      data: '/d',
    });
  });

  it('names them in the environment as in the file', () => {
    const names = Object.keys(FIELDS).map(environmentName);
    expect(names).toContain('EARMARK_LEDGER_PASSWORD_FILE');
    expect(names).toContain('EARMARK_LISTEN_API');
    expect(names).toContain('EARMARK_LOG_LEVEL');
  });
});

describe('errors', () => {
  it('come all at once, each with its place and the remedy', () => {
    const text = `listen:
  envoy: 9191
  apii: 127.0.0.1:1
ledger:
  url: redis+sentinel://a:1
  prefix: "x{y}"
  timeout: 150
override: maybe
`;
    expect(errors(text, { EARMARK_LISTEN_ADMIN: 'x' })).toEqual([
      'earmark.yaml:3:3: listen.apii: is not a setting: known are listen.envoy, listen.api, listen.admin',
      'earmark.yaml:2:10: listen.envoy: "9191" is no address: write host:port, [::1]:port or unix:/path',
      'earmark.yaml:5:8: ledger.url: redis+sentinel:// is not built yet: name one primary by redis:// or rediss://',
      'earmark.yaml:6:11: ledger.prefix: { and } would move the keys of a line to other slots: leave them out',
      'earmark.yaml:7:12: ledger.timeout: "150" is no time from 1ms to 60s: write for instance 150ms',
      'earmark.yaml:8:11: override: "maybe" is not one of none, off',
      'environment: EARMARK_LISTEN_ADMIN: "x" is no address: write host:port, [::1]:port or unix:/path',
    ]);
  });

  it.each([
    ['ledger: { url: redis+cluster://a }', 'redis+cluster:// is not built yet'],
    ['ledger: { url: "http://a" }', 'no address of a ledger'],
    ['ledger: { url: "redis://:pa%ss@a" }', 'not percent-encoded'],
    ['ledger: { url: "redis://a/x" }', 'no database'],
    ['ledger: { url: "redis://a?x=1" }', 'options behind ?'],
    ['ledger: { url: "redis://a", data: ./d }', 'stands beside ledger.url'],
    ['ledger: { url: "redis://a", timeout: 2m }', 'no time from 1ms to 60s'],
    ['ledger: { url: "redis://a", passwordFile: none }', "can't be read"],
    ['ledger: 5', 'must hold settings: ledger.url'],
    ['- a', 'must hold settings: gateway, listen, ledger'],
    ['{}', 'ledger: is missing: give ledger.url'],
    ['ledger: { url: [a] }', 'must be a single value'],
    [`${LEDGER}listen: { envoy: "127.0.0.1:70000" }`, 'is no address'],
    [`${LEDGER}listen: { envoy: ":9191" }`, 'is no address'],
    ['a: 1\na: 2', 'Map keys must be unique'],
  ])('%s', (text, message) => {
    expect(errors(text)).toEqual([expect.stringContaining(message)]);
  });

  it('never repeat a password', () => {
    writeFileSync(join(folder, 'secret'), 'x');
    const both = errors('ledger: { url: "rediss://u:hunter2@a", passwordFile: secret }');
    const wrong = errors('ledger: { url: "redis://u:hunter2@a/x" }');
    expect([both.length, wrong.length]).toEqual([1, 1]);
    expect([...both, ...wrong].join()).not.toContain('hunter2');
  });

  it('name a file that is not there, and nothing else', () => {
    expect(() => loadConfig('/nowhere/e.yaml', {})).toThrow(
      /^\/nowhere\/e.yaml: can't be read: .*$/,
    );
  });
});
