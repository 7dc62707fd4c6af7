/** The key that signs our metadata: made once in the ledger, asked for until it is known, then held. */
export class MacKey {
  readonly #ask: () => Promise<Buffer>;
  #asked: Promise<Buffer> | undefined;
  #key: Buffer | undefined;

  constructor(ask: () => Promise<Buffer>) {
    this.#ask = ask;
  }

  /** The key itself where it is known: the request path then waits for nothing. */
  get(): Buffer | Promise<Buffer> {
    return this.#key ?? this.#fetch();
  }

  #fetch(): Promise<Buffer> {
    this.#asked ??= this.#ask()
      .then((key) => {
        this.#key = key;
        return key;
      })
      .finally(() => {
        this.#asked = undefined;
      });
    return this.#asked;
  }
}
