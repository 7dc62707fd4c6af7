/** earmark.v1.Ledger (proto/earmark/v1/ledger.proto): the ledger for executors that are not behind Envoy. */
import { join } from 'node:path';
import type { handleUnaryCall, ServiceDefinition } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { type ReceiptDeps, readReport, settleReport } from '../admin/receipts.js';
import { FieldError, reservationField, textField, wholeField } from '../core/fields.js';
import {
  ATTEMPT_MAX,
  KEY_BYTES_MAX,
  OPERATION_BYTES_MAX,
  ROUTE_BYTES_MAX,
  SUBJECT_BYTES_MAX,
  UNITS_MAX,
} from '../core/limits.js';
import type { LedgerApi } from '../ledger/api.js';
import { refusalMessage } from '../ledger/refusals.js';
import { LedgerUnavailable, type Outcome, type ReserveRequest } from '../ledger/types.js';
import { decideMode } from '../policy/rollout.js';
import {
  type Budget,
  type Policy,
  PolicyEvaluationError,
  type PolicyView,
  type RequestFacts,
} from '../policy/types.js';
import type { Log, Meter } from '../telemetry/meter.js';
import { type Reply, reservationMessage, wouldBeRefused } from './ledger-messages.js';
import { PROTO_FOLDER, type Service } from './server.js';
import { type Code, type Details, grpcError } from './status.js';

export const LEDGER_PROTO = 'earmark/v1/ledger.proto';

export interface LedgerServiceDeps extends ReceiptDeps {
  readonly ledger: Pick<LedgerApi, 'reserve' | 'start' | 'release' | 'settle' | 'get'>;
  policy(): PolicyView;
  /** A generation of any age, from the ledger where it isn't here. */
  loadPolicy(generation: number): Promise<Policy | undefined>;
  /** Brings the view up to date at once. */
  reload(): Promise<void>;
  /** `override: off`. */
  override(): boolean;
  readonly meter: Meter;
  readonly log: Log;
}

type Fields = Readonly<Record<string, unknown>>;
type Method = (request: Fields) => Promise<Reply>;

/** An answer other than OK. */
class Refused extends Error {
  readonly code: Code;
  readonly details: Details;
  constructor(code: Code, message: string, details: Details = {}) {
    super(message);
    this.code = code;
    this.details = details;
  }
}

export function ledgerService(deps: LedgerServiceDeps): Service {
  const proto = loadSync(join(PROTO_FOLDER, LEDGER_PROTO), {
    includeDirs: [PROTO_FOLDER],
    longs: String,
    defaults: true,
  });
  const answer = (name: string, method: Method): handleUnaryCall<Fields, Reply> => {
    return (call, callback) => {
      method(call.request).then(
        (reply) => {
          deps.meter.count('earmark_api_calls_total', { method: name, code: 'OK' });
          callback(null, reply);
        },
        (error: unknown) => {
          const { code, message, details } = refusalOf(error);
          if (code === 'INTERNAL') deps.log.error({ err: error, method: name }, 'a call failed');
          deps.meter.count('earmark_api_calls_total', { method: name, code });
          callback(grpcError(code, message, details));
        },
      );
    };
  };
  const movement = (outcome: Outcome): Promise<Reply> => moved(deps, outcome);
  const methods: Readonly<Record<string, Method>> = {
    ReserveCapacity: (fields) => reserve(deps, fields),
    StartOperation: async ({ reservation, operation }) =>
      movement(
        await deps.ledger.start(
          reservationField('reservation', reservation),
          textField('operation', operation, OPERATION_BYTES_MAX),
        ),
      ),
    SettleUsage: async (fields) => {
      const { reservation, operation, actualUnits } = fields;
      const report = { reservation, operation, actual_units: actualUnits };
      return movement(await settleReport(deps, readReport(report, 'actual_units')));
    },
    ReleaseReservation: async ({ reservation }) =>
      movement(await deps.ledger.release(reservationField('reservation', reservation))),
    GetReservation: async ({ reservation }) => {
      const id = reservationField('reservation', reservation);
      const found = await deps.ledger.get(id);
      if (found === undefined) throw new Refused('NOT_FOUND', refusalMessage('not-found', ''));
      return reservationMessage(found.receipt, found.line, await mainLimit(deps, found.receipt));
    },
  };
  const implementation = Object.fromEntries(
    Object.entries(methods).map(([name, method]) => [name, answer(name, method)]),
  );
  return [proto['earmark.v1.Ledger'] as ServiceDefinition, implementation];
}

