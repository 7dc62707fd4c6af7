/** The load, in a process of its own: a closed loop of Checks, each followed by its access-log entry. */
import { once } from 'node:events';
import { type ClientHttp2Session, type ClientHttp2Stream, connect } from 'node:http2';
import { checkMessage, framed, logMessage, metadataOf } from './messages.js';

// gRPC by hand: a client library would cost more than everything else here, on the cores that earmark needs.
const CHECK = {
  ':method': 'POST',
  ':path': '/envoy.service.auth.v3.Authorization/Check',
  'content-type': 'application/grpc',
  te: 'trailers',
  // More than envoy/sidecar.yaml gives: a machine that is busy makes figures worse and ends nothing.
  'grpc-timeout': '10S',
};
const LOGS = {
  ':method': 'POST',
  ':path': '/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs',
  'content-type': 'application/grpc',
  te: 'trailers',
};

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
  readonly session: ClientHttp2Session;
  readonly logs: ClientHttp2Stream;
}

/** Requests ever sent: each one's number is new. */
let sent = 0;
/** Entries of requests that are still under way. */
const kept: Buffer[] = [];

async function open(address: string): Promise<Connection> {
  const session = connect(`http://${address}`);
  await once(session, 'remoteSettings');
  const logs = session.request(LOGS);
  logs.resume();
  return { session, logs };
}

/** Calls `done` with the answer's message, or without where there is none. */
function check(
  session: ClientHttp2Session,
  message: Buffer,
  done: (answer?: Buffer) => void,
): void {
  const stream = session.request(CHECK);
  let answer: Buffer | undefined;
  stream.on('data', (data: Buffer) => {
    answer = answer === undefined ? data : Buffer.concat([answer, data]);
  });
  stream.on('error', () => {});
  stream.on('close', () => done(answer?.subarray(5)));
  stream.end(message);
}

/** One stream's share: the next request as soon as the last one is answered, until all are sent. */
function loop(connection: Connection, work: Work, last: number, took: number[]): Promise<void> {
  const { session, logs } = connection;
  return new Promise((resolve, reject) => {
    const next = (): void => {
      if (sent >= last) {
        resolve();
        return;
      }
      const n = sent++;
      const message = framed(checkMessage(n, work.lines === 1 ? HOT : n % work.lines));
      const start = performance.now();
      check(session, message, (answer) => {
        took.push(performance.now() - start);
        try {
          if (answer === undefined) throw new Error('a Check was not answered');
          const entry = framed(logMessage(n, metadataOf(answer)));
          if (work.log === 'at once') logs.write(entry);
          else kept.push(entry);
          next();
        } catch (error) {
          reject(error);
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
  await Promise.all(connections.map(({ logs }) => once(logs.end(), 'close')));
  const { user, system } = process.cpuUsage(cpu);
  const seconds = (performance.now() - start) / 1000;
  for (const { session } of connections) session.close();
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
