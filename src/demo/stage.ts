/** Three gateways (an Envoy with its earmark), one ledger, and a client to ask them. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Audit, type AuditBook, type AuditLine, DemoEarmark, earmark } from './earmark.js';
import { startEnvoy, type Upstream } from './envoy.js';
import { eventually, ProcessGroup } from './process.js';

/** No scene waits longer for an answer. */
const ANSWER_MS_MAX = 60_000;

/** How long a log entry may take until the ledger shows it. */
const BOOKED_MS_MAX = 8_000;

export interface Gateway {
  readonly name: string;
  readonly earmark: DemoEarmark;
  /** Of its Envoy, for clients. */
  readonly port: number;
}

/** A chat completion to ask for. */
export interface Question {
  readonly tenant: string;
  readonly key: string;
  readonly model?: string;
  readonly text?: string;
  readonly stream?: boolean;
  /** What the demo's backend is to do, by header: { tokens: 200 } is x-demo-tokens. */
  readonly wish?: Readonly<Record<string, string | number>>;
  readonly signal?: AbortSignal;
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

/** What `earmark audit` says of one line, its books added up. */
export class Account {
  readonly line: AuditLine;

  constructor(line: AuditLine) {
    this.line = line;
  }

  total(counter: keyof AuditBook): number {
    return this.line.books.reduce((sum, book) => sum + book[counter], 0);
  }

  reservations(state: string): number {
    return this.line.reservations[state] ?? 0;
  }
}

export class Stage {
  readonly gateways: Gateway[] = [];
  readonly #model: string;
  readonly #processes = new ProcessGroup(mkdtempSync(join(tmpdir(), 'earmark-demo-')));

  constructor(model: string) {
    this.#model = model;
  }

  /** Opens a gateway before each upstream. The first one's earmark owns the ledger. */
  async open(upstreams: readonly Upstream[]): Promise<void> {
    const data = join(this.#processes.folder, 'ledger');
    const shared = { url: `unix:${join(data, 'ledger.sock')}` };
    for (const [index, upstream] of upstreams.entries()) {
      const name = String.fromCharCode('a'.charCodeAt(0) + index);
      const ledger = index === 0 ? { data } : shared;
      const earmark = await DemoEarmark.start(name, this.#processes, ledger);
      const port = await startEnvoy(name, this.#processes, upstream, earmark.socket);
      this.gateways.push({ name, earmark, port });
    }
  }

  /** Ends every process, the owner of the ledger last, and takes the folder away. */
  async close(): Promise<void> {
    await this.#processes.end();
    rmSync(this.#processes.folder, { recursive: true, force: true });
  }

  /** The end of each process' log. */
  logs(): string {
    return this.#processes.lastLines(8);
  }

  /** Sends a chat completion and waits for its headers. */
  async send(gateway: Gateway, question: Question): Promise<Response> {
    const wishes = Object.entries(question.wish ?? {});
    const key = process.env.OPENAI_API_KEY;
    const stream = question.stream ?? false;
    const text = question.text ?? 'What is an earmark? Answer in one sentence.';
    return fetch(`http://127.0.0.1:${gateway.port}/v1/chat/completions`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'x-tenant': question.tenant,
        'idempotency-key': question.key,
        ...(key ? { authorization: `Bearer ${key}` } : {}),
        ...Object.fromEntries(wishes.map(([name, value]) => [`x-demo-${name}`, String(value)])),
      },
      body: JSON.stringify({
        model: question.model ?? this.#model,
        messages: [{ role: 'user', content: text }],
        max_tokens: 60,
        ...(stream ? { stream, stream_options: { include_usage: true } } : {}),
      }),
      signal: question.signal ?? AbortSignal.timeout(ANSWER_MS_MAX),
    });
  }

  /** Sends a chat completion and reads the whole answer. */
  async ask(gateway: Gateway, question: Question): Promise<Answer> {
    const response = await this.send(gateway, question);
    return { status: response.status, headers: response.headers, text: await response.text() };
  }

  async audit(): Promise<Audit> {
    return (await earmark(this.gateways[0]!.earmark.config, 'audit')) as Audit;
  }

  async account(tenant: string, route = 'chat'): Promise<Account | undefined> {
    const { lines } = await this.audit();
    const line = lines.find((l) => l.subject === tenant && l.route === route && !l.shadow);
    return line && new Account(line);
  }

  /** The account once it is as awaited, or as it is when that takes too long. */
  async accountOnce(
    tenant: string,
    awaited: (account: Account) => boolean,
    route = 'chat',
  ): Promise<Account> {
    const end = performance.now() + BOOKED_MS_MAX;
    return eventually(`an account of ${tenant}`, async () => {
      const account = await this.account(tenant, route);
      return account && (awaited(account) || performance.now() > end) ? account : undefined;
    });
  }

  /** A reservation's state as `earmark reservation show` prints it. */
  async state(reservation: string): Promise<string> {
    const { config } = this.gateways[0]!.earmark;
    const shown = (await earmark(config, 'reservation', 'show', reservation)) as { state?: string };
    return String(shown.state);
  }

  async stateOnce(reservation: string, awaited: string): Promise<string> {
    const end = performance.now() + BOOKED_MS_MAX;
    return eventually(`a state of ${reservation}`, async () => {
      const state = await this.state(reservation);
      return state === awaited || performance.now() > end ? state : undefined;
    });
  }
}
