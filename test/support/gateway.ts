/** A gateway in the test's own process: real ledger, real gRPC, the parts between put together as `serve` does. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Client, credentials } from '@grpc/grpc-js';
import protobuf from 'protobufjs';
import { createCheck } from '../../src/envoy/check.js';
import { envoyServices } from '../../src/grpc/envoy.js';
import { GrpcServer, PROTO_FOLDER } from '../../src/grpc/server.js';
import type { LedgerApi } from '../../src/ledger/api.js';
import { Ledger } from '../../src/ledger/ledger.js';
import { Spool } from '../../src/ledger/spool.js';
import { parsePolicy } from '../../src/policy/parse.js';
import { parseRollout } from '../../src/policy/rollout.js';
import type { Policy, PolicyView } from '../../src/policy/types.js';
import { DiskSpool } from '../../src/settle/disk-spool.js';
import { Settler } from '../../src/settle/settler.js';
import type { LogEntry } from '../../src/settle/types.js';
import { envoyBytes, plainStruct } from './envoy-messages.js';
import { type Kept, keep } from './quiet.js';

const CHECK = '/envoy.service.auth.v3.Authorization/Check';
const LOGS = '/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs';

export type Json = Readonly<Record<string, unknown>>;

/** A CheckResponse as a test wants to look at it. */
export interface Answer {
  readonly kind: 'ok' | 'denied' | 'error';
  readonly status: number;
  /** Of the response where it is refused, of the request where it goes on. */
  readonly headers: Readonly<Record<string, string>>;
  readonly removed: string[];
  readonly responseHeaders: Readonly<Record<string, string>>;
  readonly body: { readonly type: string; readonly error: Readonly<Record<string, unknown>> };
  // biome-ignore lint/suspicious/noExplicitAny: a test says what it expects
  readonly metadata: Readonly<Record<string, any>>;
}

export interface Gateway {
  readonly address: string;
  readonly ledger: Ledger;
  readonly settler: Settler;
  readonly kept: Kept;
  /** Put in force at once. */
  policy: string;
  rollout: string | undefined;
  override: boolean;
  notReady: string | undefined;
  /** What reload() does. */
  onReload: () => void;
  readonly frozenRoutes: Map<string, number>;
  /** Routes of which freezeRoute was told. */
  readonly toldToFreeze: string[];
  check(http: Json, options?: CheckOptions): Promise<Answer>;
  /** Sends entries over a stream of their own and waits until they are booked or wait. */
  log(...entries: Json[]): Promise<void>;
  stop(): Promise<void>;
}

export interface CheckOptions {
  readonly context?: Json;
  /** 0: none, and so the gateway's own patience. */
  readonly deadlineMs?: number;
  readonly attributes?: Json;
}

export interface GatewayOptions {
  readonly socket: string;
  readonly folder: string;
  readonly policy: string;
  readonly rollout?: string;
  readonly prefix?: string;
  readonly timeoutMs?: number;
  /** Folder for evidence that waits for the ledger. */
  readonly disk?: string;
  readonly clock?: () => number | undefined;
  /** Is told of every access-log entry that comes, ahead of the settler. */
  readonly heard?: (entry: LogEntry) => void;
  /** Stands between the gateway and its ledger. */
  readonly between?: (ledger: Ledger) => LedgerApi;
}

let made = 0;

function ourType(name: string): protobuf.Type {
  const root = new protobuf.Root();
  root.resolvePath = (_origin, target) => join(PROTO_FOLDER, target);
  return root
    .loadSync('envoy/service/auth/v3/external_auth.proto', { keepCase: true })
    .lookupType(name);
}

let checkResponse: protobuf.Type | undefined;

export function readAnswer(bytes: Buffer): Answer {
  checkResponse ??= ourType('envoy.service.auth.v3.CheckResponse');
  const type = checkResponse;
  const read = type.toObject(type.decode(bytes), { enums: String }) as Record<string, Json>;
  const record = (list: unknown): Record<string, string> =>
    Object.fromEntries(
      ((list ?? []) as { header: { key: string; value: string } }[]).map(({ header }) => [
        header.key,
        header.value,
      ]),
    );
  const { ok_response: ok, denied_response: denied, error_response: error } = read;
  const refused = denied ?? error;
  return {
    kind: ok ? 'ok' : denied ? 'denied' : 'error',
    status: (refused?.status as { code: number } | undefined)?.code ?? 200,
    headers: record((ok ?? refused)?.headers),
    removed: (ok?.headers_to_remove ?? []) as string[],
    responseHeaders: record(ok?.response_headers_to_add),
    body: refused ? JSON.parse(String(refused.body)) : { type: '', error: {} },
    metadata: plainStruct(read.dynamic_metadata) as Answer['metadata'],
  };
}

