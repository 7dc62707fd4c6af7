/** An LLM server without an LLM: chat completions as JSON and as a stream, and whatever end a request asks for. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createServer as createHttp2Server, type Http2Server } from 'node:http2';
import type { AddressInfo } from 'node:net';

const WORDS =
  'Every token that is promised is earmarked and every token that is used is booked'.split(' ');

/** How a request wants to be answered; each is a header, `x-demo-tokens` and so on. */
interface Wish {
  /** Tokens to report in all. */
  readonly tokens: number | undefined;
  /** ms before the answer, and before each chunk of a stream. */
  readonly delayMs: number;
  /** The connection breaks after so many chunks of a stream. */
  readonly cutAfter: number | undefined;
  /** The last part of the answer waits until `release(hold)`. */
  readonly hold: string;
  readonly usage: 'body' | 'trailers' | 'none';
}

interface ChatRequest {
  readonly model?: unknown;
  readonly stream?: unknown;
}

interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
}

/** One request that the backend really worked on. */
export interface Execution {
  readonly reservation: string;
  readonly operation: string;
  readonly usage: Usage;
  /** Chunks of a stream that were sent so far. */
  chunks: number;
  end: 'running' | 'done' | 'cut' | 'client left';
}

/** A door that requests wait at. */
interface Hold {
  readonly released: Promise<void>;
  readonly release: () => void;
}

/** Longer than any demo: Envoy keeps idle connections, and must not send on one that is closing just then. */
const KEEP_ALIVE_MS = 3_600_000;

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

function header(request: IncomingMessage, name: string): string {
  const value = request.headers[name];
  return typeof value === 'string' ? value : '';
}

function wishOf(request: IncomingMessage): Wish {
  const number = (name: string): number | undefined => {
    const text = header(request, name);
    return /^\d{1,9}$/.test(text) ? Number(text) : undefined;
  };
  const usage = header(request, 'x-demo-usage');
  return {
    tokens: number('x-demo-tokens'),
    delayMs: number('x-demo-delay-ms') ?? 0,
    cutAfter: number('x-demo-cut-after'),
    hold: header(request, 'x-demo-hold'),
    usage: usage === 'trailers' || usage === 'none' ? usage : 'body',
  };
}

function usageFor(bodyBytes: number, wish: Wish): Usage {
  const prompt = Math.ceil(bodyBytes / 4);
  const total = wish.tokens ?? prompt + WORDS.length;
  const input = Math.min(prompt, total);
  return { prompt_tokens: input, completion_tokens: total - input, total_tokens: total };
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  return Buffer.concat(parts);
}

