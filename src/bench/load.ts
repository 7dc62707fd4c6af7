/** The load, in a process of its own: a closed loop of Checks, each followed by its access-log entry. */
import { Client, type ClientWritableStream, credentials, Metadata } from '@grpc/grpc-js';
import { checkMessage, logMessage, metadataOf } from './messages.js';

const CHECK = '/envoy.service.auth.v3.Authorization/Check';
const LOGS = '/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs';

/** More than envoy/sidecar.yaml gives a Check: a machine that is busy makes figures worse and ends nothing. */
const DEADLINE_MS = 10_000;
/** The tenant of the hot line; the others are counted from 0. */
const HOT = 999_999;

/** One run. */
export interface Work {
  /** host:port of earmark. */
  readonly address: string;
  readonly connections: number;
  /** Checks under way at once on each connection. */
  readonly streams: number;
  readonly requests: number;
  /** Lines that the requests go to, in turn; 1: the hot one. */
  readonly lines: number;
  /** `later`: the log entries are kept until the next run has begun. */
  readonly log: 'at once' | 'later';
}

/** What a run was like, seen from the client. */
export interface Done {
  readonly seconds: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly cpuUs: number;
}

interface Connection {
  readonly client: Client;
  readonly logs: ClientWritableStream<Buffer>;
  /** Resolves once the server has read every entry. */
  readonly ended: Promise<void>;
}

const same = (bytes: Buffer): Buffer => bytes;

/** Requests ever sent: each one's number is new. */
let sent = 0;
/** Entries of requests that are still under way. */
const kept: Buffer[] = [];

async function open(address: string): Promise<Connection> {
  const client = new Client(address, credentials.createInsecure(), {
    'grpc.use_local_subchannel_pool': 1,
  });
  await new Promise<void>((resolve, reject) =>
    client.waitForReady(Date.now() + 10_000, (error) => (error ? reject(error) : resolve())),
  );
  let logs!: ClientWritableStream<Buffer>;
  const ended = new Promise<void>((resolve, reject) => {
    logs = client.makeClientStreamRequest(LOGS, same, same, (error) =>
      error ? reject(error) : resolve(),
    );
  });
  return { client, logs, ended };
}

/** One stream's share: the next request as soon as the last one is answered, until all are sent. */
function loop(connection: Connection, work: Work, last: number, took: number[]): Promise<void> {
  const { client, logs } = connection;
  const headers = new Metadata();
  return new Promise((resolve, reject) => {
    const next = (): void => {
      if (sent >= last) {
        resolve();
        return;
      }
      const n = sent++;
      const message = checkMessage(n, work.lines === 1 ? HOT : n % work.lines);
      const options = { deadline: Date.now() + DEADLINE_MS };
      const start = performance.now();
      client.makeUnaryRequest(CHECK, same, same, message, headers, options, (error, answer) => {
        took.push(performance.now() - start);
        try {
          if (error) throw error;
          const entry = logMessage(n, metadataOf(answer!));
          if (work.log === 'at once') logs.write(entry);
          else kept.push(entry);
          next();
        } catch (wrong) {
          reject(wrong);
        }
      });
    };
    next();
  });
}

function share(sorted: Float64Array, part: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0;
}

async function run(work: Work): Promise<Done> {
  const connections = await Promise.all(
    Array.from({ length: work.connections }, () => open(work.address)),
  );
  const took: number[] = [];
  const start = performance.now();
  const cpu = process.cpuUsage();
  for (const entry of kept.splice(0)) connections[0]!.logs.write(entry);
  const last = sent + work.requests;
  await Promise.all(
    connections.flatMap((connection) =>
      Array.from({ length: work.streams }, () => loop(connection, work, last, took)),
    ),
  );
  for (const { logs } of connections) logs.end();
  await Promise.all(connections.map(({ ended }) => ended));
  const { user, system } = process.cpuUsage(cpu);
  const seconds = (performance.now() - start) / 1000;
  for (const { client } of connections) client.close();
  const sorted = Float64Array.from(took).sort();
  return { seconds, p50Ms: share(sorted, 0.5), p99Ms: share(sorted, 0.99), cpuUs: user + system };
}

process.on('disconnect', () => process.exit());
process.on('message', (work) => {
  run(work as Work).then(
    (done) => process.send!({ done }),
    (error: Error) => process.send!({ failed: error.message }),
  );
});