interface Asked {
  readonly subject: string;
  readonly route: string;
  readonly key: string;
  readonly digest: string;
  readonly units: number;
  readonly generation: number;
  readonly attempt: number;
}

function readReserve(fields: Fields): Asked {
  const digest = /^sha256:([0-9a-fA-F]{64})$/.exec(String(fields.requestDigest))?.[1];
  if (digest === undefined) {
    throw new FieldError('request_digest', 'must be "sha256:" and 64 hexadecimal digits');
  }
  return {
    subject: textField('subject', fields.subject, SUBJECT_BYTES_MAX),
    route: textField('route', fields.route, ROUTE_BYTES_MAX),
    key: textField('idempotency_key', fields.idempotencyKey, KEY_BYTES_MAX),
    digest: Buffer.from(digest, 'hex').toString('base64url'),
    units: wholeField('units', fields.units, 0, UNITS_MAX),
    generation: wholeField('policy_generation', fields.policyGeneration, 0, UNITS_MAX),
    attempt: wholeField('attempt', fields.attempt, 0, ATTEMPT_MAX) || 1,
  };
}

async function reserve(deps: LedgerServiceDeps, fields: Fields): Promise<Reply> {
  const asked = readReserve(fields);
  for (let tries = 0; ; tries++) {
    const { request, budget } = await prepare(deps, asked);
    const outcome = await deps.ledger.reserve(request);
    // Asked for whatever is in force, and that changed on the way here.
    const stale = outcome.kind === 'refused' && outcome.why === 'stale';
    if (stale && asked.generation === 0 && tries === 0) {
      await deps.reload();
      continue;
    }
    if (outcome.kind === 'limited') {
      const { route } = asked;
      const mode = request.shadow ? 'shadow' : 'enforce';
      const labels = { route, by: outcome.by, limit: outcome.limit, mode };
      deps.meter.count('earmark_refusals_total', labels);
      if (request.shadow) return wouldBeRefused(request, outcome.line);
    }
    return moved(deps, outcome, mainLimitOf(budget));
  }
}

async function prepare(
  deps: LedgerServiceDeps,
  asked: Asked,
): Promise<{ request: ReserveRequest; budget: Budget }> {
  const view = deps.policy();
  if (view.policy === undefined) {
    throw new Refused('UNAVAILABLE', 'no policy is in force yet: publish one');
  }
  const policy = await policyOf(deps, view.policy, asked.generation);
  const budget = policy.budgets.find(({ route }) => route === asked.route);
  if (budget === undefined) {
    throw new FieldError('route', `no budget of generation ${policy.generation} has this name`);
  }
  const { subject, route, key, digest, units, attempt } = asked;
  const mode = deps.override() ? 'off' : decideMode(view.rollout, route, subject, key);
  if (mode === 'off') {
    const message = `route ${route} is off: nothing is accounted, go on without a reservation`;
    throw new Refused('FAILED_PRECONDITION', message, { reason: 'OFF' });
  }
  // What a report without any token costs is the price of the call itself.
  const call = budget.cost(NOTHING_USED);
  const { generation, content } = policy;
  const { terms } = budget;
  const request: ReserveRequest = {
    subject,
    route,
    key,
    attempt,
    digest,
    units: terms.limits.map((limit, at) => (limit.ownCost ? (call[at] ?? 0) : units)),
    budget: { generation, content, terms, factor: budget.factor(factsOf(digest)) },
    shadow: mode === 'shadow',
    closed: mode === 'refuseAll',
    routeFrozenUntil: view.frozenUntil(route),
    again: budget.settledAgain === 'reserve',
  };
  return { request, budget };
}

