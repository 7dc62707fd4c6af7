/** Our metadata of an answered Check: signed on its way out, checked when it returns in the access log. */
import type { Mac } from '../core/mac.js';
import type { OwnMetadata } from './types.js';

/** Envoy puts the metadata of a CheckResponse under the filter's name. */
export const OWN_NAMESPACE = 'envoy.filters.http.ext_authz';

export type OwnFields = Omit<OwnMetadata, 'mac' | 'budget'>;

/** As it travels: a single limit's units as a number, several as a list. */
export interface WireMetadata {
  readonly [name: string]: string | number | boolean | readonly number[];
}

function signedParts(own: OwnFields): string[] {
  return [
    own.reservation,
    own.operation,
    String(own.generation),
    own.epoch,
    own.subject,
    own.route,
    own.units.join(),
    String(own.reservedAt),
    own.shadow ? 'shadow' : '',
    own.unreserved ? 'unreserved' : '',
  ];
}

export function signMetadata(mac: Mac, own: OwnFields): WireMetadata {
  const { reservation, operation, generation, epoch, subject, route, reservedAt, shadow } = own;
  // Field by field, here and below: a spread with more behind it takes longer than the MAC.
  const signed = {
    reservation,
    operation,
    generation,
    epoch,
    subject,
    route,
    units: own.units.length === 1 ? own.units[0]! : own.units,
    reservedAt,
    shadow,
    mac: mac.of(signedParts(own)),
  };
  return own.unreserved ? { ...signed, unreserved: true } : signed;
}

const isWhole = (value: unknown): value is number =>
  Number.isSafeInteger(value) && Number(value) >= 0;

function readUnits(value: unknown): readonly number[] | undefined {
  const units = Array.isArray(value) ? value : [value];
  return units.every(isWhole) ? units : undefined;
}

/** `none`: the Check made no reservation. `forged`: it claims to be, but nobody with our key wrote it. */
export function readMetadata(
  key: Mac,
  raw: Readonly<Record<string, unknown>>,
): OwnMetadata | 'none' | 'forged' {
  const { reservation, operation, generation, epoch, subject, route, reservedAt, mac } = raw;
  if (reservation === '') return 'none';
  const units = readUnits(raw.units);
  if (
    typeof reservation !== 'string' ||
    typeof operation !== 'string' ||
    typeof epoch !== 'string' ||
    typeof subject !== 'string' ||
    typeof route !== 'string' ||
    typeof mac !== 'string' ||
    !isWhole(generation) ||
    !isWhole(reservedAt) ||
    units === undefined
  ) {
    return 'forged';
  }
  const shadow = raw.shadow === true;
  const unreserved = raw.unreserved === true;
  const own = {
    reservation,
    operation,
    generation,
    epoch,
    subject,
    route,
    units,
    reservedAt,
    shadow,
    unreserved,
    mac,
  };
  return key.holds(signedParts(own), mac) ? own : 'forged';
}

/** The start of an epoch as people read it: 2026-07-19T14:00Z. */
export function epochText(epoch: number): string {
  return `${new Date(epoch).toISOString().slice(0, 16)}Z`;
}