export function policyOf(text: string): Policy {
  const { policy, problems } = parsePolicy(text, 'policy.yaml');
  if (policy === undefined) throw new Error(JSON.stringify(problems));
  return policy;
}

/** The policies that were in force, as PolicyWatch holds them. */
class Views {
  readonly generations = new Map<number, Policy>();
  readonly #gateway: () => Gateway;
  constructor(gateway: () => Gateway) {
    this.#gateway = gateway;
  }

  view(): PolicyView {
    const { policy: text, rollout: rolloutText, frozenRoutes } = this.#gateway();
    const policy = text === '' ? undefined : this.#policy(text);
    const rollout =
      rolloutText === undefined ? undefined : parseRollout(rolloutText, 'rollout.yaml').rollout;
    return {
      policy,
      rollout,
      frozenUntil: (route) => frozenRoutes.get(route) ?? 0,
      generation: (generation) => this.generations.get(generation),
    };
  }

  readonly #parsed = new Map<string, Policy>();
  #policy(text: string): Policy {
    const policy = this.#parsed.get(text) ?? policyOf(text);
    this.#parsed.set(text, policy);
    this.generations.set(policy.generation, policy);
    return policy;
  }
}

export async function startGateway(options: GatewayOptions): Promise<Gateway> {
  const { socket, folder, prefix = 'earmark:', timeoutMs = 1000 } = options;
  const kept = keep();
  const clock = options.clock === undefined ? {} : { clock: options.clock };
  const ledger = new Ledger({ redis: { path: socket }, prefix, timeoutMs, ...clock });
  await new Promise((resolve) => ledger.redis.once('ready', resolve));
  const between = options.between?.(ledger) ?? ledger;
  const views = new Views(() => gateway);
  views.view.bind(views);
  const toldToFreeze: string[] = [];
  const settler = new Settler({
    ledger: between,
    loadPolicy: async (generation) => views.generations.get(generation),
    freezeRoute: async (route) => {
      toldToFreeze.push(route);
    },
    spool: new Spool(ledger.redis, prefix),
    disk: options.disk === undefined ? undefined : new DiskSpool(options.disk),
    ...{ meter: kept, log: kept },
  });
  const check = createCheck({
    ledger: between,
    policy: () => views.view(),
    reload: async () => gateway.onReload(),
    override: () => gateway.override,
    notReady: () => gateway.notReady,
    ...{ meter: kept, log: kept },
  });
  const accept = (entry: LogEntry): void => {
    options.heard?.(entry);
    settler.accept(entry);
  };
  const server = new GrpcServer(envoyServices({ check, accept, meter: kept, log: kept }), []);
  const address = await server.listen(`unix:${join(folder, `gateway-${++made}`)}`);
  const client = new Client(address, credentials.createInsecure());
  const gateway: Gateway = {
    ...{ address, ledger, settler, kept, toldToFreeze },
    ...{ policy: options.policy, rollout: options.rollout, override: false, notReady: undefined },
    onReload: () => {},
    frozenRoutes: new Map(),
    check: (http, some = {}) => sendCheck(client, http, some),
    log: (...entries) => sendLogs(client, settler, entries),
    async stop() {
      client.close();
      await server.stop(1000);
      await settler.stop();
      await ledger.stop();
    },
  };
  if (options.policy !== '') views.view();
  return gateway;
}

const same = (value: Buffer): Buffer => value;

function sendCheck(client: Client, http: Json, options: CheckOptions): Promise<Answer> {
  const context_extensions = options.context ?? {};
  const attributes = { request: { http }, context_extensions, ...options.attributes };
  const bytes = envoyBytes('envoy.service.auth.v3.CheckRequest', { attributes });
  const { deadlineMs = 5000 } = options;
  const deadline = deadlineMs === 0 ? {} : { deadline: Date.now() + deadlineMs };
  return new Promise((resolve, reject) => {
    client.makeUnaryRequest(CHECK, same, readAnswer, bytes, deadline, (error, answer) =>
      error ? reject(error) : resolve(answer!),
    );
  });
}

async function sendLogs(client: Client, settler: Settler, entries: Json[]): Promise<void> {
  const http_logs = { log_entry: entries };
  const message = { identifier: { log_name: 'earmark', node: { id: 'n' } }, http_logs };
  const bytes = envoyBytes('envoy.service.accesslog.v3.StreamAccessLogsMessage', message);
  await new Promise<void>((resolve, reject) => {
    const stream = client.makeClientStreamRequest(LOGS, same, same, (error) =>
      error ? reject(error) : resolve(),
    );
    stream.end(bytes);
  });
  await settler.idle();
}

/** The policy of the contract's example, with a budget for each end that a test needs. */
export const readSample = (name: string): string =>
  readFileSync(new URL(`../policy/good/${name}`, import.meta.url), 'utf8');
