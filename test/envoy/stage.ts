/** Everything on which an Envoy can be brought to each of its endings: doors that fail, servers that misbehave. */
import { type ChildProcess, spawn } from 'node:child_process';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import {
  Client,
  credentials,
  Server as Grpc,
  type MethodDefinition,
  ServerCredentials,
  status,
} from '@grpc/grpc-js';
import { type Script, ScriptedBackend, startExample, type TestEnvoy } from '../support/envoy.js';
import { until } from '../support/until.js';
import { SCRIPTS } from './scripts.js';
import { shape } from './shape.js';

const CHECK = '/envoy.service.auth.v3.Authorization/Check';
const RATE = '/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit';
/** RateLimitResponse { overall_code: OVER_LIMIT } */
const OVER_LIMIT = Buffer.from([0x08, 0x02]);

const same = (value: Buffer): Buffer => value;

function unary(path: string): MethodDefinition<Buffer, Buffer> {
  return {
    ...{ path, requestStream: false, responseStream: false },
    ...{ requestSerialize: same, requestDeserialize: same },
    ...{ responseSerialize: same, responseDeserialize: same },
  };
}

/** Something that happens once, for somebody who waits for it. */
export class Signal {
  readonly happened: Promise<void>;
  happen: () => void = () => {};
  constructor() {
    this.happened = new Promise((resolve) => {
      this.happen = resolve;
    });
  }
}

/**
 * Between Envoy and earmark: every Check is answered by earmark, and what its request says in `x-door` becomes of the
 * answer. Also a rate-limit service that answers as it is told there.
 */
class Door {
  /** By tenant: earmark has answered, and nobody will know. */
  readonly held = new Map<string, Signal>();
  readonly #server = new Grpc();
  readonly #earmark: Client;

  constructor(earmark: string) {
    this.#earmark = new Client(earmark, credentials.createInsecure());
    this.#server.addService(
      { Check: unary(CHECK) },
      {
        Check: (
          call: { request: Buffer },
          answer: (error: object | null, bytes?: Buffer) => void,
        ) =>
          this.#earmark.makeUnaryRequest(CHECK, same, same, call.request, (error, bytes) => {
            if (call.request.includes('door:lost')) answer({ code: status.UNAVAILABLE });
            else if (call.request.includes('door:held')) this.#hold(call.request);
            else answer(error, bytes);
          }),
      },
    );
    this.#server.addService(
      { ShouldRateLimit: unary(RATE) },
      {
        ShouldRateLimit: (
          call: { request: Buffer },
          answer: (error: object | null, bytes?: Buffer) => void,
        ) => {
          if (call.request.includes('rate:over')) answer(null, OVER_LIMIT);
          else if (call.request.includes('rate:error')) answer({ code: status.UNAVAILABLE });
        },
      },
    );
  }

  async listen(path: string): Promise<string> {
    await new Promise<void>((resolve, reject) =>
      this.#server.bindAsync(path, ServerCredentials.createInsecure(), (error) =>
        error ? reject(error) : resolve(),
      ),
    );
    return path;
  }

  #hold(request: Buffer): void {
    for (const [tenant, signal] of this.held) if (request.includes(tenant)) signal.happen();
  }

  stop(): void {
    this.#earmark.close();
    this.#server.forceShutdown();
  }
}

/** A server of bytes, not of HTTP. */
async function rawServer(
  serve: (socket: Socket) => void,
): Promise<{ port: number; server: Server }> {
  const server = createServer((socket) => {
    socket.on('error', () => {});
    serve(socket);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { port: (server.address() as { port: number }).port, server };
}

/** A port where nobody answers, not even the kernel: its process stands still and its queue is full. */
class BlackHole {
  readonly #process: ChildProcess;
  readonly #sockets: Socket[] = [];

  private constructor(process: ChildProcess) {
    this.#process = process;
  }

  static async open(): Promise<{ readonly hole: BlackHole; readonly port: number }> {
    const code = `const server = require('node:net').createServer();
      server.listen({ port: 0, host: '127.0.0.1', backlog: 1 }, () => console.log(server.address().port));`;
    const child = spawn(process.execPath, ['-e', code], { stdio: ['ignore', 'pipe', 'ignore'] });
    const port = Number(await new Promise((resolve) => child.stdout.once('data', resolve)));
    child.kill('SIGSTOP');
    const hole = new BlackHole(child);
    for (let i = 0; i < 8; i++) {
      const socket = connect(port, '127.0.0.1');
      socket.on('error', () => {});
      hole.#sockets.push(socket);
    }
    await until(() => hole.#sockets.filter((socket) => !socket.connecting).length >= 2, 'it fills');
    return { hole, port };
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#process.kill('SIGKILL');
  }
}

/** The servers behind Envoy's clusters, by cluster. */
async function misbehaving(): Promise<{ ports: Record<string, number>; servers: Server[] }> {
  const readThenReset = await rawServer((socket) =>
    socket.once('data', () => socket.resetAndDestroy()),
  );
  const neverRead = await rawServer((socket) => socket.pause());
  const garbage = await rawServer((socket) =>
    socket.once('data', () => socket.end('this is no HTTP\r\n\r\n')),
  );
  // Nobody listens there any more.
  const dead = await rawServer(() => {});
  await new Promise((resolve) => dead.server.close(resolve));
  const ports = {
    ...{ readrst: readThenReset.port, neverread: neverRead.port },
    ...{ garbage: garbage.port, dead: dead.port },
  };
  return { ports, servers: [readThenReset.server, neverRead.server, garbage.server] };
}

export class Stage {
  readonly envoy: TestEnvoy;
  readonly door: Door;
  /** How many attempts each request's backend saw, and who waits for the first. */
  readonly attempts: Map<string, number>;
  readonly arrivals = new Map<string, Signal>();
  readonly #stops: (() => unknown)[];

  private constructor(
    envoy: TestEnvoy,
    door: Door,
    attempts: Map<string, number>,
    stops: (() => unknown)[],
  ) {
    this.envoy = envoy;
    this.door = door;
    this.attempts = attempts;
    this.#stops = stops;
  }

  static async open(folder: string, earmark: string): Promise<Stage> {
    const attempts = new Map<string, number>();
    const backend = new ScriptedBackend();
    const { http1, http2 } = await backend.listen();
    const door = new Door(earmark);
    const doorAt = await door.listen(`unix:${join(folder, 'door')}`);
    const { ports, servers } = await misbehaving();
    const { hole, port: blackhole } = await BlackHole.open();
    const edit = (document: object) => shape(document, { ...ports, h2: http2, blackhole }, doorAt);
    const envoy = await startExample('sidecar.yaml', { folder, upstream: http1, earmark, edit });
    const closing = servers.map((server) => () => server.close());
    const stops = [() => envoy.stop(), () => door.stop(), () => backend.stop(), () => hole.close()];
    const stage = new Stage(envoy, door, attempts, [...stops, ...closing]);
    backend.script = (request, response, body) => {
      const tenant = String(request.headers['x-tenant']);
      const attempt = (attempts.get(tenant) ?? 0) + 1;
      attempts.set(tenant, attempt);
      stage.arrivals.get(tenant)?.happen();
      const script: Script = SCRIPTS[String(request.headers['x-script'])]!(attempt);
      script(request, response, body);
    };
    return stage;
  }

  async stop(): Promise<void> {
    for (const stop of this.#stops) await stop();
  }
}
