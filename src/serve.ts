/** `earmark serve`: puts everything together. Read `start` and `stop` first: they are the order of things. */
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { AdminServer } from './admin/http.js';
import { type Environment, loadConfig } from './config/load.js';
import type { Config } from './config/types.js';
import { lineTag, newOperation, receiptId, reservationId } from './core/ids.js';
import { STOP_MS_MAX } from './core/limits.js';
import { createCheck } from './envoy/check.js';
import { ENVOY_PROTOS, envoyServices } from './grpc/envoy.js';
import { LEDGER_PROTO, ledgerService } from './grpc/ledger-service.js';
import { GrpcServer } from './grpc/server.js';
import { openRedis, type Redis, redisOptions, ServerWatch } from './ledger/connect.js';
import { Documents } from './ledger/documents.js';
import { EmbeddedLedger } from './ledger/embedded.js';
import { Ledger } from './ledger/ledger.js';
import { noConnection } from './ledger/reason.js';
import { Spool } from './ledger/spool.js';
import { Sweeper } from './ledger/sweeper.js';
import { type AdmitRequest, LedgerUnavailable, type ReserveRequest } from './ledger/types.js';
import { PolicyWatch } from './policy/watch.js';
import { DiskSpool } from './settle/disk-spool.js';
import { Settler } from './settle/settler.js';
import { createLog } from './telemetry/log.js';
import type { Log } from './telemetry/meter.js';
import { Metrics } from './telemetry/metrics.js';

const SWEEP_EVERY_MS = 100;
/** For the calls under way; the rest of STOP_MS_MAX is for evidence and the embedded ledger. */
const CALLS_MS_MAX = 4000;
const FREEZE_AGAIN_MS = 200;
/** Left to itself the heap grows to four times what lives in it before it is cleaned: 60 MB of dead requests. */
const HEAP_GROWS_PERCENT = 30;
/** A ledger that is there is connected to before the doors open; one that is not is waited for behind them. */
const CONNECT_MS_MAX = 1000;

/** One running earmark, from the start of its ledger to the end of it. */
export class Earmark {
  readonly #config: Config;
  readonly #log: Log;
  readonly #metrics = new Metrics();
  #override: Config['override'];
  #stopping = false;
  #embedded: EmbeddedLedger | undefined;
  #redis!: Redis;
  #ledger!: Ledger;
  #documents!: Documents;
  #server!: ServerWatch;
  #policy!: PolicyWatch;
  #settler!: Settler;
  #sweeper!: Sweeper;
  #ports: readonly GrpcServer[] = [];
  #admin: AdminServer | undefined;

  private constructor(config: Config, log: Log) {
    this.#config = config;
    this.#log = log;
    this.#override = config.override;
  }

  /** Rejects where a setting or a configured document is wrong; a ledger that is away is waited for. */
  static async start(config: Config, log: Log): Promise<Earmark> {
    const earmark = new Earmark(config, log);
    try {
      await earmark.#start();
    } catch (error) {
      await earmark.stop();
      throw error;
    }
    return earmark;
  }

