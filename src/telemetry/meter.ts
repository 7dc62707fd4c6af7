/** What the rest of the product may say to the metrics; the table of all of them is in metrics.ts. */
export interface Meter {
  count(metric: string, labels: Readonly<Record<string, string>>, by?: number): void;
  observe(metric: string, labels: Readonly<Record<string, string>>, value: number): void;
}

/** What the rest of the product may say to the log. Never a secret, never a body. */
export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}
