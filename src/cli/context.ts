/** What commands share: the way to the ledger, opened when first asked for and closed at the end. */
import type { Config } from '../config/types.js';
import { openRedis, type Redis, redisOptions } from '../ledger/connect.js';
import { Documents } from '../ledger/documents.js';
import { Ledger } from '../ledger/ledger.js';
import { checkSchema, SchemaUnknown } from '../ledger/schema.js';
import { LedgerUnavailable } from '../ledger/types.js';
import { createLog } from '../telemetry/log.js';
import type { Log } from '../telemetry/meter.js';

/** A person waits: longer than a Check may. */
const TIMEOUT_MS = 10_000;

export class LedgerContext {
  readonly #load: () => Config;
  #loaded: Config | undefined;
  #redis: Redis | undefined;
  #ledger: Ledger | undefined;
  #trouble: string | undefined;

  constructor(load: () => Config) {
    this.#load = load;
  }

  /** Read when it is first asked for: wrong usage is told before wrong settings. */
  get #config(): Config {
    this.#loaded ??= this.#load();
    return this.#loaded;
  }

  get prefix(): string {
    return this.#config.ledger.prefix;
  }

  redis(): Redis {
    // Its log is what it says when nothing is reached.
    const log: Log = {
      debug() {},
      info() {},
      warn: (fields) => {
        this.#trouble = (fields as { err?: string }).err;
      },
      error() {},
    };
    this.#redis ??= openRedis(redisOptions(this.#config.ledger), log, true);
    return this.#redis;
  }

  log(): Log {
    return createLog(this.#config.logLevel, this.#config.gateway);
  }

  documents(): Documents {
    return new Documents(this.redis(), this.prefix);
  }

  /** Resolves when it is connected; rejects with the remedy where nobody answers. */
  async ledger(): Promise<Ledger> {
    if (this.#ledger !== undefined) return this.#ledger;
    await this.now();
    const ledger = new Ledger({
      redis: redisOptions(this.#config.ledger),
      prefix: this.prefix,
      timeoutMs: TIMEOUT_MS,
    });
    this.#ledger = ledger;
    if (ledger.redis.status !== 'ready') {
      await new Promise<void>((resolve, reject) => {
        ledger.redis.once('ready', resolve);
        ledger.redis.once('close', () =>
          reject(new LedgerUnavailable('the connection was closed')),
        );
      });
    }
    return ledger;
  }

  /** The ledger's clock, in ms. */
  async now(): Promise<number> {
    try {
      await checkSchema(this.redis(), this.prefix);
      const [seconds, micros] = await this.redis().time();
      return Number(seconds) * 1000 + Math.floor(Number(micros) / 1000);
    } catch (error) {
      if (error instanceof SchemaUnknown) throw error;
      throw new LedgerUnavailable(this.remedy((error as Error).message));
    }
  }

  /** What to do about a ledger that is not there. */
  remedy(why: string): string {
    const { url, data } = this.#config.ledger;
    const remedy =
      url === undefined
        ? `the embedded ledger of ${data} is not running: start it by earmark serve`
        : 'nothing answers at ledger.url: check it with EARMARK_LEDGER_URL or --config';
    return `${remedy} (${this.#trouble ?? why})`;
  }

  async close(): Promise<void> {
    await this.#ledger?.stop();
    this.#redis?.disconnect();
  }
}