function chatRequest(body: Buffer): ChatRequest | undefined {
  try {
    const value: unknown = JSON.parse(body.toString());
    return typeof value === 'object' && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Listens on two ports of 127.0.0.1: HTTP/1.1, and HTTP/2 in clear text. */
export class DemoBackend {
  /** In the order of arrival. */
  readonly executions: Execution[] = [];
  readonly #http1: Server;
  readonly #http2: Http2Server;
  readonly #holds = new Map<string, Hold>();

  private constructor() {
    const answer = (request: IncomingMessage, response: ServerResponse): void => {
      this.#answer(request, response).catch(() => response.destroy());
    };
    this.#http1 = createServer({ keepAliveTimeout: KEEP_ALIVE_MS }, answer);
    this.#http1.headersTimeout = KEEP_ALIVE_MS + 1000;
    // Node's own compatibility layer: same calls, other classes.
    this.#http2 = createHttp2Server(answer as never);
  }

  /** `port` is that of HTTP/1.1; 0: one that is free. */
  static async start(port = 0): Promise<DemoBackend> {
    const backend = new DemoBackend();
    for (const server of [backend.#http1, backend.#http2]) {
      server.listen(server === backend.#http1 ? port : 0, '127.0.0.1');
      await once(server, 'listening');
    }
    return backend;
  }

  get port(): number {
    return (this.#http1.address() as AddressInfo).port;
  }

  get http2Port(): number {
    return (this.#http2.address() as AddressInfo).port;
  }

  /** Lets every request that waits under this name finish, and those that come later. */
  release(hold: string): void {
    this.#hold(hold).release();
  }

  stop(): void {
    for (const hold of this.#holds.values()) hold.release();
    this.#http1.close();
    this.#http1.closeAllConnections();
    this.#http2.close();
  }

  #hold(name: string): Hold {
    let hold = this.#holds.get(name);
    if (hold === undefined) {
      hold = newHold();
      this.#holds.set(name, hold);
    }
    return hold;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = await bodyOf(request);
    if (request.method === 'GET' && request.url === '/v1/models') {
      return sendJson(response, 200, { object: 'list', data: [{ id: 'demo', object: 'model' }] });
    }
    if (request.method !== 'POST' || request.url !== '/v1/chat/completions') {
      return sendError(response, 404, 'only POST /v1/chat/completions and GET /v1/models are here');
    }
    const chat = chatRequest(body);
    if (chat === undefined) return sendError(response, 400, 'the body is no JSON object');
    const wish = wishOf(request);
    const execution: Execution = {
      reservation: header(request, 'x-earmark-reservation'),
      operation: header(request, 'x-earmark-operation'),
      usage: usageFor(body.length, wish),
      chunks: 0,
      end: 'running',
    };
    this.executions.push(execution);
    response.on('close', () => {
      if (execution.end === 'running') execution.end = 'client left';
    });
    await sleep(wish.delayMs);
    const model = typeof chat.model === 'string' ? chat.model : 'demo';
    if (chat.stream === true) await this.#stream(response, model, wish, execution);
    else await this.#whole(response, model, wish, execution);
  }

  async #whole(response: ServerResponse, model: string, wish: Wish, run: Execution): Promise<void> {
    if (wish.hold !== '') await this.#hold(wish.hold).released;
    if (wish.usage === 'trailers') response.setHeader('trailer', Object.keys(trailers(run.usage)));
    const message = { role: 'assistant', content: `${WORDS.join(' ')}.` };
    run.end = 'done';
    response.writeHead(200, { 'content-type': 'application/json' });
    response.write(
      JSON.stringify({
        id: `chatcmpl-${run.operation}`,
        object: 'chat.completion',
        model,
        choices: [{ index: 0, message, finish_reason: 'stop' }],
        ...(wish.usage === 'body' ? { usage: run.usage } : {}),
      }),
    );
    if (wish.usage === 'trailers') response.addTrailers(trailers(run.usage));
    response.end();
  }

  async #stream(
    response: ServerResponse,
    model: string,
    wish: Wish,
    run: Execution,
  ): Promise<void> {
    const chunk = (choices: readonly object[], usage: Usage | null): string => {
      const id = `chatcmpl-${run.operation}`;
      return `data: ${JSON.stringify({ id, object: 'chat.completion.chunk', model, choices, usage })}\n\n`;
    };
    if (wish.usage === 'trailers') response.setHeader('trailer', Object.keys(trailers(run.usage)));
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (const word of WORDS) {
      if (run.chunks === wish.cutAfter) {
        run.end = 'cut';
        response.destroy();
        return;
      }
      response.write(chunk([{ index: 0, delta: { content: `${word} ` } }], null));
      run.chunks++;
      await sleep(wish.delayMs);
      if (run.end === 'client left') return;
      if (wish.hold !== '' && run.chunks === 3) await this.#hold(wish.hold).released;
    }
    response.write(chunk([{ index: 0, delta: {}, finish_reason: 'stop' }], null));
    if (wish.usage === 'body') response.write(chunk([], run.usage));
    run.end = 'done';
    response.write('data: [DONE]\n\n');
    if (wish.usage === 'trailers') response.addTrailers(trailers(run.usage));
    response.end();
  }
}

function newHold(): Hold {
  let release = (): void => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  return { released, release };
}

function trailers(usage: Usage): Record<string, string> {
  return {
    'x-usage-input-tokens': String(usage.prompt_tokens),
    'x-usage-output-tokens': String(usage.completion_tokens),
    'x-usage-total-tokens': String(usage.total_tokens),
  };
}

function sendJson(response: ServerResponse, status: number, value: object): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(value));
}

function sendError(response: ServerResponse, status: number, message: string): void {
  sendJson(response, status, { error: { type: 'invalid_request_error', message, param: null } });
}
