/** What the rest of the product may say to metrics and log. */
import type { METRICS } from './metrics.js';

type Table = typeof METRICS;
type Named<Kind> = {
  [M in keyof Table]: Table[M]['kind'] extends Kind ? M : never;
}[keyof Table];

/** The labels a metric has, all of them. */
export type LabelsOf<M extends keyof Table> = Readonly<Record<Table[M]['labels'][number], string>>;
export type CounterName = Named<'counter'>;
export type ObservedName = Named<'gauge' | 'histogram'>;

/** Only what stands in the table of metrics.ts can be counted; add a line there for more. */
export interface Meter {
  count<M extends CounterName>(metric: M, labels: LabelsOf<M>, by?: number): void;
  /** A histogram gets one more value; a gauge is set to it. */
  observe<M extends ObservedName>(metric: M, labels: LabelsOf<M>, value: number): void;
}

/** What the rest of the product may say to the log. Never a secret, never a body. */
export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}
