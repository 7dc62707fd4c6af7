import { connect } from 'node:http2';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { DemoBackend } from '../../src/demo/backend.js';

let backend: DemoBackend;

beforeAll(async () => {
  backend = await DemoBackend.start();
});

afterAll(() => backend.stop());

const QUESTION = { model: 'demo', messages: [{ role: 'user', content: 'hello' }] };

function ask(
  body: unknown,
  headers: Record<string, string> = {},
  signal?: AbortSignal,
): Promise<Response> {
  return fetch(`http://127.0.0.1:${backend.port}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'x-earmark-reservation': 'rl-1', 'x-earmark-operation': 'op-1', ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
    ...(signal ? { signal } : {}),
  });
}

function chunksOf(text: string): unknown[] {
  const lines = text.split('\n\n').filter((line) => line !== '');
  expect(lines.at(-1)).toBe('data: [DONE]');
  return lines.slice(0, -1).map((line) => JSON.parse(line.replace('data: ', '')));
}

test('a JSON answer reports the usage that was wished for', async () => {
  const answer = await ask(QUESTION, { 'x-demo-tokens': '200' });
  expect(answer.headers.get('content-type')).toBe('application/json');
  const { usage, choices } = (await answer.json()) as { usage: object; choices: unknown[] };
  expect(usage).toEqual({ prompt_tokens: 16, completion_tokens: 184, total_tokens: 200 });
  expect(choices).toHaveLength(1);
  const { reservation, operation, end } = backend.executions.at(-1)!;
  expect({ reservation, operation, end }).toEqual({
    reservation: 'rl-1',
    operation: 'op-1',
    end: 'done',
  });
});

test('a stream ends with a chunk of usage alone, and [DONE]', async () => {
  const answer = await ask({ ...QUESTION, stream: true }, { 'x-demo-tokens': '321' });
  expect(answer.headers.get('content-type')).toBe('text/event-stream');
  const chunks = chunksOf(await answer.text()) as { choices: unknown[]; usage: object | null }[];
  expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { total_tokens: 321 } });
  expect(chunks.slice(0, -1).every((chunk) => chunk.usage === null)).toBe(true);
});

test('an idle connection outlives every demo: Envoy may send on it at any time', async () => {
  const seconds = /timeout=(\d+)/.exec((await ask(QUESTION)).headers.get('keep-alive') ?? '')?.[1];
  expect(Number(seconds)).toBeGreaterThan(600);
});

test('without usage nothing reports any', async () => {
  const whole = await ask(QUESTION, { 'x-demo-usage': 'none' });
  expect(await whole.json()).not.toHaveProperty('usage');
  const stream = await ask({ ...QUESTION, stream: true }, { 'x-demo-usage': 'none' });
  const chunks = chunksOf(await stream.text()) as { usage: object | null }[];
  expect(chunks.every((chunk) => chunk.usage === null)).toBe(true);
});

test('over HTTP/2 the usage can come in trailers', async () => {
  const session = connect(`http://127.0.0.1:${backend.http2Port}`);
  const request = session.request({
    ':method': 'POST',
    ':path': '/v1/chat/completions',
    'x-demo-usage': 'trailers',
    'x-demo-tokens': '150',
  });
  request.end(JSON.stringify(QUESTION));
  request.resume();
  const trailers = await new Promise((resolve) => request.once('trailers', resolve));
  session.close();
  expect(trailers).toMatchObject({
    'x-usage-input-tokens': '16',
    'x-usage-output-tokens': '134',
    'x-usage-total-tokens': '150',
  });
});

test('a stream is cut where it was wished for', async () => {
  const answer = await ask({ ...QUESTION, stream: true }, { 'x-demo-cut-after': '2' });
  await expect(answer.text()).rejects.toThrow();
  expect(backend.executions.at(-1)).toMatchObject({ chunks: 2, end: 'cut' });
});

test('a held answer waits for its release', async () => {
  let answered = false;
  const asked = ask(QUESTION, { 'x-demo-hold': 'door' }).then(() => {
    answered = true;
  });
  const before = backend.executions.length;
  while (backend.executions.length === before) await new Promise((done) => setTimeout(done, 5));
  await new Promise((done) => setTimeout(done, 50));
  expect(answered).toBe(false);
  backend.release('door');
  await asked;
});

test('a client that leaves is noticed', async () => {
  const leave = new AbortController();
  const wish = { 'x-demo-hold': 'never' };
  const answer = await ask({ ...QUESTION, stream: true }, wish, leave.signal);
  await answer.body!.getReader().read();
  leave.abort();
  const run = backend.executions.at(-1)!;
  while (run.end === 'running') await new Promise((done) => setTimeout(done, 5));
  expect(run.end).toBe('client left');
});

test('what is no chat completion is refused and not executed', async () => {
  const before = backend.executions.length;
  expect((await ask('not JSON')).status).toBe(400);
  expect((await fetch(`http://127.0.0.1:${backend.port}/v2`)).status).toBe(404);
  const models = await fetch(`http://127.0.0.1:${backend.port}/v1/models`);
  expect(await models.json()).toMatchObject({ data: [{ id: 'demo' }] });
  expect(backend.executions.length).toBe(before);
});
