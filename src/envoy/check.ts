/** A Check from question to answer: plan, ask the ledger until it is known, answer. The only effects of this folder. */
import { lineTag, newOperation, receiptId, reservationId } from '../core/ids.js';
import type { Mac } from '../core/mac.js';
import type { LedgerApi } from '../ledger/api.js';
import {
  type AdmitRequest,
  LedgerUnavailable,
  type LineView,
  type Outcome,
  type Receipt,
} from '../ledger/types.js';
import type { Budget, Policy, PolicyView } from '../policy/types.js';
import { MacKey } from '../settle/mac-key.js';
import { epochText, signMetadata, type WireMetadata } from '../settle/metadata.js';
import type { Log, Meter } from '../telemetry/meter.js';
import * as answers from './answer.js';
import { type Decision, type Plan, plan, type Reject } from './plan.js';
import type { CheckAnswer, CheckCall, CheckHandler, CheckRequest, Metadata } from './types.js';
import { nextAttempt, type Verdict, verdictOf } from './verdict.js';

/** A Check's own time where Envoy gave none. */
const PATIENCE_MS = 1000;
/** What an answer needs to get back to Envoy in time: a tenth of the whole, but not less than this. */
const MARGIN_MS_MIN = 20;
/** The first question, the newest attempt, and the one after it. */
const RUNS_MAX = 3;
const LOST = 'the ledger cannot be reached in time';
const PAUSE_MS = 5;
const PAUSE_MS_MAX = 50;

export interface CheckDeps {
  readonly ledger: Pick<LedgerApi, 'admit' | 'reserve' | 'estimatedNow' | 'macKey'>;
  readonly policy: () => PolicyView;
  /** Reads policy and rollout from the ledger again. */
  readonly reload: () => Promise<void>;
  /** `override: off`: everything passes and no ledger is asked. */
  readonly override: () => boolean;
  /** Why this process may admit nothing under its policy (an estimator that differs); undefined: it may. */
  readonly notReady: () => string | undefined;
  readonly meter: Meter;
  readonly log: Log;
}

interface Labels {
  route: string;
  mode: string;
}

/** The last word of the ledger on a plan; no outcome: not known in time. */
interface Reply {
  readonly attempt: number;
  readonly outcome: Outcome | undefined;
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Undefined where the promise takes longer. */
function within<T>(promise: Promise<T>, ms: number): Promise<T | undefined> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, Math.max(0, ms), undefined);
    promise.then(resolve, reject).then(() => clearTimeout(timer));
  });
}

class Check {
  readonly #deps: CheckDeps;
  readonly #request: CheckRequest;
  readonly #call: CheckCall;
  readonly #macKey: MacKey;
  readonly #deadline: number;
  readonly labels: Labels = { route: '', mode: '' };

  constructor(deps: CheckDeps, macKey: MacKey, request: CheckRequest, call: CheckCall) {
    this.#deps = deps;
    this.#macKey = macKey;
    this.#request = request;
    this.#call = call;
    const now = Date.now();
    const { deadline = now + PATIENCE_MS } = call;
    this.#deadline = deadline - Math.max(MARGIN_MS_MIN, (deadline - now) / 10);
  }

