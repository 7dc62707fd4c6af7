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

type Script = (request: IncomingMessage, response: ServerResponse, body: Buffer) => void;

/** A backend that answers as the test says, and keeps what it saw. */
export class ScriptedBackend {
  readonly seen: { readonly headers: IncomingHttpHeaders; readonly body: Buffer }[] = [];
  script: Script = (_request, response) => response.end();
  readonly #servers: readonly (Server | Http2Server)[];

  constructor() {
    const answer = (request: IncomingMessage, response: ServerResponse): void => {
      const parts: Buffer[] = [];
      request.on('data', (part: Buffer) => parts.push(part));
      request.on('end', () => {
        const body = Buffer.concat(parts);
        this.seen.push({ headers: request.headers, body });
        this.script(request, response, body);
      });
    };
    // Node's compatibility layer: the same calls, other classes.
    this.#servers = [createServer(answer), createHttp2Server(answer as never)];
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
  readonly port: number;
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
    async stop() {
      child.kill('SIGKILL');
      await ended;
    },
  };
}

async function portOf(child: ChildProcess, adminFile: string): Promise<number> {
  let port = 0;
  await until(async () => {
    if (child.exitCode !== null) throw new Error('envoy ended');
    if (!existsSync(adminFile)) return false;
    const admin = readFileSync(adminFile, 'utf8').trim();
    const answer = await fetch(`http://${admin}/listeners?format=json`);
    const { listener_statuses } = (await answer.json()) as {
      listener_statuses?: { local_address: { socket_address: { port_value: number } } }[];
    };
    port = listener_statuses?.[0]?.local_address.socket_address.port_value ?? 0;
    return port !== 0;
  }, 'envoy listens');
  return port;
}

export interface Response {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
}

/** One POST; `leaveAfter` cuts the connection once so many bytes of the body have come, or after so many ms. */
export function post(
  port: number,
  headers: OutgoingHttpHeaders,
  body: string,
  leave: { readonly afterBytes?: number; readonly afterMs?: number } = {},
): Promise<Response | 'left'> {
  const options = { port, method: 'POST', path: '/v1/chat/completions?a=b', headers };
  return new Promise((resolve, reject) => {
    let left = false;
    const client = request({ host: '127.0.0.1', agent: false, ...options });
    const go = (): void => {
      left = true;
      client.destroy();
      resolve('left');
    };
    if (leave.afterMs !== undefined) setTimeout(go, leave.afterMs);
    client.on('error', (error) => (left ? undefined : reject(error)));
    client.on('response', (response) => {
      let text = '';
      response.on('data', (data) => {
        text += data;
        if (text.length >= (leave.afterBytes ?? Number.POSITIVE_INFINITY) && !left) go();
      });
      response.on('error', () => undefined);
      response.on('end', () =>
        resolve({ status: response.statusCode!, headers: response.headers, text }),
      );
    });
    client.end(body);
  });
}
