/** A request as the policy sees it, with what a test doesn't care about filled in. */
import type { RequestFacts } from '../../src/policy/types.js';

export function facts(some: Partial<RequestFacts> = {}): RequestFacts {
  return {
    method: 'POST',
    path: '/v1/chat/completions',
    host: 'llm.test',
    headers: {},
    model: '',
    stream: false,
    maxTokens: 0,
    context: {},
    principal: '',
    metadata: {},
    digest: () => '',
    ...some,
  };
}
