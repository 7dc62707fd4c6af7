/** The way to the server that holds the ledger, and whether that server may hold one. */
import { Redis, type RedisOptions } from 'ioredis';
import type { LedgerConfig } from '../config/types.js';
import type { Log, Meter } from '../telemetry/meter.js';
import { embeddedSocket } from './embedded.js';
import { checkSchema, claimSchema, SchemaUnknown } from './schema.js';
import { shortSocket } from './socket.js';

export type { Redis, RedisOptions };

const CHECK_EVERY_MS = 10_000;
/** While it is wrong, so that nobody waits for long once it is right. */
const RECHECK_EVERY_MS = 1_000;
const COMMAND_MS_MAX = 2000;
/** A server that says nothing for so long while it is asked is one that a new connection may not lead to. */
const SILENCE_MS_MAX = 1500;

/** For every connection to a ledger: a command is sent once, ends whatever happens, and never gets another's answer. */
export const STEADY = {
  replyMapping: 'legacy',
  autoResendUnfulfilledCommands: false,
  socketTimeout: SILENCE_MS_MAX,
  // The name may lead to the new primary by now.
  reconnectOnError: (error: Error) => error.message.startsWith('READONLY'),
} as const satisfies RedisOptions;

/** Where the server is and who we are there, in ioredis' words. The URL was checked with the settings. */
export function redisOptions(ledger: LedgerConfig): RedisOptions {
  const password = ledger.password === undefined ? {} : { password: ledger.password };
  if (ledger.url === undefined) return { path: embeddedSocket(ledger.data ?? '.'), ...password };
  const socket = /^unix:(?:\/\/)?(\/.*)$/.exec(ledger.url)?.[1];
  if (socket !== undefined) return { path: shortSocket(socket), ...password };
  const url = new URL(ledger.url);
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1');
  return {
    host,
    port: url.port === '' ? 6379 : Number(url.port),
    ...(url.username === '' ? {} : { username: decodeURIComponent(url.username) }),
    ...(url.password === '' ? {} : { password: decodeURIComponent(url.password) }),
    ...password,
    ...(url.pathname.length > 1 ? { db: Number(url.pathname.slice(1)) } : {}),
    ...(url.protocol === 'rediss:' ? { tls: { servername: host } } : {}),
  };
}

/**
 * A connection that comes back by itself. While it is away a command fails at once, or, with `patient`, once the
 * first attempts to connect have failed.
 */
export function openRedis(options: RedisOptions, log: Log, patient = false): Redis {
  const redis = new Redis({
    ...options,
    ...STEADY,
    connectTimeout: COMMAND_MS_MAX,
    ...(patient ? {} : { commandTimeout: COMMAND_MS_MAX }),
    enableOfflineQueue: patient,
    maxRetriesPerRequest: patient ? 2 : 0,
    retryStrategy: (times: number) => Math.min(100 * times, 1000),
  });
  let said = '';
  redis.on('error', (error: Error) => {
    // Once for each reason: a server that is away is tried again several times a second.
    if (error.message !== said) log.warn({ err: error.message }, 'connection to the ledger failed');
    said = error.message;
  });
  redis.on('ready', () => {
    said = '';
  });
  return redis;
}

export interface Verdict {
  /** Why this server may not hold a ledger, and the remedy. */
  readonly refused: string | undefined;
  /** It follows another one. */
  readonly replica: boolean;
  readonly warnings: readonly string[];
}

/** Judges a server by the text of its INFO. */
export function judgeServer(info: string): Verdict {
  const fields = new Map<string, string>();
  for (const line of info.split(/\r?\n/)) {
    const colon = line.indexOf(':');
    if (colon > 0) fields.set(line.slice(0, colon), line.slice(colon + 1).trim());
  }
  const refused = refusal(fields);
  const appendOnly = fields.get('aof_enabled') === '1';
  return {
    refused,
    replica: fields.has('role') && fields.get('role') !== 'master',
    warnings: appendOnly
      ? []
      : ['the server keeps no append-only file, so a restart forgets: set appendonly yes'],
  };
}

