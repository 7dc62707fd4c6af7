/** An Envoy that dies with requests under way: what it had sent is known to nobody, and not forgotten. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { post, ScriptedBackend, startEnvoy } from '../support/envoy.js';
import { until } from '../support/until.js';
import { isReady, World } from './world.js';

const POLICY = `schema: admissionBudget.v1
generation: 1
unmatched: refuse
budgets:
  - route: chat
    subject: request.headers["x-tenant"]
    burst: 10000
    usageDeadline: 2s
    estimate: { fixed: 600 }
`;

test('killed with requests under way: unknown at the deadline, until a receipt comes', async () => {
  const world = new World();
  onTestFinished(() => world.end());
  writeFileSync(join(world.folder, 'policy.yaml'), POLICY);
  const server = await world.redis('server');
  const socket = `unix:${join(world.folder, 'envoy.sock')}`;
  const listen = { envoy: socket, admin: '127.0.0.1:0' };
  const earmark = await world.serve({ url: `unix:${server.socket}` }, { listen });
  await isReady(earmark);
  const backend = new ScriptedBackend();
  onTestFinished(() => backend.stop());
  // Nobody is answered.
  backend.script = () => {};
  const { http1: upstream } = await backend.listen();
  const settings = {
    folder: world.folder,
    upstream,
    protocol: 'http/1.1',
    earmark: socket,
  } as const;
  const first = await startEnvoy({ ...settings, name: 'first' });
  onTestFinished(() => first.stop());
  const headers = { 'x-tenant': 'acme', 'content-type': 'application/json' };
  const body = JSON.stringify({ model: 'm', messages: [] });
  const sent = Array.from({ length: 3 }, () =>
    post(Number(first.port), headers, body).catch(() => 'broken'),
  );
  await until(() => backend.seen.length === 3, 'three are under way');
  await first.stop();
  expect(await Promise.all(sent)).toEqual(['broken', 'broken', 'broken']);

  const ledger = await world.ledger(server);
  const known = backend.seen.map(({ headers: seen }) => ({
    reservation: String(seen['x-earmark-reservation']),
    operation: String(seen['x-earmark-operation']),
  }));
  const state = async (n: number) => (await ledger.get(known[n]!.reservation))?.receipt.state;
  for (const n of [0, 1, 2]) {
    await until(
      async () => (await state(n)) === 'USAGE_UNKNOWN',
      `request ${n} is unknown`,
      15_000,
    );
  }
  expect(await world.sums(ledger, 'acme')).toMatchObject({
    reserved: 1800,
    spent: 0,
    problems: [],
  });
  // The backend knows.
  const receipt = JSON.stringify({ ...known[0], units: 200 });
  const url = `http://${earmark.admin}/v1/receipts`;
  expect((await fetch(url, { method: 'POST', body: receipt })).status).toBe(200);
  expect(await world.sums(ledger, 'acme')).toMatchObject({ reserved: 1200, spent: 200 });

  // And the next Envoy goes on.
  backend.script = (_request, response) => {
    response.setHeader('content-type', 'application/json');
    response.end(
      JSON.stringify({ usage: { prompt_tokens: 3, completion_tokens: 4, total_tokens: 7 } }),
    );
  };
  const second = await startEnvoy({ ...settings, name: 'second' });
  onTestFinished(() => second.stop());
  expect(await post(Number(second.port), headers, body)).toMatchObject({ status: 200 });
  await until(async () => (await world.sums(ledger, 'acme')).spent === 207, 'it is booked');
}, 60_000);
