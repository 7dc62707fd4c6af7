/** Every metric of earmark, declared in one table: nothing else can be counted. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { CounterName, LabelsOf, Meter, ObservedName } from './meter.js';

type Kind = 'counter' | 'gauge' | 'histogram';

interface Metric {
  readonly kind: Kind;
  readonly help: string;
  /** Never a subject: their number has no bound. */
  readonly labels: readonly string[];
  readonly buckets?: readonly number[];
}

const quick = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5];
const slow = [0.1, 0.5, 1, 5, 15, 60, 300, 600, 1800, 3600, 21600, 86400];
const sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/** By full name, as Prometheus shows it. Times in seconds. */
export const METRICS = {
  earmark_checks_total: counter('Checks answered', 'route', 'answer', 'mode'),
  earmark_check_seconds: histogram('Time to answer a Check', quick, 'answer'),
  earmark_refusals_total: counter(
    'Admissions refused; with mode="shadow" those that would have been',
    'route',
    'by',
    'limit',
    'mode',
  ),
  earmark_policy_errors_total: counter('Requests on which an expression failed', 'route', 'field'),
  earmark_evidence_total: counter('Evidence by what became of it', 'route', 'outcome'),
  earmark_evidence_unknown_total: counter('Uses that nobody reported, by cause', 'route', 'cause'),
  earmark_evidence_forged_total: counter('Log entries whose MAC is wrong'),
  earmark_evidence_conflicts_total: counter('Evidence that contradicts a receipt', 'route'),
  earmark_evidence_waiting: gauge('Evidence kept for another try'),
  earmark_evidence_spool_bytes: gauge('Evidence on disk until the ledger is back'),
  earmark_settle_seconds: histogram('From a log entry to its booking', quick),
  earmark_unknown_resolved_seconds: histogram(
    'From a reservation to the receipt that ended its USAGE_UNKNOWN',
    slow,
    'route',
  ),
  earmark_breaches_total: counter('Receipts booked past a cap', 'route'),
  earmark_sweeps_total: counter('Reservations that time changed', 'transition'),
  earmark_ledger_batch_size: histogram('Operations in one round trip', sizes, 'kind'),
  earmark_ledger_errors_total: counter('Round trips that failed', 'kind'),
  earmark_ledger_lines_fallen_total: counter(
    'Lines of which the ledger forgot writes; they are frozen',
  ),
  earmark_ledger_usable: gauge('1 while connected to a server that passes every check'),
  earmark_ledger_persistent: gauge('1 while the server has an append-only file'),
  earmark_embedded_restarts_total: counter('The embedded ledger died and was started again'),
  earmark_policy_generation: gauge('Generation in force'),
  earmark_policy_load_failures_total: counter('Documents that could not be loaded', 'document'),
  earmark_api_calls_total: counter('Calls of earmark.v1.Ledger', 'method', 'code'),
  earmark_receipts_total: counter('Receipts posted over HTTP', 'status'),
};

type Declared<Kind, Label extends string> = Metric & { kind: Kind; labels: readonly Label[] };

function counter<const L extends string = never>(help: string, ...labels: L[]) {
  return { kind: 'counter', help, labels } as Declared<'counter', L>;
}

function gauge<const L extends string = never>(help: string, ...labels: L[]) {
  return { kind: 'gauge', help, labels } as Declared<'gauge', L>;
}

function histogram<const L extends string = never>(
  help: string,
  buckets: readonly number[],
  ...labels: L[]
) {
  return { kind: 'histogram', help, labels, buckets } as Declared<'histogram', L>;
}

/** Counts into a registry of its own; to observe a gauge is to set it. */
export class Metrics implements Meter {
  readonly #registry = new Registry();
  readonly #metrics = new Map<string, Counter | Gauge | Histogram>();

  constructor() {
    collectDefaultMetrics({ register: this.#registry, prefix: 'earmark_' });
    for (const [name, metric] of Object.entries<Metric>(METRICS)) {
      const settings = {
        name,
        help: metric.help,
        labelNames: metric.labels,
        registers: [this.#registry],
      };
      const buckets = metric.buckets === undefined ? {} : { buckets: [...metric.buckets] };
      if (metric.kind === 'counter') this.#metrics.set(name, new Counter(settings));
      else if (metric.kind === 'gauge') this.#metrics.set(name, new Gauge(settings));
      else this.#metrics.set(name, new Histogram({ ...settings, ...buckets }));
    }
  }

  count<M extends CounterName>(metric: M, labels: LabelsOf<M>, by = 1): void {
    const found = this.#metrics.get(metric);
    if (!(found instanceof Counter)) throw new Error(`no counter ${metric}: declare it in METRICS`);
    found.inc(labels as Record<string, string>, by);
  }

  observe<M extends ObservedName>(metric: M, labels: LabelsOf<M>, value: number): void {
    const found = this.#metrics.get(metric);
    if (found instanceof Histogram) found.observe(labels as Record<string, string>, value);
    else if (found instanceof Gauge) found.set(labels as Record<string, string>, value);
    else throw new Error(`no gauge or histogram ${metric}: declare it in METRICS`);
  }

  /** What `/metrics` answers, in Prometheus' text form. */
  async text(): Promise<{ readonly type: string; readonly body: string }> {
    return { type: this.#registry.contentType, body: await this.#registry.metrics() };
  }
}
