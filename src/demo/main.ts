/** `npm run demo`: earmark as a story. Exit code 1: something was not as it should be. */
import { parseArgs } from 'node:util';
import { DemoBackend } from './backend.js';
import type { Upstream } from './envoy.js';
import { SCENES } from './scenes.js';
import { playBeforeAny } from './scenes-any.js';
import { Stage } from './stage.js';
import { createTeller, type Teller } from './teller.js';

const USAGE = `npm run demo -- [--keep] [--backend URL [--model NAME]]

  --keep         leave everything running afterwards, and print lines to try
  --backend URL  put it before an OpenAI-compatible server (http://127.0.0.1:11434 for Ollama);
                 OPENAI_API_KEY is sent as a bearer token where it is set
  --model NAME   the model to ask there; the first of its /v1/models where left out
`;

interface Options {
  readonly keep: boolean;
  readonly backend: URL | undefined;
  readonly model: string | undefined;
}

function readOptions(args: readonly string[]): Options | string {
  try {
    const { values } = parseArgs({
      args: [...args],
      options: {
        keep: { type: 'boolean', default: false },
        backend: { type: 'string' },
        model: { type: 'string' },
        help: { type: 'boolean', default: false },
      },
    });
    if (values.help) return USAGE;
    const backend = values.backend === undefined ? undefined : backendUrl(values.backend);
    if (values.model !== undefined && backend === undefined) {
      throw new Error('--model needs --backend: the demo has only its own model');
    }
    return { keep: values.keep, backend, model: values.model };
  } catch (error) {
    return `demo: ${message(error)}\n\n${USAGE}`;
  }
}

function backendUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url && /^https?:$/.test(url.protocol) && /^(\/v1)?\/?$/.test(url.pathname)) return url;
  throw new Error(`--backend ${text}: give http(s)://host:port of a server that has /v1 below it`);
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** The demo's backend in each of its protocols, or the user's for all gateways. */
function upstreams(options: Options, backend: DemoBackend): readonly Upstream[] {
  const { backend: url } = options;
  if (url !== undefined) {
    const tls = url.protocol === 'https:';
    const port = Number(url.port) || (tls ? 443 : 80);
    const upstream = { host: url.hostname, port, protocol: 'http/1.1', tls } as const;
    return [upstream, upstream, upstream];
  }
  const http1 = {
    host: '127.0.0.1',
    port: backend.port,
    protocol: 'http/1.1',
    tls: false,
  } as const;
  const http2 = { ...http1, port: backend.http2Port, protocol: 'http/2' } as const;
  return [http1, http2, http1];
}

async function firstModel(url: URL): Promise<string> {
  const key = process.env.OPENAI_API_KEY;
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const models = new URL('/v1/models', url);
  const answer = await fetch(models, { headers }).catch((error: Error) => {
    const why = (error.cause as { code?: string } | undefined)?.code ?? error.message;
    throw new Error(`nothing answers at ${url} (${why}): start the server, or correct --backend`);
  });
  const text = await answer.text();
  const id = firstIdOf(text);
  if (id !== undefined) return id;
  const said = `${answer.status} ${text.slice(0, 200)}`.trim();
  throw new Error(`${models} names no model (${said}): give one by --model NAME`);
}

function firstIdOf(text: string): string | undefined {
  try {
    const { data } = JSON.parse(text) as { data?: readonly { id?: unknown }[] };
    const id = data?.[0]?.id;
    return typeof id === 'string' ? id : undefined;
  } catch {
    return undefined;
  }
}

async function playAll(stage: Stage, backend: DemoBackend, tell: Teller): Promise<void> {
  for (const scene of SCENES) {
    // Once something is wrong, what follows says no more than the books.
    if (tell.failed > 0 && scene !== SCENES.at(-1)) continue;
    tell.title(scene.title);
    try {
      await scene.play({ stage, backend, tell });
    } catch (error) {
      tell.check(`the scene comes to its end: ${message(error)}`, false);
    }
  }
}

function linesToTry(stage: Stage, model: string): string {
  const [a] = stage.gateways;
  const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }] });
  return `
Everything still runs; Ctrl-C ends it. Gateways: ${stage.gateways.map((g) => `127.0.0.1:${g.port}`).join(', ')}

  curl -i http://127.0.0.1:${a!.port}/v1/chat/completions -H 'content-type: application/json' \\
    -H 'x-tenant: you' -H 'idempotency-key: 1' -H 'x-demo-tokens: 200' -d '${body}'

  # the same line again: 409. Another key: admitted, or refused once 1,000 tokens are gone.
  curl http://${a!.earmark.admin}/metrics
  node dist/main.js audit --config ${a!.earmark.config}
`;
}

/** Resolves at Ctrl-C or SIGTERM; a second one changes nothing. */
function untilToldToEnd(): Promise<void> {
  return new Promise((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => resolve());
  });
}

async function run(options: Options): Promise<number> {
  const tell = createTeller((text) => process.stdout.write(text), process.stdout.isTTY);
  const started = performance.now();
  const model = options.model ?? (options.backend ? await firstModel(options.backend) : 'demo');
  const backend = await DemoBackend.start();
  const stage = new Stage(model);
  const told = untilToldToEnd().then(() => 'told' as const);
  const story = async (): Promise<void> => {
    tell.say('Three Envoys, an earmark beside each, one ledger behind them all.');
    await stage.open(upstreams(options, backend));
    if (options.backend) await playBeforeAny(stage, tell);
    else await playAll(stage, backend, tell);
  };
  try {
    if ((await Promise.race([story(), told])) === 'told') return 130;
    const seconds = ((performance.now() - started) / 1000).toFixed(0);
    if (tell.failed > 0) {
      process.stderr.write(`\n${stage.logs()}\n`);
      process.stdout.write(
        `\n${tell.failed} of ${tell.passed + tell.failed} not as they should be\n`,
      );
    } else {
      process.stdout.write(`\nAll ${tell.passed} as they should be, in ${seconds} s.\n`);
    }
    if (options.keep) {
      process.stdout.write(linesToTry(stage, model));
      await told;
    }
    return tell.failed > 0 ? 1 : 0;
  } finally {
    await stage.close();
    backend.stop();
  }
}

const options = readOptions(process.argv.slice(2));
if (typeof options === 'string') {
  const asked = options === USAGE;
  (asked ? process.stdout : process.stderr).write(options);
  process.exit(asked ? 0 : 2);
}
try {
  process.exit(await run(options));
} catch (error) {
  process.stderr.write(`demo: ${message(error)}\n`);
  process.exit(1);
}
