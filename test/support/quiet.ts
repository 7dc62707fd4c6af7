/** A log and a meter that keep what they were told, for tests to look at. */
import type { Log, Meter } from '../../src/telemetry/meter.js';

export interface Kept extends Log, Meter {
  /** "level message", in order. */
  readonly lines: string[];
  /** The fields of each line. */
  readonly fields: object[];
  /** The last value or the sum of each metric, by name and its label values. */
  readonly metrics: Map<string, number>;
}

export function keep(): Kept {
  const lines: string[] = [];
  const fields: object[] = [];
  const metrics = new Map<string, number>();
  const log = (level: string) => (entry: object, message: string) => {
    lines.push(`${level} ${message}`);
    fields.push(entry);
  };
  const name = (metric: string, labels: object): string =>
    [metric, ...Object.values(labels)].join(' ');
  return {
    lines,
    fields,
    metrics,
    debug: log('debug'),
    info: log('info'),
    warn: log('warn'),
    error: log('error'),
    count(metric, labels, by = 1) {
      metrics.set(name(metric, labels), (metrics.get(name(metric, labels)) ?? 0) + by);
    },
    observe(metric, labels, value) {
      metrics.set(name(metric, labels), value);
    },
  };
}
