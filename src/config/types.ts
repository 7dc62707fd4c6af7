/** Everything `earmark serve` can be told, checked and frozen at the start (contract: earmark.yaml, EARMARK_…). */
export interface Config {
  /** Identity of this process. */
  readonly gateway: string;
  readonly listen: {
    /** host:port or unix:/path */
    readonly envoy: string;
    readonly api: string | undefined;
    readonly admin: string | undefined;
  };
  readonly ledger: LedgerConfig;
  readonly policy: string | undefined;
  readonly rollout: string | undefined;
  /** Folder for evidence that waits for the ledger; with an embedded ledger there is one by default. */
  readonly spool: string | undefined;
  readonly override: 'none' | 'off';
  readonly logLevel: string;
}

export interface LedgerConfig {
  /** redis://, rediss://, or unix:/path of a socket; undefined with `data`. */
  readonly url: string | undefined;
  /** Folder of the embedded ledger; undefined with `url`. */
  readonly data: string | undefined;
  readonly password: string | undefined;
  readonly prefix: string;
  readonly timeoutMs: number;
}
