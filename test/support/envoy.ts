/** A real Envoy before a backend that a test scripts, and a client that sends exactly what it is told. */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  request,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer as createHttp2Server, type Http2Server } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { parse, stringify } from 'yaml';
import { bootstrap } from '../../src/demo/envoy.js';
import { envoyBinary } from './binaries.js';
import { until } from './until.js';

export type Script = (request: IncomingMessage, response: ServerResponse, body: Buffer) => void;

/** A backend that answers as the test says, and keeps what it saw. */
export class ScriptedBackend {
  readonly seen: { readonly headers: IncomingHttpHeaders; readonly body: Buffer }[] = [];
  script: Script = (_request, response) => response.end();
  readonly #answer = (request: IncomingMessage, response: ServerResponse): void => {
    const parts: Buffer[] = [];
    request.on('data', (part: Buffer) => parts.push(part));
    request.on('end', () => {
      const body = Buffer.concat(parts);
      this.seen.push({ headers: request.headers, body });
      this.script(request, response, body);
    });
  };
  // Node's compatibility layer: the same calls, other classes.
  readonly #servers: (Server | Http2Server)[] = [
    createServer(this.#answer),
    createHttp2Server(this.#answer as never),
  ];

  /** Also on this Unix socket, over HTTP/1.1. */
  async listenAt(path: string): Promise<void> {
    const server = createServer(this.#answer);
    this.#servers.push(server);
    await new Promise<void>((resolve) => server.listen(path, resolve));
  }

  async listen(): Promise<{ readonly http1: number; readonly http2: number }> {
    const [http1, http2] = await Promise.all(
      this.#servers.map(async (server) => {
        await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
        return (server.address() as AddressInfo).port;
      }),
    );
    return { http1: http1!, http2: http2! };
  }

  stop(): void {
    for (const server of this.#servers) {
      server.close();
      if ('closeAllConnections' in server) server.closeAllConnections();
    }
  }
}

export interface TestEnvoy {
  /** Or the path of its socket. */
  readonly port: number | string;
  /** Of its admin interface: host:port. */
  readonly admin: string;
  readonly process: ChildProcess;
  stop(): Promise<void>;
}

export interface EnvoySettings {
  readonly folder: string;
  readonly name: string;
  readonly upstream: number;
  readonly protocol: 'http/1.1' | 'http/2';
  /** As the gateway gives it: unix:/path */
  readonly earmark: string;
  /** In place of what envoy/sidecar.yaml has for the ext_authz filter. */
  readonly authz?: object;
}

/** envoy/sidecar.yaml as users run it, at free ports, with these settings. */
export async function startEnvoy(settings: EnvoySettings): Promise<TestEnvoy> {
  const { folder, name, upstream: port, protocol } = settings;
  const upstream = { host: '127.0.0.1', port, protocol, tls: false };
  const document = parse(bootstrap(upstream, settings.earmark.slice('unix:'.length)));
  const manager = document.static_resources.listeners[0].filter_chains[0].filters[0].typed_config;
  const [authz] = manager.http_filters;
  Object.assign(authz.typed_config, settings.authz);
  return runEnvoy(folder, name, document);
}

// biome-ignore lint/suspicious/noExplicitAny: Envoy's own document
type Document = any;

/** One of the examples in envoy/ with free ports: `upstream` and `earmark` are a port or unix:/path. */
export async function startExample(
  example: string,
  settings: {
    readonly folder: string;
    readonly upstream: number | string;
    readonly earmark: string;
    /** What a test changes besides. */
    readonly edit?: (document: Document) => void;
  },
): Promise<TestEnvoy> {
  const { folder, upstream, earmark } = settings;
  const document: Document = parse(readFileSync(new URL(example, EXAMPLES), 'utf8'));
  const { listeners, clusters } = document.static_resources;
  const { address } = listeners[0];
  if (address.pipe) address.pipe.path = join(folder, `${example}.sock`);
  else address.socket_address.port_value = 0;
  for (const [at, place] of [upstream, earmark].entries()) {
    const [{ endpoint }] = clusters[at].load_assignment.endpoints[0].lb_endpoints;
    endpoint.address =
      typeof place === 'number'
        ? { socket_address: { address: '127.0.0.1', port_value: place } }
        : { pipe: { path: place.slice('unix:'.length) } };
  }
  settings.edit?.(document);
  return runEnvoy(folder, example, document);
}

