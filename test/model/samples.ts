/** Budgets and events that the tests of the model, its worlds and the random driver are made of. */

import { lineTag, receiptId } from '../../src/core/ids.js';
import type { BudgetRef, Factor, Grade, LimitTerms, Terms } from '../../src/ledger/types.js';
import { type Event, emptyLine, type LineState } from './state.js';

/** Midnight of a Monday that is no first of a month. */
export const T0 = Date.UTC(2024, 0, 15);

export function limitTerms(some: Partial<LimitTerms> = {}): LimitTerms {
  return {
    ...{ name: '', burst: 1000, refill: null, maxReservation: some.burst ?? 1000 },
    ...{ maxOverdraft: null, executionHardCap: null, ownCost: false },
    ...some,
  };
}

export function budgetOf(
  limits: readonly LimitTerms[] = [limitTerms()],
  some: Partial<Terms> & { generation?: number; content?: string; factor?: Factor } = {},
): BudgetRef {
  const { generation = 1, content = `c${generation}`, factor, ...terms } = some;
  return {
    ...{ generation, content, factor: factor ?? { numerator: 1, denominator: 1 } },
    terms: {
      ...{ limits, epochMs: 86_400_000, holdTtlMs: 100, usageDeadlineMs: 200 },
      ...{ retentionMs: 86_400_000, onBreach: 'freezeLine', freezeForMs: 0 },
      ...terms,
    },
  };
}

/** A line of a subject's own, and what may be asked of it. */
export class Line {
  readonly subject: string;
  readonly route: string;

  constructor(subject = 'subject', route = 'route') {
    this.subject = subject;
    this.route = route;
  }

  empty(): LineState {
    return emptyLine(this.subject, this.route, lineTag(this.subject, this.route));
  }

  id(key: string, attempt = 1): string {
    return receiptId(this.subject, this.route, key, attempt);
  }

  /** With `operation` an admit. */
  reserve(now: number, key: string, units: number | readonly number[], some: Asked = {}): Event {
    const { attempt = 1, digest = digestOf('a'), operation, ...rest } = some;
    return {
      ...{ op: operation === undefined ? 'reserve' : 'admit', now, attempt, digest },
      operation: operation === undefined ? '' : operationOf(operation),
      ...{ shadow: false, closed: false, routeFrozenUntil: 0, again: false, budget: budgetOf() },
      ...rest,
      ...{ key, id: this.id(key, attempt), units: typeof units === 'number' ? [units] : units },
      previous: attempt > 1 ? this.id(key, attempt - 1) : '',
      first: attempt > 1 ? this.id(key) : '',
    };
  }

  start(now: number, key: string, operation: string, attempt = 1): Event {
    return { op: 'start', now, id: this.id(key, attempt), operation: operationOf(operation) };
  }

  release(now: number, key: string, attempt = 1): Event {
    return { op: 'release', now, id: this.id(key, attempt) };
  }

  settle(
    now: number,
    key: string,
    operation: string,
    actual: number | readonly number[],
    some: Told & { readonly grade?: Grade } = {},
  ): Event {
    const { grade = 'reported', ...told } = some;
    return {
      ...this.#evidence(now, key, operation, told),
      ...{ op: 'settle', actual: typeof actual === 'number' ? [actual] : actual, grade },
    };
  }

  unknown(
    now: number,
    key: string,
    operation: string,
    least: readonly number[] = [],
    some: Told = {},
  ): Event {
    return { ...this.#evidence(now, key, operation, some), op: 'unknown', least };
  }

  #evidence(now: number, key: string, operation: string, told: Told) {
    const { attempt = 1, reservedAt, unreserved = false, shadow = false, budget } = told;
    const reference = { now, id: this.id(key, attempt), operation: operationOf(operation) };
    if (reservedAt === undefined) return reference;
    const { subject, route } = this;
    const metadata = { subject, route, shadow, reservedAt, unreserved };
    return { ...reference, metadata: budget === undefined ? metadata : { ...metadata, budget } };
  }
}

export interface Asked {
  readonly attempt?: number;
  readonly digest?: string;
  readonly operation?: string;
  readonly budget?: BudgetRef;
  readonly shadow?: boolean;
  readonly closed?: boolean;
  readonly routeFrozenUntil?: number;
  readonly again?: boolean;
}

/** With `reservedAt` the evidence carries metadata. */
export interface Told {
  readonly attempt?: number;
  readonly reservedAt?: number;
  readonly unreserved?: boolean;
  readonly shadow?: boolean;
  readonly budget?: BudgetRef;
}

/** As long as a real operation: 22 characters. */
export function operationOf(name: string): string {
  return name.padEnd(22, '-');
}

/** As long as a real digest: 43 characters. */
export function digestOf(name: string): string {
  return name.padEnd(43, '-');
}