function refusal(fields: ReadonlyMap<string, string>): string | undefined {
  const valkey = fields.get('valkey_version');
  const version = valkey ?? fields.get('redis_version');
  if (version === undefined) return 'INFO gives no version: let this user run INFO';
  if (Number.parseInt(version, 10) < (valkey === undefined ? 7 : 8)) {
    return `the server is version ${version}: earmark needs Redis 7 or Valkey 8, or newer`;
  }
  const mode = fields.get('redis_mode') ?? fields.get('server_mode') ?? 'standalone';
  if (mode !== 'standalone')
    return `the server runs as ${mode}, which is not built yet: name one primary`;
  if (fields.get('role') !== 'master') {
    return `the server's role is ${fields.get('role')}: name the primary`;
  }
  const policy = fields.get('maxmemory_policy');
  if (policy !== 'noeviction') {
    return `maxmemory-policy is ${policy}, which may drop a line and with it what was spent: set it to noeviction`;
  }
  return undefined;
}

/** Looks at the server at each new connection and now and then; refused until it was seen to be right. */
export class ServerWatch {
  #refused: string | undefined = 'the ledger was not reached yet';
  #replica = false;
  #foreign: SchemaUnknown | undefined;
  #warned = '';
  readonly #redis: Redis;
  readonly #prefix: string;
  readonly #log: Log;
  readonly #meter: Meter;
  readonly #timer: NodeJS.Timeout;
  readonly #check = (): void => void this.check();
  readonly #closed = (): void => this.#meter.observe('earmark_ledger_usable', {}, 0);

  constructor(redis: Redis, prefix: string, log: Log, meter: Meter) {
    this.#redis = redis;
    this.#prefix = prefix;
    this.#log = log;
    this.#meter = meter;
    redis.on('ready', this.#check);
    redis.on('close', this.#closed);
    let next = performance.now() + CHECK_EVERY_MS;
    this.#timer = setInterval(() => {
      if (this.#refused === undefined && performance.now() < next) {
        void this.#checkForm();
        return;
      }
      next = performance.now() + CHECK_EVERY_MS;
      // The name may lead to the new primary by now, and this connection does not: the next one looks.
      if (this.#replica) redis.disconnect(true);
      else this.#check();
    }, RECHECK_EVERY_MS);
    this.#timer.unref();
    if (redis.status === 'ready') this.#check();
  }

  /** Why the server may not be used; undefined: it may. */
  get refused(): string | undefined {
    return this.#refused;
  }

  /** The ledger there is of another version of earmark: nothing at all may be done to it. */
  get foreign(): SchemaUnknown | undefined {
    return this.#foreign;
  }

  async check(): Promise<void> {
    let verdict: Verdict;
    try {
      verdict = judgeServer(await this.#redis.info());
      this.#replica = verdict.replica;
      if (verdict.refused === undefined) await claimSchema(this.#redis, this.#prefix);
      this.#foreign = undefined;
    } catch (error) {
      if (error instanceof SchemaUnknown) {
        this.#close(error);
        return;
      }
      // A server that is away is told by the calls that need it; one that forbids INFO never gets here.
      const message = error instanceof Error ? error.message : String(error);
      if (!message.includes('NOPERM')) return;
      verdict = {
        refused: `INFO is forbidden: let this user run INFO (${message})`,
        replica: false,
        warnings: [],
      };
    }
    if (verdict.refused !== undefined && verdict.refused !== this.#refused) {
      this.#log.error({ why: verdict.refused }, 'the ledger must not be used');
    }
    const warned = verdict.warnings.join('; ');
    if (warned !== '' && warned !== this.#warned) this.#log.warn({ warned }, 'about the ledger');
    this.#refused = verdict.refused;
    this.#warned = warned;
    this.#meter.observe('earmark_ledger_usable', {}, verdict.refused === undefined ? 1 : 0);
    this.#meter.observe('earmark_ledger_persistent', {}, warned === '' ? 1 : 0);
  }

  /** Between the looks at the server: an earmark of another version may take the ledger over at any time. */
  async #checkForm(): Promise<void> {
    try {
      await checkSchema(this.#redis, this.#prefix);
    } catch (error) {
      // Whether a server that is away is what it was is asked when it is back.
      if (error instanceof SchemaUnknown) this.#close(error);
    }
  }

  #close(why: SchemaUnknown): void {
    if (this.#refused !== why.message) {
      this.#log.error({ why: why.message }, 'the ledger must not be used');
    }
    this.#foreign = why;
    this.#refused = why.message;
    this.#meter.observe('earmark_ledger_usable', {}, 0);
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#redis.off('ready', this.#check);
    this.#redis.off('close', this.#closed);
  }
}
