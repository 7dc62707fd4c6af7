/** The key that signs our metadata: made once in the ledger, asked for until it is known, then held. */
import { Mac } from '../core/mac.js';

export class MacKey {
  readonly #ask: () => Promise<Buffer>;
  #asked: Promise<Mac> | undefined;
  #key: Mac | undefined;

  constructor(ask: () => Promise<Buffer>) {
    this.#ask = ask;
  }

  /** The key itself where it is known: the request path then waits for nothing. */
  get(): Mac | Promise<Mac> {
    return this.#key ?? this.#fetch();
  }

  #fetch(): Promise<Mac> {
    this.#asked ??= this.#ask()
      .then((key) => {
        this.#key = new Mac(key);
        return this.#key;
      })
      .finally(() => {
        this.#asked = undefined;
      });
    return this.#asked;
  }
}