/** A newer generation than the one in force would move the line past every gateway. */
async function policyOf(
  deps: LedgerServiceDeps,
  inForce: Policy,
  generation: number,
): Promise<Policy> {
  if (generation === 0 || generation === inForce.generation) return inForce;
  const older = generation < inForce.generation ? await deps.loadPolicy(generation) : undefined;
  if (older !== undefined) return older;
  const message = `policy_generation ${generation} is not in force: ${inForce.generation} is`;
  throw new Refused('FAILED_PRECONDITION', message, { reason: 'GENERATION' });
}

const NOTHING_USED = {
  input: 0,
  output: 0,
  total: 0,
  cached: 0,
  cacheWritten: 0,
  reasoning: 0,
  audio: 0,
};

/** There is no HTTP request: an expression sees what it sees where everything is absent. */
function factsOf(digest: string): RequestFacts {
  return {
    method: '',
    path: '',
    host: '',
    headers: {},
    model: '',
    stream: false,
    maxTokens: 0,
    context: {},
    principal: '',
    metadata: {},
    digest: () => digest,
  };
}

/** The limit that an amount in the budget's unit speaks of: the first without a cost of its own. */
function mainLimitOf(budget: Budget | undefined): number {
  return Math.max(0, budget?.terms.limits.findIndex((limit) => !limit.ownCost) ?? 0);
}

async function mainLimit(
  deps: LedgerServiceDeps,
  receipt: {
    readonly generation: number;
    readonly route: string;
    readonly units: readonly unknown[];
  },
): Promise<number> {
  if (receipt.units.length === 1) return 0;
  const policy = await deps.loadPolicy(receipt.generation);
  return mainLimitOf(policy?.budgets.find(({ route }) => route === receipt.route));
}

/** The message of an outcome; what may not be is thrown as the error that says so. */
async function moved(deps: LedgerServiceDeps, outcome: Outcome, main?: number): Promise<Reply> {
  switch (outcome.kind) {
    case 'moved':
    case 'same': {
      const { receipt, line } = outcome;
      if (receipt === undefined) {
        throw new Refused('NOT_FOUND', 'no such receipt is kept, and there was nothing to book');
      }
      return reservationMessage(receipt, line, main ?? (await mainLimit(deps, receipt)));
    }
    case 'limited': {
      const { by, limit, waitMs, needed, line } = outcome;
      const of = limit === '' ? '' : ` of limit ${limit}`;
      const metadata = { generation: String(line.generation), limitedBy: by };
      throw new Refused('RESOURCE_EXHAUSTED', `limited by ${by}${of}: ${needed} units needed`, {
        reason: by.toUpperCase().replace('-', '_'),
        metadata: limit === '' ? metadata : { ...metadata, limit },
        retryMs: waitMs,
      });
    }
    case 'refused': {
      const { why, detail } = outcome;
      const message = refusalMessage(why, detail);
      if (why === 'not-found') throw new Refused('NOT_FOUND', message);
      if (why === 'invalid') throw new Refused('INVALID_ARGUMENT', message);
      const reason = why.toUpperCase().replace('-', '_');
      throw new Refused('FAILED_PRECONDITION', message, { reason });
    }
  }
}

function refusalOf(error: unknown): { code: Code; message: string; details: Details } {
  if (error instanceof Refused) return error;
  if (error instanceof FieldError) {
    return { code: 'INVALID_ARGUMENT', message: error.message, details: { field: error.field } };
  }
  if (error instanceof LedgerUnavailable) {
    return { code: 'UNAVAILABLE', message: `the ledger: ${error.message}`, details: {} };
  }
  if (error instanceof PolicyEvaluationError) {
    const message = `${error.field} of route ${error.route} can't be told without an HTTP request: ${error.message}`;
    return { code: 'FAILED_PRECONDITION', message, details: { reason: 'POLICY' } };
  }
  return { code: 'INTERNAL', message: 'failed; the log says why', details: {} };
}
