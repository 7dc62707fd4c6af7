/** Events as one short line each, for a person who reads a counterexample. */
import type { BudgetRef, EvidenceMetadata } from '../../src/ledger/types.js';
import { T0 } from './samples.js';
import type { Event } from './state.js';

export function tell(event: Event): string {
  const { op, now, ...rest } = event;
  const words = Object.entries(rest)
    .filter(([name]) => !['previous', 'first', 'key'].includes(name))
    .filter(([, value]) => value !== false && value !== '' && value !== 0)
    .map(([name, value]) => `${name}=${shorten(name, value)}`);
  return `+${now - T0} ms  ${op} ${words.join(' ')}`;
}

function shorten(name: string, value: unknown): string {
  if (name === 'budget') {
    const { generation, factor } = value as BudgetRef;
    return `${generation}×${factor.numerator}/${factor.denominator}`;
  }
  if (name === 'metadata') {
    const { shadow, reservedAt, unreserved, budget } = value as EvidenceMetadata;
    const flags = `${shadow ? 'shadow ' : ''}${unreserved ? 'unreserved ' : ''}`;
    return `(${flags}+${reservedAt - T0} ms${budget ? ` ${shorten('budget', budget)}` : ''})`;
  }
  if (typeof value === 'string')
    return name === 'id' ? value.slice(0, 6) : value.replace(/-+$/, '');
  return JSON.stringify(value);
}