  async #start(): Promise<void> {
    const shared = { log: this.#log, meter: this.#metrics };
    const { ledger, policy, rollout, listen } = this.#config;

    // The ledger first: nothing below can be done without one, but all of it waits for one.
    if (ledger.data !== undefined) {
      this.#embedded = await EmbeddedLedger.start({ data: ledger.data, ...shared });
    }
    const way = redisOptions(ledger);
    const { prefix, timeoutMs } = ledger;
    this.#redis = openRedis(way, this.#log);
    const closed = () => this.#server.foreign;
    this.#ledger = new Ledger({ redis: way, prefix, timeoutMs, closed, ...shared });
    this.#server = new ServerWatch(this.#redis, prefix, this.#log, this.#metrics);
    this.#documents = new Documents(this.#redis, prefix, closed);
    const connections = [this.#redis, this.#ledger.redis].map(connected);
    await Promise.race([
      Promise.all(connections),
      sleep(CONNECT_MS_MAX, undefined, { ref: false }),
    ]);
    await this.#server.check();
    if (this.#server.foreign !== undefined) throw this.#server.foreign;

    // Then what is decided by: the policy in force, and how far it is rolled out.
    const files = { policyFile: policy, rolloutFile: rollout };
    this.#policy = new PolicyWatch({ documents: this.#documents, ...files, ...shared });
    await this.#policy.start();

    // Then what books, before anything can be admitted.
    this.#settler = new Settler({
      ledger: this.#ledger,
      loadPolicy: (generation) => this.#policy.load(generation),
      freezeRoute: (route, tag, until) => this.#freezeRoute(route, tag, until),
      spool: new Spool(this.#redis, prefix, closed),
      disk: openSpool(this.#config.spool),
      ...shared,
    });
    this.#sweeper = new Sweeper({ ledger: this.#ledger, everyMs: SWEEP_EVERY_MS, ...shared });
    this.#sweeper.start();

    // The doors last.
    const envoy = this.#envoyPort();
    const api = listen.api === undefined ? undefined : this.#apiPort();
    this.#ports = api === undefined ? [envoy] : [envoy, api];
    this.#admin = this.#adminPort();
    const open = {
      envoy: await opened('envoy', envoy, listen.envoy),
      api: await opened('api', api, listen.api),
      admin: await opened('admin', this.#admin, listen.admin),
    };
    this.#log.info({ ...open, ledger: this.#embedded?.socket }, 'earmark serves');
  }

  /** Everything in the opposite order, each step whatever became of the one before. */
  async stop(): Promise<void> {
    this.#stopping = true;
    for (const port of this.#ports) port.retire();
    await this.#step('calls', () =>
      Promise.all(this.#ports.map((port) => port.stop(CALLS_MS_MAX))),
    );
    await this.#step('sweeper', () => this.#sweeper?.stop());
    await this.#step('evidence', () => this.#settler?.stop());
    await this.#step('policy', () => this.#policy?.stop());
    await this.#step('admin', () => this.#admin?.stop());
    await this.#step('ledger', async () => {
      this.#server?.stop();
      await this.#ledger?.stop();
      this.#redis?.disconnect();
    });
    await this.#step('embedded ledger', () => this.#embedded?.stop());
    this.#log.info({}, 'earmark has ended');
  }

  setOverride(override: Config['override']): void {
    if (override === this.#override) return;
    this.#override = override;
    this.#log.warn({ override }, 'override changed');
  }

  async #step(name: string, end: () => unknown): Promise<void> {
    try {
      await end();
    } catch (error) {
      this.#log.error({ err: error, step: name }, 'could not be ended in order');
    }
  }

  #envoyPort(): GrpcServer {
    const check = createCheck({
      ledger: {
        admit: (request) => this.#admission(request, () => this.#ledger.admit(request)),
        reserve: (request) => this.#admission(request, () => this.#ledger.reserve(request)),
        estimatedNow: () => this.#ledger.estimatedNow(),
        macKey: () => this.#ledger.macKey(),
      },
      policy: () => this.#policy.view(),
      reload: () => this.#policy.refresh(),
      override: () => this.#override === 'off',
      notReady: () => undefined,
      log: this.#log,
      meter: this.#metrics,
    });
    const accept = this.#settler.accept.bind(this.#settler);
    return new GrpcServer(
      envoyServices({ check, accept, log: this.#log, meter: this.#metrics }),
      ENVOY_PROTOS,
    );
  }

  #apiPort(): GrpcServer {
    const service = ledgerService({
      ledger: {
        reserve: (request) => this.#admission(request, () => this.#ledger.reserve(request)),
        start: (reservation, operation) => this.#ledger.start(reservation, operation),
        release: (reservation) => this.#ledger.release(reservation),
        settle: (request) => this.#ledger.settle(request),
        get: (reservation) => this.#ledger.get(reservation),
      },
      policy: () => this.#policy.view(),
      loadPolicy: (generation) => this.#policy.load(generation),
      reload: () => this.#policy.refresh(),
      override: () => this.#override === 'off',
      freezeRoute: (route, tag, until) => this.#freezeRoute(route, tag, until),
      log: this.#log,
      meter: this.#metrics,
    });
    return new GrpcServer([service], [LEDGER_PROTO]);
  }

  #adminPort(): AdminServer {
    return new AdminServer({
      ledger: this.#ledger,
      freezeRoute: (route, tag, until) => this.#freezeRoute(route, tag, until),
      missing: () => this.#missing(),
      metrics: () => {
        const generation = this.#policy.view().policy?.generation ?? 0;
        this.#metrics.observe('earmark_policy_generation', {}, generation);
        return this.#metrics.text();
      },
      log: this.#log,
      meter: this.#metrics,
    });
  }

  /** Nothing is admitted on a server that may forget it; what is under way is settled there all the same. */
  async #admission<T>(_request: ReserveRequest | AdmitRequest, ask: () => Promise<T>): Promise<T> {
    const refused = this.#server.refused;
    if (refused !== undefined) throw new LedgerUnavailable(refused);
    return ask();
  }