  async answer(): Promise<CheckAnswer> {
    const { headers } = this.#request;
    if (this.#deps.override()) return answers.passed(headers, { why: 'override' });
    const answer = await this.#try(false);
    if (answer !== 'stale') return answer;
    await this.#intime(this.#deps.reload());
    return (await this.#try(true)) as CheckAnswer;
  }

  unavailable(message: string, metadata: Metadata = { reservation: '' }): CheckAnswer {
    return answers.unavailable(message, metadata, Math.random());
  }

  /** Undefined where it is not known in time, or the ledger is away. */
  async #intime<T>(asked: T | Promise<T>): Promise<T | undefined> {
    if (!(asked instanceof Promise)) return asked;
    try {
      return await within(asked, this.#deadline - Date.now());
    } catch (error) {
      if (error instanceof LedgerUnavailable) return undefined;
      throw error;
    }
  }

  /** `stale`: the line is under a newer policy than ours; once that was `reloaded`, it is an answer. */
  async #try(reloaded: boolean): Promise<CheckAnswer | 'stale'> {
    const view = this.#deps.policy();
    const { policy } = view;
    if (policy === undefined) return this.unavailable('no policy is published yet');
    const notReady = this.#deps.notReady();
    if (notReady !== undefined) return this.unavailable(notReady);
    const decision = plan(this.#request, view, policy, newOperation());
    if (decision.kind === 'ask') return this.#ask(decision, reloaded);
    return this.#withoutLedger(decision, policy);
  }

  #withoutLedger(decision: Exclude<Decision, Plan>, policy: Policy): CheckAnswer {
    const { headers } = this.#request;
    const { route } = decision;
    this.labels.route = route;
    if (decision.kind === 'pass') {
      this.labels.mode = 'off';
      return answers.passed(headers, { why: decision.why });
    }
    return this.#reject(decision, policy);
  }

  #reject(reject: Reject, policy: Policy): CheckAnswer {
    const { route, mode, field, code } = reject;
    this.labels.mode = mode;
    if (field !== undefined)
      this.#deps.meter.count('earmark_policy_errors_total', { route, field });
    this.#deps.meter.count('earmark_refusals_total', { route, by: code, limit: '', mode });
    if (mode !== 'shadow') return answers.rejected(reject, policy.generation);
    return answers.passed(this.#request.headers, { shadow: true, code });
  }

  async #ask(decision: Plan, reloaded: boolean): Promise<CheckAnswer | 'stale'> {
    const { request, mode } = decision;
    this.labels.route = request.route;
    this.labels.mode = mode;
    const mac = await this.#untilKnown(decision, () => this.#macKey.get());
    // Without the key nothing can be signed, and what isn't signed would not count when it returns.
    if (mac === undefined) return this.#unknown(decision, { reservation: '' });
    const reply = await this.#reply(decision);
    if (reply.outcome === undefined) return this.#lost(decision, mac, reply.attempt);
    const verdict = verdictOf(decision, reply.outcome);
    if (verdict.kind === 'stale' && !reloaded) return 'stale';
    return this.#tell(decision, mac, verdict, reply);
  }