export const EXAMPLES = new URL('../../envoy/', import.meta.url);

/** With a free admin port. */
export async function runEnvoy(
  folder: string,
  name: string,
  document: Document,
): Promise<TestEnvoy> {
  document.admin = { address: { socket_address: { address: '127.0.0.1', port_value: 0 } } };
  const file = join(folder, `${name}.yaml`);
  const adminFile = join(folder, `${name}.admin`);
  writeFileSync(file, stringify(document, { aliasDuplicateObjects: false }));
  const args = ['-c', file, '--admin-address-path', adminFile, '--disable-hot-restart'];
  const more = ['--concurrency', '1', '--log-level', 'error'];
  const child = spawn(envoyBinary(), [...args, ...more], { stdio: 'ignore' });
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  const bound = await portOf(child, adminFile);
  return {
    port: bound,
    admin: readFileSync(adminFile, 'utf8').trim(),
    process: child,
    async stop() {
      child.kill('SIGKILL');
      await ended;
    },
  };
}

async function portOf(child: ChildProcess, adminFile: string): Promise<number | string> {
  let port: number | string = 0;
  await until(async () => {
    if (child.exitCode !== null) throw new Error('envoy ended');
    if (!existsSync(adminFile)) return false;
    const admin = readFileSync(adminFile, 'utf8').trim();
    const answer = await fetch(`http://${admin}/listeners?format=json`);
    const { listener_statuses } = (await answer.json()) as {
      listener_statuses?: {
        local_address: { socket_address?: { port_value: number }; pipe?: { path: string } };
      }[];
    };
    const address = listener_statuses?.[0]?.local_address;
    port = address?.pipe?.path ?? address?.socket_address?.port_value ?? 0;
    return port !== 0;
  }, 'envoy listens');
  return port;
}

export interface Response {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
}

/** One POST; `leave` cuts the connection once so many bytes of the body have come, after so many ms, or then. */
export function post(
  port: number | string,
  headers: OutgoingHttpHeaders,
  body: string,
  leave: {
    readonly afterBytes?: number;
    readonly afterMs?: number;
    readonly when?: Promise<unknown>;
    readonly path?: string;
    /** Is told the status as soon as it has come. */
    readonly saw?: (status: number) => void;
  } = {},
): Promise<Response | 'left'> {
  const to = typeof port === 'number' ? { host: '127.0.0.1', port } : { socketPath: port };
  const path = leave.path ?? '/v1/chat/completions?a=b';
  const options = { ...to, method: 'POST', path, headers };
  return new Promise((resolve, reject) => {
    let left = false;
    const client = request({ agent: false, ...options });
    const go = (): void => {
      left = true;
      client.destroy();
      resolve('left');
    };
    if (leave.afterMs !== undefined) setTimeout(go, leave.afterMs);
    void leave.when?.then(go);
    client.on('error', (error) => (left ? undefined : reject(error)));
    client.on('response', (response) => {
      leave.saw?.(response.statusCode!);
      let text = '';
      response.on('data', (data) => {
        text += data;
        if (text.length >= (leave.afterBytes ?? Number.POSITIVE_INFINITY) && !left) go();
      });
      response.on('error', (error) => (left ? undefined : reject(error)));
      response.on('end', () =>
        resolve({ status: response.statusCode!, headers: response.headers, text }),
      );
    });
    client.end(body);
  });
}

/** A filter of an example, by the end of its name. */
export function exampleFilter(example: string, name: string): object {
  const document: Document = parse(readFileSync(new URL(example, EXAMPLES), 'utf8'));
  const [{ typed_config }] = document.static_resources.listeners[0].filter_chains[0].filters;
  return typed_config.http_filters.find((filter: { name: string }) => filter.name.endsWith(name));
}
