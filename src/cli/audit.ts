/** `earmark audit`: reads the whole ledger, adds everything up, and names what does not. */
import { type AuditLine, auditLine } from '../ledger/audit.js';
import type { Ledger } from '../ledger/ledger.js';
import { LedgerUnavailable, type LineDump } from '../ledger/types.js';
import type { LedgerContext } from './context.js';
import { textTable } from './table.js';

/** Lines read at once. */
const AT_ONCE = 16;

export interface AuditReport {
  readonly ok: boolean;
  readonly lines: readonly AuditLine[];
  readonly problems: readonly { readonly line: string; readonly problem: string }[];
}

export async function auditCommand(args: readonly string[], context: LedgerContext) {
  if (args.length > 0) return { text: 'usage: earmark audit', json: { ok: false }, code: 2 };
  const report = await audit(context);
  const problems = report.problems.map(({ line, problem }) => `${line}: ${problem}`);
  const verdict = report.ok
    ? `${report.lines.length === 1 ? '1 line' : `${report.lines.length} lines`}, everything adds up`
    : problems.join('\n');
  return { table: tableOf(report.lines), text: verdict, json: report, code: report.ok ? 0 : 1 };
}

async function audit(context: LedgerContext): Promise<AuditReport> {
  const ledger = await context.ledger();
  const now = await context.now();
  const freezes = await context.documents().freezes();
  const frozen = (until: number): boolean => until === -1 || until > now;
  const lines: AuditLine[] = [];
  const problems: { line: string; problem: string }[] = [];
  // A scan may show a line twice.
  const seen = new Set<string>();
  for await (const page of ledger.lines()) {
    const tags = page.filter((tag) => !seen.has(tag));
    for (const tag of tags) seen.add(tag);
    for (let at = 0; at < tags.length; at += AT_ONCE) {
      const readings = tags.slice(at, at + AT_ONCE).map((tag) => readLine(ledger, tag));
      for (const reading of await Promise.all(readings)) {
        if ('problem' in reading) problems.push(reading);
        else {
          for (const dump of reading.dumps) {
            const stops = frozen(dump.frozenUntil) || frozen(freezes.get(dump.route) ?? 0);
            const audited = auditLine(dump, stops);
            lines.push(audited.line);
            const line = nameOf(dump);
            problems.push(...audited.problems.map((problem) => ({ line, problem })));
          }
        }
      }
    }
  }
  lines.sort((a, b) => order(a.route, b.route) || order(a.subject, b.subject));
  return { ok: problems.length === 0, lines, problems };
}

function order(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

async function readLine(
  ledger: Ledger,
  tag: string,
): Promise<{ dumps: readonly LineDump[] } | { line: string; problem: string }> {
  try {
    return { dumps: await ledger.dump(tag) };
  } catch (error) {
    const problem = error instanceof Error ? error.message : String(error);
    // Away, or only this line? Whoever answers a PING is not away.
    await ledger.redis.ping().catch(() => {
      throw new LedgerUnavailable(problem);
    });
    return { line: ledger.keys.line(tag), problem: `can't be read: ${problem}` };
  }
}

function nameOf({ route, subject, shadow }: LineDump): string {
  return `${JSON.stringify(subject)} on ${JSON.stringify(route)}${shadow ? ' (shadow)' : ''}`;
}

function tableOf(lines: readonly AuditLine[]): string {
  const head = [
    'route',
    'subject',
    'limit',
    'available',
    'reserved',
    'spent',
    'debt',
    'state',
    'receipts',
  ];
  const rows = lines.flatMap((line) => {
    const open = line.books.filter(({ closed }) => !closed);
    return open.map((book) => {
      const books = line.books.filter(({ limit }) => limit === book.limit);
      const total = (term: 'reserved' | 'spent'): string =>
        String(books.reduce((sum, each) => sum + each[term], 0));
      const states = Object.entries(line.reservations).map(([state, count]) => `${state} ${count}`);
      return [
        line.route,
        line.subject,
        `${book.limit}${line.shadow ? ' (shadow)' : ''}`.trim(),
        String(book.available),
        total('reserved'),
        total('spent'),
        String(line.debt),
        line.suspended ?? '',
        states.join(', '),
      ];
    });
  });
  return textTable(head, rows);
}
