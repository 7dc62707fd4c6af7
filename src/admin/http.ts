/** The admin port: /metrics, /healthz, /readyz, and receipts over HTTP. */
import { createServer, type IncomingMessage, type Server } from 'node:http';
import { FieldError } from '../core/fields.js';
import { HTTP_BODY_BYTES_MAX } from '../core/limits.js';
import { refusalMessage } from '../ledger/refusals.js';
import { shortSocket } from '../ledger/socket.js';
import { LedgerUnavailable, type Outcome } from '../ledger/types.js';
import type { Log, Meter } from '../telemetry/meter.js';
import { type ReceiptDeps, readReport, settleReport } from './receipts.js';

export interface AdminDeps extends ReceiptDeps {
  metrics(): Promise<{ readonly type: string; readonly body: string }>;
  /** What keeps this process from doing its work; empty: it is ready. */
  missing(): Promise<readonly string[]>;
  readonly meter: Meter;
  readonly log: Log;
}

interface Answer {
  readonly status: number;
  readonly type?: string;
  readonly body: unknown;
}

/** An answer that ends the request early. */
class Refused extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

const PATHS: Readonly<Record<string, 'GET' | 'POST'>> = {
  '/metrics': 'GET',
  '/healthz': 'GET',
  '/readyz': 'GET',
  '/v1/receipts': 'POST',
};

export class AdminServer {
  readonly #deps: AdminDeps;
  readonly #server: Server;

  constructor(deps: AdminDeps) {
    this.#deps = deps;
    this.#server = createServer((request, response) => {
      this.#answer(request).then(({ status, type, body }) => {
        const text = typeof body === 'string' ? body : `${JSON.stringify(body)}\n`;
        response.writeHead(status, { 'content-type': type ?? 'application/json' });
        response.end(request.method === 'HEAD' ? undefined : text);
      });
    });
  }

  /** Resolves with the address as it is bound, port 0 replaced. */
  async listen(address: string): Promise<string> {
    const socket = address.startsWith('unix:') ? shortSocket(address.slice(5)) : undefined;
    const [, host, port] = /^\[?(.*?)\]?:(\d+)$/.exec(address) ?? [];
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      if (socket === undefined) this.#server.listen(Number(port), host, resolve);
      else this.#server.listen(socket, resolve);
    });
    const bound = this.#server.address();
    if (bound === null || typeof bound === 'string') return address;
    return address.replace(/:\d+$/, `:${bound.port}`);
  }

  async stop(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.#server.closeIdleConnections();
    const timer = setTimeout(() => this.#server.closeAllConnections(), 500);
    await closed;
    clearTimeout(timer);
  }

  async #answer(request: IncomingMessage): Promise<Answer> {
    try {
      return await this.#route(request);
    } catch (error) {
      const field = error instanceof FieldError ? error.field : null;
      const status = statusOf(error);
      if (status === 500) this.#deps.log.error({ err: error }, 'an admin request failed');
      const message = status === 500 ? 'failed; the log says why' : (error as Error).message;
      return { status, body: { error: { message, field } } };
    }
  }

  async #route(request: IncomingMessage): Promise<Answer> {
    const path = (request.url ?? '').split('?')[0] ?? '';
    const method = request.method === 'HEAD' ? 'GET' : request.method;
    const allowed = Object.hasOwn(PATHS, path) ? PATHS[path] : undefined;
    if (allowed === undefined) {
      throw new Refused(404, `no such path: there are ${Object.keys(PATHS).join(', ')}`);
    }
    if (method !== allowed) throw new Refused(405, `${path} takes ${allowed}`);
    switch (path) {
      case '/metrics': {
        const { type, body } = await this.#deps.metrics();
        return { status: 200, type, body };
      }
      case '/healthz':
        return { status: 200, body: { alive: true } };
      case '/readyz': {
        const missing = await this.#deps.missing();
        const ready = missing.length === 0;
        return { status: ready ? 200 : 503, body: { ready, missing } };
      }
      default:
        return this.#receipt(await readJson(request));
    }
  }

  async #receipt(fields: Readonly<Record<string, unknown>>): Promise<Answer> {
    const answer = receiptAnswer(await settleReport(this.#deps, readReport(fields, 'units')));
    this.#deps.meter.count('earmark_receipts_total', { status: String(answer.status) });
    return answer;
  }
}

function statusOf(error: unknown): number {
  if (error instanceof Refused) return error.status;
  if (error instanceof FieldError) return 400;
  return error instanceof LedgerUnavailable ? 503 : 500;
}

function receiptAnswer(outcome: Outcome): Answer {
  if (outcome.kind === 'moved' || outcome.kind === 'same') {
    return {
      status: 200,
      body: { moved: outcome.kind === 'moved', receipt: outcome.receipt ?? null },
    };
  }
  if (outcome.kind === 'limited') throw new Error('a settlement was limited');
  const { why, detail, receipt } = outcome;
  const status = why === 'not-found' ? 404 : why === 'invalid' ? 400 : 409;
  const message = refusalMessage(why, detail);
  return { status, body: { error: { message, field: null }, receipt: receipt ?? null } };
}

async function readJson(request: IncomingMessage): Promise<Readonly<Record<string, unknown>>> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > HTTP_BODY_BYTES_MAX) {
      throw new Refused(413, `the body is longer than ${HTTP_BODY_BYTES_MAX} bytes`);
    }
    chunks.push(chunk);
  }
  let value: unknown;
  try {
    value = JSON.parse(Buffer.concat(chunks).toString());
  } catch {
    throw new Refused(400, 'the body is no JSON: send {"reservation", "operation", "units"}');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new Refused(
      400,
      'the body is no JSON object: send {"reservation", "operation", "units"}',
    );
  }
  return value as Record<string, unknown>;
}
