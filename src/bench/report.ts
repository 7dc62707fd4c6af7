/** What the rounds say: medians, targets, and docs/performance.md. Pure. */
import { type Memory, type Round, SHAPES, type Shape, type Speed } from './round.js';

const MIB = 2 ** 20;

/** The median of the rounds, with the least and the most beside it. */
interface Figure {
  readonly median: number;
  readonly least: number;
  readonly most: number;
}

export interface Target {
  readonly name: string;
  readonly unit: string;
  readonly most: number;
  readonly figure: Figure;
}

export interface Machine {
  readonly cores: number;
  readonly cpu: string;
  readonly node: string;
}

function figureOf(values: readonly number[]): Figure {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const [low, high] = [sorted[(sorted.length - 1) >> 1]!, sorted[middle]!];
  return { median: (low + high) / 2, least: sorted[0]!, most: sorted.at(-1)! };
}

function speedOf(rounds: readonly Round[], shape: number, of: (speed: Speed) => number): Figure {
  return figureOf(rounds.map(({ speeds }) => of(speeds[shape]!)));
}

function memoryOf(rounds: readonly Round[], of: (memory: Memory) => number): Figure {
  return figureOf(rounds.map(({ memory }) => of(memory)));
}

const together = ({ nodeUs, redisUs }: Speed): number => nodeUs + redisUs;
const nameOf = ({ connections, streams, lines }: Shape): string =>
  `${connections} × ${streams}, ${lines === 1 ? 'one hot line' : `${whole(lines)} lines`}`;

export function targetsOf(rounds: readonly Round[]): readonly Target[] {
  const speeds = SHAPES.map((shape, index) => ({ shape, index }))
    .filter(({ shape }) => shape.connections === 4)
    .map(({ shape, index }) => ({
      name: `Node and Redis together, ${nameOf(shape)}`,
      ...{ unit: 'µs', most: 160, figure: speedOf(rounds, index, together) },
    }));
  const bytes = (name: string, of: (memory: Memory) => number): Target => ({
    name: `a receipt in Redis, ${name}`,
    ...{ unit: 'bytes', most: 350, figure: memoryOf(rounds, of) },
  });
  const resident = (name: string, of: (memory: Memory) => number): Target => ({
    name: `RSS of earmark, ${name}`,
    ...{ unit: 'MiB', most: 150, figure: memoryOf(rounds, (memory) => of(memory) / MIB) },
  });
  return [
    ...speeds,
    bytes('one hot line', (memory) => memory.receiptHot),
    bytes('10,000 lines', (memory) => memory.receiptSpread),
    resident('1,000 requests admitted', (memory) => memory.residentAdmitted),
    resident('1,000 Checks waiting at once', (memory) => memory.residentWaiting),
  ];
}

/** The rounds differ by noise; where even the best of them is above the target, it isn't noise. */
export function missed({ most, figure }: Target): boolean {
  return figure.least > most;
}

function whole(value: number): string {
  return Math.round(value).toLocaleString('en-US');
}

function spread({ median, least, most }: Figure): string {
  return `${whole(median)} (${whole(least)}–${whole(most)})`;
}

/** Columns as wide as their widest cell, so that it can be read as it is. */
function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const all = [head, ...rows];
  const widths = head.map((_, column) => Math.max(...all.map((row) => row[column]!.length)));
  const line = (row: readonly string[]): string =>
    `| ${row.map((cell, column) => cell.padEnd(widths[column]!)).join(' | ')} |`;
  const rule = `| ${widths.map((width) => '-'.repeat(width)).join(' | ')} |`;
  return [line(head), rule, ...rows.map(line)].join('\n');
}

function speedRows(rounds: readonly Round[]): string[][] {
  return SHAPES.map((shape, index) => {
    const of = (pick: (speed: Speed) => number): Figure => speedOf(rounds, index, pick);
    const percent = (pick: (speed: Speed) => number): string => `${whole(of(pick).median * 100)} %`;
    return [
      nameOf(shape),
      whole(of((speed) => speed.nodeUs).median),
      whole(of((speed) => speed.redisUs).median),
      spread(of(together)),
      whole(of((speed) => speed.requestsASecond).median),
      of((speed) => speed.p50Ms).median.toFixed(2),
      of((speed) => speed.p99Ms).median.toFixed(2),
      percent((speed) => speed.nodeBusy),
      percent((speed) => speed.loadBusy),
    ];
  });
}

const SPEED_HEAD = [
  'connections × streams, lines',
  'Node µs',
  'Redis µs',
  'together (least–most)',
  'requests a second',
  'p50 ms',
  'p99 ms',
  'earmark busy',
  'load busy',
];

/** docs/performance.md, whole. */
export function documentOf(rounds: readonly Round[], machine: Machine, requests: number): string {
  const targets = targetsOf(rounds);
  const record = memoryOf(rounds, (memory) => memory.record);
  const rows = targets.map((target) => [
    target.name,
    `${spread(target.figure)} ${target.unit}`,
    `${target.most} ${target.unit}`,
    missed(target) ? 'missed' : 'met',
  ]);
  const others = Math.max(
    ...SHAPES.map((_, index) => speedOf(rounds, index, (speed) => speed.othersBusy).median),
  );
  const many = rounds.length === 1 ? 'one round' : `the median of ${rounds.length} rounds`;
  const warm = whole(4 * requests);
  const busy = whole(others * 100);
  const count = whole(requests);
  const kept = whole(record.median);
  return `# What a request costs

Written by \`npm run bench\`, every figure of it: ${many} on ${machine.cores} cores (${machine.cpu}),
Node ${machine.node}, ${rounds[0]!.ledger}. Three processes share the cores: \`earmark serve\`; its embedded ledger,
on a Unix socket, with an append-only file that is synced every second; and the load.

A request is **fully accounted** when it was admitted by a Check and its access-log entry is settled. Both messages are
those of a real Envoy (22 headers, a JSON body of 600 bytes; usage out of the response's body) with other IDs in them.
The load is a closed loop: each stream sends the next Check once the last is answered, and entries go over one
long-lived stream a connection. Each round has a fresh earmark and a fresh ledger, warmed up by ${warm} requests,
and ends with \`earmark audit\`: everything that was ever sent is SETTLED, and no book has a difference.

## CPU and time

µs of CPU for one fully accounted request; the times are those of a Check, seen by its client.

${table(SPEED_HEAD, speedRows(rounds))}

_Busy_ is the part of one core that a process used: where earmark is busier than the load, earmark is what was measured.
Everything else on the machine used ${busy} % of its cores meanwhile. Where that is more than a few percent, the
figures are those of a busy machine: caches are shared, and each request costs more.

## Targets

${table(['what', 'measured (least–most)', 'target', ''], rows)}

A target is missed when the best round misses it: what the rounds differ by is noise. The bench then ends with exit
code 1.

Bytes are what the server's memory grows by (\`used_memory\` without buffers) from ${count} receipts to twice as many,
divided by their number, with everything that belongs to a receipt (its places in the indexes of its line, too). What is
kept by request ID until the usage deadline and an hour is not in it: ${kept} bytes a request. RSS is looked at
after all of the above, with the requests over 4 connections; to let 1,000 Checks wait at once, the ledger is paused.
`;
}
