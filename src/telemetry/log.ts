/** JSON logs on stderr; what could hold a secret is taken out before it is written. */
import { pino } from 'pino';
import type { Log } from './meter.js';

export const LOG_LEVELS = ['debug', 'info', 'warn', 'error', 'silent'] as const;

/** Names of fields that are never written, wherever they stand (two levels deep). */
const SECRET = [
  'authorization',
  'proxy-authorization',
  'cookie',
  'set-cookie',
  'x-api-key',
  'api-key',
  'password',
  'passwordFile',
  'macKey',
  'body',
];

/** The user and password of every URL in the text, however they are written. */
export function withoutPasswords(text: string): string {
  return text.replace(/([a-z][a-z0-9+.-]*:\/\/)[^\s/@]*(?:@[^\s/@]*)*@/gi, '$1***@');
}

/** A stream to write to; stderr, so that stdout stays the commands'. */
export interface Sink {
  write(line: string): void;
}

export function createLog(level: string, gateway: string, sink: Sink = process.stderr): Log {
  const paths = SECRET.flatMap((name) => [`["${name}"]`, `*["${name}"]`, `*.*["${name}"]`]);
  const stream = { write: (line: string) => sink.write(withoutPasswords(line)) };
  return pino(
    {
      level,
      base: { gateway },
      redact: { paths, censor: '***' },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: pino.stdSerializers.err },
    },
    stream,
  );
}
