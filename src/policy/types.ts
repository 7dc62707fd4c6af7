/** The policy as the request path sees it: parsed once, frozen, typed (docs/policy.md). */
import type { Factor, Terms } from '../ledger/types.js';

/** What CEL sees of a request. What is absent is "" or 0, never an error. */
export interface RequestFacts {
  readonly method: string;
  /** Path with query. */
  readonly path: string;
  readonly host: string;
  /** Lower-case names; as Envoy gives them. */
  readonly headers: Readonly<Record<string, string>>;
  /** From the JSON body; "" or 0 or false where it has none. */
  readonly model: string;
  readonly stream: boolean;
  readonly maxTokens: number;
  /** Envoy's context_extensions. */
  readonly context: Readonly<Record<string, string>>;
  readonly principal: string;
  /** Filter metadata by namespace. */
  readonly metadata: Readonly<Record<string, unknown>>;
  /** The request digest of the body alone (subject and route are not known yet): 43 characters. Few ask for it. */
  readonly digest: () => string;
}

/** Tokens as reported, normalised: `total` >= input + output; details are contained in input or output. */
export interface Usage {
  readonly input: number;
  readonly output: number;
  readonly total: number;
  readonly cached: number;
  readonly cacheWritten: number;
  readonly reasoning: number;
  readonly audio: number;
}

export type UsageSource = 'trailers' | 'headers' | 'metadata';

export interface UsageRules {
  readonly from: readonly UsageSource[];
  /** Header and trailer names by the part they report. */
  readonly fields: Readonly<Partial<Record<'input' | 'output' | 'total' | 'cached', string>>>;
  readonly namespaces: readonly string[];
  readonly partial: 'trust' | 'atLeast';
  readonly freeStatuses: readonly number[];
  readonly retriesBeforeSendingOnly: boolean;
}

/** One budget of the document, compiled. The functions throw `PolicyEvaluationError`; none falls through. */
export interface Budget {
  readonly route: string;
  readonly region: string;
  readonly unit: string;
  readonly terms: Terms;
  readonly usage: UsageRules;
  readonly oversize: 'refuse';
  readonly startedBy: 'gateway' | 'executor';
  readonly settledAgain: 'refuse' | 'reserve';
  readonly plainResponses: boolean;
  match(request: RequestFacts): boolean;
  subject(request: RequestFacts): string;
  /** The idempotency key the policy gives; "": Envoy's request ID stands. */
  key(request: RequestFacts): string;
  /** The plan's factor; 1/1 without plans. */
  factor(request: RequestFacts): Factor;
  /** Units to hold in each limit. `bodyBytes` is the whole length, also of a body that Envoy cut. */
  estimate(request: EstimateInput): readonly number[];
  /** Units that a report costs in each limit. */
  cost(usage: Usage): readonly number[];
}

export interface EstimateInput {
  readonly facts: RequestFacts;
  /** The JSON body where it parsed to an object. */
  readonly json: Readonly<Record<string, unknown>> | undefined;
  /** Bytes of the request's body as it was sent (content-length where Envoy cut it). */
  readonly bodyBytes: number;
  /** The plan's factor scales maxReservation, which bounds a default completion. */
  readonly factor: Factor;
}

export interface Policy {
  readonly generation: number;
  /** SHA-256 of the canonical form, hex. Comments, key order and units of time don't matter, any value does. */
  readonly content: string;
  readonly unmatched: 'refuse' | 'allow';
  readonly budgets: readonly Budget[];
  /** The canonical form, as it is stored in the ledger. */
  readonly canonical: string;
}

/** An error or a warning in a document: where, what, and what to do. */
export interface Problem {
  readonly file: string;
  readonly line: number;
  readonly column: number;
  /** budgets[0].refill.units */
  readonly path: string;
  readonly message: string;
}

export type Mode = 'off' | 'shadow' | 'enforce' | 'refuseAll';

export interface RouteRollout {
  readonly mode: Mode;
  readonly percent: number;
  readonly by: 'subject' | 'request';
  readonly only: readonly string[];
  readonly except: readonly string[];
}

export interface Rollout {
  readonly generation: number;
  readonly default: RouteRollout;
  readonly routes: Readonly<Record<string, RouteRollout>>;
  readonly canonical: string;
}

/** A CEL expression of the policy failed on a request: the request is refused and counted. */
export class PolicyEvaluationError extends Error {
  override readonly name = 'PolicyEvaluationError';
  readonly route: string;
  readonly field: string;
  constructor(route: string, field: string, message: string) {
    super(message);
    this.route = route;
    this.field = field;
  }
}

/** What a gateway holds of policy and rollout at one instant; replaced as a whole when either changes. */
export interface PolicyView {
  /** In force: the rollout's generation; without a rollout the newest published. */
  readonly policy: Policy | undefined;
  /** Undefined: none in the ledger, everything runs in shadow. */
  readonly rollout: Rollout | undefined;
  /** A freeze of the whole route: 0 none, -1 until an operator ends it, else ledger time in ms. */
  frozenUntil(route: string): number;
  /** An earlier or later generation, for evidence about what was reserved under it. */
  generation(generation: number): Policy | undefined;
}
