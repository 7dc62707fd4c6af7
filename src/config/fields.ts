/** What each setting may be: text from the file or the environment in, a value or a remedy out. */
import { isAbsolute, resolve } from 'node:path';
import { parseDuration } from '../policy/duration.js';
import { LOG_LEVELS } from '../telemetry/log.js';

/** The text cannot be what the setting needs; the message says what can. */
export class BadSetting extends Error {
  override readonly name = 'BadSetting';
}

/** Reads one setting. `folder` is what a relative path starts from. */
type Read<T> = (text: string, folder: string) => T;

const PREFIX_BYTES_MAX = 64;
const TIMEOUT_MS_MAX = 60_000;

const text: Read<string> = (value) => value;

const path: Read<string> = (value, folder) => (isAbsolute(value) ? value : resolve(folder, value));

function oneOf<const T extends string>(...names: readonly T[]): Read<T> {
  return (value) => {
    const found = names.find((name) => name === value);
    if (found === undefined) throw new BadSetting(`"${value}" is not one of ${names.join(', ')}`);
    return found;
  };
}

const address: Read<string> = (value) => {
  if (/^unix:\/./.test(value)) return value;
  const match = /^(\[[0-9a-fA-F:.]+\]|[^:[\]\s/]+):(\d{1,5})$/.exec(value);
  if (match && Number(match[2]) <= 65_535) return value;
  throw new BadSetting(`"${value}" is no address: write host:port, [::1]:port or unix:/path`);
};

const ledgerUrl: Read<string> = (value) => {
  if (/^unix:(\/\/)?\/[^/]/.test(value)) return value;
  const scheme = /^([a-z+]+):\/\//.exec(value)?.[1] ?? '';
  if (scheme === 'redis+sentinel' || scheme === 'redis+cluster') {
    throw new BadSetting(
      `${scheme}:// is not built yet: name one primary by redis:// or rediss://`,
    );
  }
  const known = 'redis://host:port, rediss://host:port or unix:/path';
  // The value itself is not repeated: it may hold a password.
  if (scheme !== 'redis' && scheme !== 'rediss')
    throw new BadSetting(`no address of a ledger: write ${known}`);
  if (!URL.canParse(value)) throw new BadSetting(`no valid URL: write ${known}`);
  const url = new URL(value);
  if (url.hostname === '') throw new BadSetting(`the URL names no host: write ${known}`);
  if (!/^(\/\d{0,5})?$/.test(url.pathname)) {
    throw new BadSetting(`"${url.pathname}" is no database: after the port only /number may stand`);
  }
  if (url.search !== '' || url.hash !== '') {
    throw new BadSetting('options behind ? or # are not known: leave them out');
  }
  try {
    decodeURIComponent(url.username + url.password);
  } catch {
    throw new BadSetting(
      'user or password is not percent-encoded: put the secret into ledger.passwordFile',
    );
  }
  return value;
};

const prefix: Read<string> = (value) => {
  if (/[{}]/.test(value)) {
    throw new BadSetting('{ and } would move the keys of a line to other slots: leave them out');
  }
  if (Buffer.byteLength(value) > PREFIX_BYTES_MAX || /[\p{Cc}\s]/u.test(value)) {
    throw new BadSetting(
      `write at most ${PREFIX_BYTES_MAX} bytes without spaces or control characters`,
    );
  }
  return value;
};

const timeout: Read<number> = (value) => {
  const ms = parseDuration(value);
  if (ms !== undefined && ms >= 1 && ms <= TIMEOUT_MS_MAX) return ms;
  throw new BadSetting(`"${value}" is no time from 1ms to 60s: write for instance 150ms`);
};

/** Every setting by its path in the file; EARMARK_… is its name in the environment. */
export const FIELDS = {
  gateway: text,
  'listen.envoy': address,
  'listen.api': address,
  'listen.admin': address,
  'ledger.url': ledgerUrl,
  'ledger.data': path,
  'ledger.passwordFile': path,
  'ledger.prefix': prefix,
  'ledger.timeout': timeout,
  policy: path,
  rollout: path,
  spool: path,
  override: oneOf('none', 'off'),
  logLevel: oneOf(...LOG_LEVELS),
} as const;

export type FieldPath = keyof typeof FIELDS;

/** EARMARK_LEDGER_PASSWORD_FILE for ledger.passwordFile. */
export function environmentName(field: string): string {
  const words = field.replace(/\./g, '_').replace(/([a-z])([A-Z])/g, '$1_$2');
  return `EARMARK_${words.toUpperCase()}`;
}
