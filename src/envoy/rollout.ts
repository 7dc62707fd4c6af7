/** How far the policy in force reaches (rollout.v1). Pure. */
import { createHash } from 'node:crypto';
import type { Mode, Rollout, RouteRollout } from '../policy/types.js';

const SHADOW: RouteRollout = { mode: 'shadow', percent: 100, by: 'subject', only: [], except: [] };

/** Without a rollout everything runs in shadow. */
export function rulesOf(rollout: Rollout | undefined, route: string | undefined): RouteRollout {
  if (rollout === undefined) return SHADOW;
  return (route === undefined ? undefined : rollout.routes[route]) ?? rollout.default;
}

/** The rest of an enforced route runs in shadow. The hash is fixed, so a higher percentage moves nobody out. */
export function modeOf(rules: RouteRollout, subject: string, key: string): Mode {
  if (rules.mode !== 'enforce') return rules.mode;
  if (rules.except.includes(subject)) return 'shadow';
  if (rules.only.length > 0 && !rules.only.includes(subject)) return 'shadow';
  if (rules.percent >= 100) return 'enforce';
  const chosen = rules.by === 'subject' ? subject : `${subject}\n${key}`;
  const draw = createHash('sha256').update(chosen).digest().readUInt32BE() / 2 ** 32;
  return draw * 100 < rules.percent ? 'enforce' : 'shadow';
}
