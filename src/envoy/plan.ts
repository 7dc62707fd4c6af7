/** From a Check to what the ledger is asked, or to the answer that needs no ledger. Pure: decides, does nothing. */
import { methodPath, requestDigest, requestName } from '../core/digest.js';
import { KEY_BYTES_MAX, SUBJECT_BYTES_MAX } from '../core/limits.js';
import type { AdmitRequest } from '../ledger/types.js';
import { modeOf, rulesOf } from '../policy/rollout.js';
import {
  type Budget,
  type Mode,
  type Policy,
  PolicyEvaluationError,
  type PolicyView,
} from '../policy/types.js';
import { type ReadRequest, readRequest } from './facts.js';
import type { CheckRequest } from './types.js';

/** A reservation to ask for, whole but for the attempt. */
export interface Plan {
  readonly kind: 'ask';
  readonly mode: 'enforce' | 'shadow' | 'refuseAll';
  readonly policy: Policy;
  readonly budget: Budget;
  readonly request: Omit<AdmitRequest, 'attempt'>;
}

/** Goes on without a reservation. */
export interface Pass {
  readonly kind: 'pass';
  readonly why: 'off' | 'unmatched';
  readonly route: string;
}

/** A request that must not go on, whatever the ledger says. */
export interface Reject {
  readonly kind: 'reject';
  readonly mode: Mode;
  readonly status: 400 | 403;
  readonly code: string;
  readonly message: string;
  readonly route: string;
  readonly subject: string;
  /** The expression that failed. */
  readonly field?: string;
}

export type Decision = Plan | Pass | Reject;

type Rejection = Pick<Reject, 'status' | 'code' | 'message'>;

const bad = (code: string, message: string): Rejection => ({ status: 400, code, message });
const forbidden = (code: string, message: string): Rejection => ({ status: 403, code, message });

function keyProblem(key: string, headers: Readonly<Record<string, string>>): Rejection | undefined {
  if (key === '') {
    const remedy = 'send an idempotency key, or let Envoy make request IDs';
    return bad('no_key', `x-request-id: the request has neither a key nor a request ID; ${remedy}`);
  }
  if (Buffer.byteLength(key) > KEY_BYTES_MAX) {
    return bad('key_too_long', `idempotency key: at most ${KEY_BYTES_MAX} bytes`);
  }
  // Envoy joins a header that was sent twice; whichever of the two was meant, it isn't the join.
  if (!key.includes(',')) return undefined;
  const name = Object.keys(headers).find((header) => headers[header] === key);
  if (name === undefined) return undefined;
  return bad('key_twice', `${name}: an idempotency key is sent once and has no comma`);
}

function subjectProblem(subject: string): Rejection | undefined {
  if (subject.trim() === '')
    return forbidden('no_subject', 'the request does not say whose budget it is');
  if (Buffer.byteLength(subject) <= SUBJECT_BYTES_MAX) return undefined;
  return bad('subject_too_long', `subject: at most ${SUBJECT_BYTES_MAX} bytes`);
}

function ask(
  read: ReadRequest,
  view: PolicyView,
  policy: Policy,
  budget: Budget,
  operation: string,
): Decision {
  const { facts, body, bodyBytes, json } = read;
  const rules = rulesOf(view.rollout, budget.route);
  if (rules.mode === 'off') return { kind: 'pass', why: 'off', route: budget.route };
  const subject = budget.subject(facts);
  const requestId = facts.headers['x-request-id'] ?? '';
  const key = budget.key(facts) || requestId;
  const mode = modeOf(rules, subject, key) as Plan['mode'];
  const problem =
    (read.problem === undefined ? undefined : bad('bad_request', read.problem)) ??
    subjectProblem(subject) ??
    keyProblem(key, facts.headers);
  if (problem) {
    const named = Buffer.byteLength(subject) > SUBJECT_BYTES_MAX ? '' : subject;
    return { kind: 'reject', mode, route: budget.route, subject: named, ...problem };
  }
  const factor = budget.factor(facts);
  const units = budget.estimate({ facts, json, bodyBytes, factor });
  const { generation, content } = policy;
  const { method, path } = facts;
  const announce = {
    requestId: requestName(requestId, read.startedAt),
    methodPath: methodPath(method, path),
  };
  const request: Plan['request'] = {
    subject,
    route: budget.route,
    key,
    digest: requestDigest(method, path, subject, budget.route, body),
    units,
    budget: { generation, content, terms: budget.terms, factor },
    shadow: mode === 'shadow',
    closed: mode === 'refuseAll',
    routeFrozenUntil: view.frozenUntil(budget.route),
    again: budget.settledAgain === 'reserve',
    ...(requestId === '' ? {} : { announce }),
    operation,
  };
  return { kind: 'ask', mode, policy, budget, request };
}

/** `operation` is drawn anew for each Check. Throws only where the policy itself is broken. */
export function plan(
  request: CheckRequest,
  view: PolicyView,
  policy: Policy,
  operation: string,
): Decision {
  const read = readRequest(request);
  let route = '';
  try {
    for (const budget of policy.budgets) {
      route = budget.route;
      if (budget.match(read.facts)) return ask(read, view, policy, budget, operation);
    }
  } catch (error) {
    if (!(error instanceof PolicyEvaluationError)) throw error;
    const { mode } = rulesOf(view.rollout, route);
    if (mode === 'off') return { kind: 'pass', why: 'off', route };
    const { field } = error;
    const message = `policy: ${field} of ${route} can't be evaluated on this request`;
    return { kind: 'reject', mode, route, subject: '', field, ...bad('policy_error', message) };
  }
  return unmatched(view, policy);
}

function unmatched(view: PolicyView, policy: Policy): Decision {
  const { mode } = rulesOf(view.rollout, undefined);
  if (policy.unmatched === 'allow') return { kind: 'pass', why: 'unmatched', route: '' };
  if (mode === 'off') return { kind: 'pass', why: 'off', route: '' };
  const rejection = forbidden('no_budget', 'no budget of the policy matches this request');
  return { kind: 'reject', mode, route: '', subject: '', ...rejection };
}