  /** What /readyz says: empty where a Check would get an answer other than 503. */
  async #missing(): Promise<string[]> {
    if (this.#stopping) return ['earmark is stopping'];
    if (this.#override === 'off') return [];
    const missing: string[] = [];
    if (this.#server.refused !== undefined) missing.push(this.#server.refused);
    if (this.#policy.view().policy === undefined) {
      missing.push(this.#policy.problem() ?? 'no policy is published: earmark policy publish FILE');
    }
    if (this.#ledger.redis.status !== 'ready') {
      return [...new Set([...missing, noConnection(this.#ledger.redis)])];
    }
    try {
      // A script that moves nothing: there is no such reservation.
      const probe = reservationId(lineTag('', ''), receiptId('', '', 'ready', 1));
      await this.#ledger.start(probe, newOperation());
    } catch (error) {
      missing.push(`the ledger does not answer: ${(error as Error).message}`);
    }
    return missing;
  }

  /** Until it is done: a breach must stop the whole route, also when the ledger is away just now. */
  async #freezeRoute(route: string, tag: string, until: number): Promise<void> {
    for (;;) {
      try {
        await this.#documents.freezeRoute(route, until, tag);
        this.#log.warn({ route, until }, 'a breach froze the route');
        return;
      } catch (error) {
        if (!(error instanceof LedgerUnavailable) || this.#stopping) throw error;
        await sleep(FREEZE_AGAIN_MS);
      }
    }
  }
}

/** Resolves when the first attempt to connect is over, whatever came of it. */
function connected(redis: Redis): Promise<void> {
  return new Promise((resolve) => {
    if (redis.status === 'ready') resolve();
    redis.once('ready', resolve);
    redis.once('close', resolve);
  });
}

function openSpool(folder: string | undefined): DiskSpool | undefined {
  if (folder === undefined) return undefined;
  try {
    return new DiskSpool(folder);
  } catch (error) {
    throw new Error(`spool: ${(error as Error).message}: choose a folder that earmark may write`);
  }
}

interface Port {
  listen(address: string): Promise<string>;
}

async function opened(
  name: string,
  port: Port | undefined,
  address: string | undefined,
): Promise<string | undefined> {
  if (port === undefined || address === undefined) return undefined;
  try {
    return await port.listen(address);
  } catch (error) {
    const remedy = 'end what listens there, or choose another address';
    throw new Error(`listen.${name} ${address}: ${(error as Error).message}: ${remedy}`);
  }
}

/** Runs until SIGTERM or SIGINT; resolves with the exit code. */
export async function serveCommand(
  file: string | undefined,
  environment: Environment,
): Promise<number> {
  setFlagsFromString(`--heap-growing-percent=${HEAP_GROWS_PERCENT}`);
  const config = loadConfig(file, environment);
  const log = createLog(config.logLevel, config.gateway);
  const fatal = (error: unknown): void => {
    log.error({ err: error }, 'an error that nobody expected: earmark ends');
    process.exit(1);
  };
  process.on('uncaughtException', fatal);
  process.on('unhandledRejection', fatal);

  const told = new Promise<NodeJS.Signals>((resolve) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, resolve);
  });
  const earmark = await Earmark.start(config, log);
  process.on('SIGHUP', () => {
    try {
      earmark.setOverride(loadConfig(file, environment).override);
    } catch (error) {
      log.error(
        { err: (error as Error).message },
        'the settings cannot be read again: everything stays as it is',
      );
    }
  });
  log.info({ signal: await told }, 'earmark is told to end');
  setTimeout(() => {
    log.error({}, 'the orderly end took too long');
    process.exit(1);
  }, STOP_MS_MAX).unref();
  await earmark.stop();
  // An Envoy that connected once more on the way does not keep the process.
  setImmediate(() => process.exit());
  return 0;
}