  /** Asks for the attempt that may run: never for a new one before an earlier one is seen to have ended. */
  async #reply(decision: Plan): Promise<Reply> {
    let attempt = 1;
    for (let run = 1; ; run++) {
      const request = { attempt, ...decision.request };
      const ask = () => this.#admission(decision.budget, request);
      const outcome = await this.#untilKnown(decision, ask);
      const next = outcome && nextAttempt(outcome, attempt, decision.request.again);
      if (next === undefined || run === RUNS_MAX) return { attempt, outcome };
      attempt = next;
    }
  }

  /** A lost answer is asked for again, with the same ID and the same operation, until it is known. */
  async #untilKnown<T>(decision: Plan, ask: () => T | Promise<T>): Promise<T | undefined> {
    const { shadow } = decision.request;
    for (let pause = PAUSE_MS; ; pause = Math.min(2 * pause, PAUSE_MS_MAX)) {
      const answer = await this.#intime(ask());
      if (answer !== undefined) return answer;
      const late = Date.now() + pause >= this.#deadline;
      // What runs in shadow must not wait for a ledger that is away.
      if (late || shadow || this.#call.cancelled()) return undefined;
      await sleep(pause);
    }
  }

  #admission(budget: Budget, request: AdmitRequest): Promise<Outcome> {
    const { ledger } = this.#deps;
    if (budget.startedBy !== 'executor') return ledger.admit(request);
    // What an executor starts is bound to no operation yet.
    const { operation: _, ...reserve } = request;
    return ledger.reserve(reserve);
  }

  #tell(decision: Plan, mac: Mac, verdict: Verdict, reply: Reply): CheckAnswer {
    const line = reply.outcome?.line;
    switch (verdict.kind) {
      case 'forward':
        return this.#forward(decision, mac, verdict.receipt, line);
      case 'limited':
        return this.#limited(decision, verdict.outcome);
      case 'duplicate':
        // A reservation of the enforced twin is never executed twice, whatever the mode is by now.
        if (decision.request.shadow && verdict.receipt.shadow) return this.#shadow(decision, 409);
        this.#refused(decision, 'duplicate');
        return answers.duplicate(decision, verdict.receipt);
      case 'otherDigest':
        if (decision.request.shadow && verdict.shadow) return this.#shadow(decision, 422);
        this.#refused(decision, 'digest');
        return answers.otherDigest(decision);
      case 'busy':
        return this.#lost(decision, mac, reply.attempt, verdict.message);
      case 'stale':
        return this.#lost(decision, mac, reply.attempt, 'the policy is being replaced');
      case 'broken': {
        const { subject, route } = decision.request;
        const { message } = verdict;
        this.#deps.log.error({ subject, route, message }, 'the ledger refused a Check');
        return this.#lost(decision, mac, reply.attempt, 'the ledger refused; see the log');
      }
    }
  }

  #forward(decision: Plan, mac: Mac, receipt: Receipt, line: LineView | undefined): CheckAnswer {
    const { subject, route, shadow, reservation, generation, units, reservedAt } = receipt;
    const { operation } = decision.request;
    const metadata = signMetadata(mac, {
      reservation,
      operation,
      generation,
      epoch: epochText(receipt.epoch),
      subject,
      route,
      units,
      reservedAt,
      shadow,
      unreserved: false,
    });
    return answers.reserved(decision, this.#request.headers, metadata, line);
  }

  #limited(decision: Plan, outcome: Extract<Outcome, { kind: 'limited' }>): CheckAnswer {
    const { by, limit } = outcome;
    this.#refused(decision, by, limit);
    const denied = answers.limited(decision, outcome);
    if (!decision.request.shadow) return denied;
    return this.#shadow(decision, 429, { limitedBy: denied.metadata.limitedBy ?? by });
  }

  /** What would have been refused goes on, and its log entry is about no reservation. */
  #shadow(decision: Plan, status: number, more: Metadata = {}): CheckAnswer {
    const { generation } = decision.policy;
    const { subject, route } = decision.request;
    if (status !== 429) this.#refused(decision, status === 409 ? 'duplicate' : 'digest');
    const metadata = { shadow: true, generation, subject, route, ...more };
    return answers.passed(this.#request.headers, metadata, decision.budget.plainResponses);
  }

  #refused(decision: Plan, by: string, limit = ''): void {
    const { route } = decision.request;
    const { mode } = decision;
    this.#deps.meter.count('earmark_refusals_total', { route, by, limit, mode });
  }

  /** It is not known whether the reservation was made. Its metadata lets the log entry settle it either way. */
  #lost(decision: Plan, mac: Mac, attempt: number, message = LOST): CheckAnswer {
    const { subject, route, budget, units, operation, shadow, key } = decision.request;
    const reservedAt = this.#deps.ledger.estimatedNow();
    const id = receiptId(subject, route, key, attempt);
    const metadata = signMetadata(mac, {
      ...{ subject, route, units, operation, shadow, reservedAt },
      reservation: reservationId(lineTag(subject, route), id),
      generation: budget.generation,
      epoch: epochText(reservedAt - (reservedAt % budget.terms.epochMs)),
      unreserved: true,
    });
    return this.#unknown(decision, metadata, message);
  }

  #unknown(decision: Plan, metadata: WireMetadata, message = LOST): CheckAnswer {
    if (!decision.request.shadow) return this.unavailable(message, metadata);
    const { headers } = this.#request;
    if (metadata.reservation === '') return answers.passed(headers, { shadow: true });
    return answers.reserved(decision, headers, metadata, undefined);
  }
}

function answerLabel(answer: CheckAnswer): string {
  return answer.kind === 'ok' ? 'ok' : String(answer.status);
}

/** The handler of Envoy's Check. It never rejects: what goes wrong is an error answer, and in the log. */
export function createCheck(deps: CheckDeps): CheckHandler {
  const macKey = new MacKey(() => deps.ledger.macKey());
  return async (request, call) => {
    const started = performance.now();
    const check = new Check(deps, macKey, request, call);
    let answer: CheckAnswer;
    try {
      answer = await check.answer();
    } catch (error) {
      deps.log.error({ err: error }, 'a Check failed');
      answer = check.unavailable('this gateway failed; see its log');
    }
    const label = answerLabel(answer);
    deps.meter.count('earmark_checks_total', { answer: label, ...check.labels });
    const seconds = (performance.now() - started) / 1000;
    deps.meter.observe('earmark_check_seconds', { answer: label }, seconds);
    return answer;
  };
}
