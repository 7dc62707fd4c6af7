/** A port with gRPC services: health and reflection beside them, an end that answers what is under way. */
import { existsSync, rmSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import {
  type handleUnaryCall,
  Server,
  ServerCredentials,
  type ServiceDefinition,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { ReflectionService } from '@grpc/reflection';
import { HealthImplementation, protoPath as healthProto } from 'grpc-health-check';
import { GRPC_MESSAGE_BYTES_MAX } from '../core/limits.js';
import { askSocket, shortSocket } from '../ledger/socket.js';

export type Service = readonly [ServiceDefinition, UntypedServiceImplementation];

export const PROTO_FOLDER = fileURLToPath(new URL('../../proto', import.meta.url));

/** What came in before the end of the last Check, but was not read yet, is read. */
const STREAM_GRACE_MS = 200;

/** Nothing about pings: this server answers each, so Envoy may send as many as it likes. Nobody asks for channelz. */
const OPTIONS = {
  'grpc.max_receive_message_length': GRPC_MESSAGE_BYTES_MAX,
  'grpc.enable_channelz': 0,
};

export class GrpcServer {
  readonly #server = new Server(OPTIONS);
  readonly #health: HealthImplementation;
  readonly #names: readonly string[];
  #unanswered = 0;

  /** `protoFiles`: what reflection shows, by their paths below `proto/`. */
  constructor(services: readonly Service[], protoFiles: readonly string[]) {
    this.#names = ['', ...services.map(([definition]) => nameOf(definition))];
    for (const [definition, implementation] of services) {
      this.#server.addService(definition, this.#counted(definition, implementation));
    }
    const serving = Object.fromEntries(this.#names.map((name) => [name, 'SERVING' as const]));
    this.#health = new HealthImplementation(serving);
    this.#health.addToServer(this.#server);
    const shown = loadSync([...protoFiles, healthProto], { includeDirs: [PROTO_FOLDER] });
    new ReflectionService(shown).addToServer(this.#server);
  }

  /** Resolves with the address as it is bound, port 0 replaced. */
  async listen(address: string): Promise<string> {
    const target = address.startsWith('unix:') ? await freeSocket(address.slice(5)) : address;
    const port = await new Promise<number>((resolve, reject) => {
      this.#server.bindAsync(target, ServerCredentials.createInsecure(), (error, bound) => {
        if (error) reject(error);
        else resolve(bound);
      });
    });
    return address.startsWith('unix:') ? address : address.replace(/:\d+$/, `:${port}`);
  }

  /** From now on health says NOT_SERVING; calls are still answered. */
  retire(): void {
    for (const name of this.#names) this.#health.setStatus(name, 'NOT_SERVING');
  }

  /** No new calls; those under way are answered, then streams are ended, all within the time. */
  async stop(ms: number): Promise<void> {
    const deadline = performance.now() + ms;
    let closed = false;
    this.#server.tryShutdown(() => {
      closed = true;
    });
    while (!closed && this.#unanswered > 0 && performance.now() < deadline) await sleep(5);
    const grace = performance.now() + STREAM_GRACE_MS;
    while (!closed && performance.now() < grace) await sleep(5);
    if (!closed) this.#server.forceShutdown();
  }

  /** The implementation, with a count of the calls that wait for their one answer. */
  #counted(definition: ServiceDefinition, implementation: UntypedServiceImplementation) {
    const counted: UntypedServiceImplementation = {};
    for (const [name, method] of Object.entries(definition)) {
      const known = name in implementation ? name : (method.originalName ?? name);
      const handler = implementation[known];
      if (handler === undefined) throw new Error(`nothing implements ${method.path}`);
      counted[name] = handler;
      if (method.requestStream || method.responseStream) continue;
      const unary = handler as handleUnaryCall<unknown, unknown>;
      counted[name] = ((call, answer) => {
        this.#unanswered++;
        unary(call, (...reply) => {
          this.#unanswered--;
          answer(...reply);
        });
      }) satisfies handleUnaryCall<unknown, unknown>;
    }
    return counted;
  }
}

function nameOf(definition: ServiceDefinition): string {
  // "/package.Service/Method"
  return Object.values(definition)[0]?.path.split('/')[1] ?? '';
}

/** The socket's path, after what a killed process left there was taken away. */
async function freeSocket(path: string): Promise<string> {
  const short = shortSocket(path);
  if (existsSync(short)) {
    if ((await askSocket(short, '', 100)) !== undefined) {
      throw new Error(`another process listens on ${path}`);
    }
    rmSync(short);
  }
  return `unix:${short}`;
}
