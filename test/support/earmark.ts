/** `earmark serve` as a user runs it, from dist, on free ports; and clients for its doors. */
import { type ChildProcess, spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  credentials,
  type GrpcObject,
  loadPackageDefinition,
  type ServiceClientConstructor,
  type ServiceError,
} from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { stringify } from 'yaml';
import { anyServer } from './binaries.js';
import { until } from './until.js';

export const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url));
const PROTOS = fileURLToPath(new URL('../../proto', import.meta.url));

export interface LogLine {
  readonly level: string;
  readonly msg: string;
  readonly [field: string]: unknown;
}

export interface Running {
  readonly process: ChildProcess;
  readonly config: string;
  readonly log: readonly LogLine[];
  /** Everything on stderr that is no log line. */
  readonly said: readonly string[];
  /** Addresses as they are bound. */
  readonly envoy: string;
  readonly api: string;
  readonly admin: string;
  /** Resolves with the exit code; a signal's name where one ended it. */
  readonly ended: Promise<number | NodeJS.Signals>;
}

/** The configuration's file is written into `folder`; ports are free ones unless settings say otherwise. */
export function configure(folder: string, settings: object, name = 'earmark.yaml'): string {
  const file = join(folder, name);
  const listen = { envoy: '127.0.0.1:0', api: '127.0.0.1:0', admin: '127.0.0.1:0' };
  writeFileSync(file, stringify({ listen, ...settings }));
  return file;
}

/** Starts it and waits until it serves, or has ended; as the leader of a process group where a test needs one. */
export async function startEarmark(
  config: string,
  leader = false,
  environment: Readonly<Record<string, string>> = {},
): Promise<Running> {
  const child = spawn(process.execPath, [MAIN, 'serve', '--config', config], {
    stdio: ['ignore', 'ignore', 'pipe'],
    detached: leader,
    env: { ...process.env, EARMARK_REDIS_SERVER: anyServer(), ...environment },
  });
  const log: LogLine[] = [];
  const said: string[] = [];
  let rest = '';
  child.stderr.on('data', (data) => {
    const lines = `${rest}${data}`.split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line.startsWith('{')) log.push(JSON.parse(line) as LogLine);
      else said.push(line);
    }
  });
  const ended = new Promise<number | NodeJS.Signals>((resolve) =>
    child.once('close', (code, signal) => resolve(signal ?? code ?? 0)),
  );
  let over = false;
  void ended.then(() => {
    over = true;
  });
  const serves = () => log.find(({ msg }) => msg === 'earmark serves');
  await until(() => over || serves() !== undefined, 'earmark serves', 20_000);
  const { envoy, api, admin } = (serves() ?? {}) as unknown as Record<string, string>;
  return { process: child, config, log, said, envoy: envoy!, api: api!, admin: admin!, ended };
}

type Call = (request: object, options?: { deadline: number }) => Promise<Record<string, never>>;

/** A client with a promise for each method; `close` ends its connection. */
export function client(address: string, proto: string, service: string) {
  const loaded = loadPackageDefinition(
    loadSync(proto, {
      includeDirs: [PROTOS],
      longs: String,
      enums: String,
      defaults: true,
      oneofs: true,
    }),
  );
  const Stub = service
    .split('.')
    .reduce<unknown>((at, name) => (at as GrpcObject)[name], loaded) as ServiceClientConstructor;
  const stub = new Stub(address, credentials.createInsecure());
  const call = (method: string): Call => {
    return (request, options) =>
      new Promise((resolve, reject) => {
        const unary = stub[method] as unknown as (
          request: object,
          options: object,
          done: (error: ServiceError | null, answer: Record<string, never>) => void,
        ) => void;
        unary.call(stub, request, options ?? {}, (error, answer) =>
          error ? reject(error) : resolve(answer),
        );
      });
  };
  /** Opens a stream of messages to it; errors at its end are nobody's business. */
  const stream = (method: string): { write(message: object): void } => {
    const open = stub[method] as unknown as (done: () => void) => {
      write(message: object): void;
      on(event: string, listener: () => void): void;
    };
    const call = open.call(stub, () => {});
    call.on('error', () => {});
    return call;
  };
  return { call, stream, close: () => stub.close() };
}

export const checks = (address: string) =>
  client(
    address,
    'envoy/service/auth/v3/external_auth.proto',
    'envoy.service.auth.v3.Authorization',
  );

export const accessLogs = (address: string) =>
  client(
    address,
    'envoy/service/accesslog/v3/als.proto',
    'envoy.service.accesslog.v3.AccessLogService',
  );

/** What Envoy logs of a request that a Check let through, and that used so many tokens. */
export function logMessage(check: object, input: number, output: number): object {
  const { dynamicMetadata } = check as { dynamicMetadata: object };
  const entry = {
    commonProperties: {
      timeToLastUpstreamRxByte: { seconds: 1 },
      metadata: { filterMetadata: { 'envoy.filters.http.ext_authz': dynamicMetadata } },
      upstreamRequestAttemptCount: 1,
      upstreamWireBytesSent: 100,
      accessLogType: 'DownstreamEnd',
    },
    request: { requestMethod: 3, path: '/v1/chat/completions', requestId: 'r' },
    response: {
      responseCode: { value: 200 },
      responseHeaders: {
        'x-usage-input-tokens': String(input),
        'x-usage-output-tokens': String(output),
      },
    },
  };
  return { httpLogs: { logEntry: [entry] } };
}

export const ledgers = (address: string) =>
  client(address, 'earmark/v1/ledger.proto', 'earmark.v1.Ledger');

/** A CheckRequest of one tenant for a small completion. */
export function question(tenant: string, requestId: string, headers: Record<string, string> = {}) {
  const http = {
    method: 'POST',
    path: '/v1/chat/completions',
    host: 'llm',
    headers: { 'x-tenant': tenant, 'x-request-id': requestId, ...headers },
    body: JSON.stringify({ model: 'm', max_tokens: 100, messages: [] }),
  };
  return { attributes: { request: { http } } };
}

/** The status that the client of Envoy would see: 0 where the request goes on. */
export function statusOf(answer: Record<string, unknown>): number {
  const { deniedResponse, errorResponse } = answer as Record<
    string,
    { status: { code: number } } | undefined
  >;
  return (deniedResponse ?? errorResponse)?.status.code ?? 0;
}
