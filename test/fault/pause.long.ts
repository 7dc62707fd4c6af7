/** Long waits, for whoever has the time: EARMARK_LONG=1. */
import { expect, onTestFinished, test } from 'vitest';
import { isReady, World } from './world.js';

test('a server that stands still for thirty seconds', async () => {
  const world = new World();
  onTestFinished(() => world.end());
  const server = await world.redis('server');
  const earmark = await world.serve({ url: `unix:${server.socket}` });
  await isReady(earmark);
  const client = world.client(earmark);
  const load = world.load('tenant', () => client);
  await load.passes(20);
  const refused = load.counts[503] ?? 0;
  server.process.kill('SIGSTOP');
  await new Promise((resolve) => setTimeout(resolve, 30_000));
  server.process.kill('SIGCONT');
  expect(load.counts[503]! - refused).toBeGreaterThan(20);
  await load.passes(20);
  await load.stop();
  expect(Object.keys(load.counts).sort()).toEqual(['0', '503']);
  await load.settles(await world.ledger(server));
}, 120_000);
