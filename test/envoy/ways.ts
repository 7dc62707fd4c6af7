/** How a request comes to each of the recorded endings: what its client does, where it goes, what it meets there. */
import { once } from 'node:events';
import { type ClientHttp2Session, connect as connectHttp2 } from 'node:http2';
import { connect } from 'node:net';
import { post } from '../support/envoy.js';
import { Signal, type Stage } from './stage.js';

/** The status the client saw; 0 where it left without one. */
type Send = (stage: Stage, request: Asked) => Promise<number>;

interface Asked {
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly tenant: string;
}

export interface Way {
  readonly path: string;
  readonly script?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly send?: Send;
}

const BODY = JSON.stringify({ model: 'm', messages: [] });
/** The first event of a stream, or the usage behind it. */
const FIRST = 10;
const USAGE = 120;

type Leave = Parameters<typeof post>[3];

const http1 =
  (leave: (stage: Stage, request: Asked) => Leave = () => ({})): Send =>
  async (stage, request) => {
    let status = 0;
    const saw = (seen: number): void => {
      status = seen;
    };
    const how = { ...leave(stage, request), path: request.path, saw };
    await post(stage.envoy.port, request.headers, BODY, how).catch(() => undefined);
    return status;
  };

/** The backend has the request. */
function arrival(stage: Stage, { tenant }: Asked): Promise<void> {
  const signal = new Signal();
  stage.arrivals.set(tenant, signal);
  return signal.happened;
}

/** Earmark has answered the Check, and its answer goes nowhere. */
function answered(stage: Stage, { tenant }: Asked): Promise<void> {
  const signal = new Signal();
  stage.door.held.set(tenant, signal);
  return signal.happened;
}

async function openHttp2(stage: Stage): Promise<ClientHttp2Session> {
  const session = connectHttp2(`http://127.0.0.1:${stage.envoy.port}`);
  session.on('error', () => {});
  await once(session, 'connect');
  return session;
}

/** Leaves with its whole connection when that has happened, or at the first data. */
const http2 =
  (when?: (stage: Stage, request: Asked) => Promise<unknown>): Send =>
  async (stage, request) => {
    const session = await openHttp2(stage);
    const leaves = when?.(stage, request);
    const stream = session.request({
      ...{ ':method': 'POST', ':path': request.path },
      ...request.headers,
    });
    stream.on('error', () => {});
    let status = 0;
    stream.on('response', (headers) => {
      status = Number(headers[':status']);
    });
    const data = once(stream, 'data');
    stream.end(BODY);
    await (leaves ?? data);
    session.destroy();
    return status;
  };

/** A body that goes wrong while its Check is under way. */
const badChunk: Send = async (stage, request) => {
  const held = answered(stage, request);
  const socket = connect(Number(stage.envoy.port), '127.0.0.1');
  const headers = Object.entries({ host: 'llm', ...request.headers })
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('');
  const head = `POST ${request.path} HTTP/1.1\r\n${headers}transfer-encoding: chunked\r\n\r\n`;
  const chunk = `${BODY.length.toString(16)}\r\n${BODY}\r\n`;
  socket.write(head + chunk);
  await held;
  socket.write('this is no length\r\n');
  const [answer] = await once(socket, 'data');
  socket.destroy();
  return Number(/^HTTP\/1\.1 (\d+)/.exec(String(answer))?.[1]);
};

const midstream = (path: string): Way => ({
  ...{ path, script: 'begin' },
  send: http1(() => ({ afterBytes: FIRST })),
});
const door = (what: string): Way => ({ path: '/h1', headers: { 'x-door': `door:${what}` } });
const rate = (what: string): Way => ({ path: '/rate', headers: { 'x-rate': `rate:${what}` } });
/** One backend that is overloaded: which of several hosts comes first is a matter of chance, the entry is the same. */
const retried: Way = { path: '/retry', script: 'overloaded' };

