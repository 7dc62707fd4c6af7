/** What a Check says about the request, as expressions and estimates see it. */
import { type Body, bodyDigest } from '../core/digest.js';
import type { RequestFacts } from '../policy/types.js';
import type { CheckRequest } from './types.js';

/** OpenAI's names for the most that a completion may use. */
const MAXIMA = ['max_completion_tokens', 'max_tokens', 'max_output_tokens'];

type Json = Readonly<Record<string, unknown>>;

export interface ReadRequest {
  readonly startedAt: string;
  readonly facts: RequestFacts;
  readonly body: Body;
  /** Bytes of the body as it was sent, as far as known. */
  readonly bodyBytes: number;
  readonly json: Json | undefined;
  /** A body or header that can't be what it claims; undefined: none. */
  readonly problem: string | undefined;
}

function readBody(request: CheckRequest): Body {
  const length = request.headers['content-length'];
  const declaredBytes = length !== undefined && /^\d{1,15}$/.test(length) ? Number(length) : -1;
  const bytes = request.body;
  // Envoy overwrites this header where it sends bodies; where it doesn't, a client may have written it.
  const marked = request.headers['x-envoy-auth-partial-body'] === 'true';
  const cut = declaredBytes > bytes.length || (marked && declaredBytes !== bytes.length);
  return { bytes, cut, declaredBytes };
}

function parseJson(request: CheckRequest, body: Body): { json?: Json; problem?: string } {
  if (body.cut || body.bytes.length === 0) return {};
  const claimed = /[/+]json\b/i.test(request.headers['content-type'] ?? '');
  if (!claimed && request.body[0] !== 0x7b) return {};
  try {
    const value: unknown = JSON.parse(request.body.toString());
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? { json: value as Json }
      : {};
  } catch {
    return claimed ? { problem: 'body: content-type says JSON, but it does not parse' } : {};
  }
}

/** The largest where several are given: which one a backend obeys is its own affair. */
function readMaximum(json: Json | undefined): { maxTokens: number; problem?: string } {
  let maxTokens = 0;
  for (const name of MAXIMA) {
    const value = json?.[name] ?? 0;
    if (!Number.isSafeInteger(value) || (value as number) < 0) {
      return { maxTokens: 0, problem: `body: ${name} must be a whole number from 0 to 2^53 - 1` };
    }
    maxTokens = Math.max(maxTokens, value as number);
  }
  return { maxTokens };
}

/** Never throws: what is wrong with the request is answered once its budget is known. */
export function readRequest(request: CheckRequest): ReadRequest {
  const body = readBody(request);
  const { json, problem } = parseJson(request, body);
  const maximum = readMaximum(json);
  const { method, path, host, headers, context, principal, metadata } = request;
  const facts: RequestFacts = {
    method,
    path,
    host,
    headers,
    context,
    principal,
    metadata,
    model: typeof json?.model === 'string' ? json.model : '',
    stream: json?.stream === true,
    maxTokens: maximum.maxTokens,
    digest: () => bodyDigest(body),
  };
  const bodyBytes = Math.max(body.bytes.length, body.declaredBytes);
  const { startedAt } = request;
  return { startedAt, facts, body, bodyBytes, json, problem: problem ?? maximum.problem };
}