/** By the name of the recorded case. */
export const WAYS: Readonly<Record<string, Way>> = {
  normal: { path: '/h1' },
  'client-cancel-midstream h1up h1down': midstream('/h1'),
  'client-cancel-midstream h2up h1down': midstream('/h2'),
  'client-cancel-midstream h2up h2down': { path: '/h2', script: 'begin', send: http2() },
  'client-cancel-before-headers': {
    ...{ path: '/h1', script: 'silent' },
    send: http1((stage, request) => ({ when: arrival(stage, request) })),
  },
  'client-cancel after usage chunk before end': {
    ...{ path: '/h1', script: 'usageThenSilent' },
    send: http1(() => ({ afterBytes: USAGE })),
  },
  'upstream-reset-midstream h1': { path: '/h1', script: 'beginThenBreak' },
  'upstream-reset-midstream h2': { path: '/h2', script: 'beginThenBreak' },
  'upstream-json-truncated h1 (content-length)': { path: '/h1', script: 'truncated' },
  'upstream-reset-before-headers h1': { path: '/h1', script: 'breakAtOnce' },
  'upstream-reset-before-headers h2': { path: '/h2', script: 'breakAtOnce' },
  'connect-refused': { path: '/dead' },
  'connect-timeout': { path: '/blackhole' },
  'no-healthy': { path: '/empty' },
  'no-route(404)': { path: '/nosuch' },
  'no-cluster': { path: '/nocluster' },
  'route-timeout h1 stall-no-headers': { path: '/timeout/h1', script: 'silent' },
  'route-timeout h2 stall-no-headers': { path: '/timeout/h2', script: 'silent' },
  'route-timeout midstream': { path: '/timeout/h1', script: 'begin' },
  'idle h1 midstream': { path: '/idle', script: 'begin' },
  'idle before headers': { path: '/idle', script: 'silent' },
  'route max_stream_duration midstream': { path: '/duration/route', script: 'begin' },
  'route max_stream_duration before headers': { path: '/duration/route', script: 'silent' },
  'cluster max_stream_duration midstream': { path: '/duration/cluster', script: 'begin' },
  'retry 503,200': { path: '/retry', script: 'overloadedOnce' },
  'retry 503x3': retried,
  'retry-mixed 0 (503 first or dead first)': retried,
  'retry-mixed 1 (503 first or dead first)': retried,
  'retry-mixed 3 (503 first or dead first)': retried,
  'retry-mixed-ok 0': { path: '/retry' },
  'retry-mixed-ok 1': { path: '/retry' },
  'read-then-rst': { path: '/readrst' },
  'never-read 0.5s timeout': { path: '/timeout/neverread' },
  'garbage-response': { path: '/garbage' },
  'fault-abort(after authz)': { path: '/fault' },
  'authz-deny': { path: '/h1', headers: { 'x-large': '1' } },
  'authz-deny-plain': { path: '/h1', headers: { 'x-tenant': '' } },
  'authz-errresp': { path: '/h1' },
  'authz-grpc-UNAVAILABLE': door('lost'),
  'authz-timeout': door('held'),
  'authz-client-cancel': {
    ...door('held'),
    send: http1((stage, request) => ({ when: answered(stage, request) })),
  },
  'authz-client-cancel h2': { ...door('held'), send: http2(answered) },
  'rls-over': rate('over'),
  'rls-grpcerr(fmdeny)': rate('error'),
  'rls-timeout(fmdeny)': rate('silent'),
  'direct-response': { path: '/direct' },
  'upstream-500': { path: '/h1', script: 'failed' },
  'dpe-bad-chunk after check': { ...door('held'), path: '/soon', send: badChunk },
};

/** Bytes that are no request at all. */
export async function sendNonsense(stage: Stage): Promise<void> {
  const socket = connect(Number(stage.envoy.port), '127.0.0.1');
  socket.on('error', () => {});
  socket.write('this is no request\r\n\r\n');
  await once(socket, 'data');
  socket.destroy();
}

export function sendOf({ send = http1() }: Way): Send {
  return send;
}
