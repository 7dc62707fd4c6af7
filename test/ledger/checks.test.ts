/** The record of a Check by its request ID, for log entries that come without our metadata. */
import { expect, it } from 'vitest';
import { DEADLINE, type Line, onEachServer } from '../support/ledger.js';

onEachServer('a Check', (bench) => {
  let drawn = 0;
  const fresh = () => `request ${++drawn}`;

  function check(line: Line, requestId: string, key: string, operation: string, attempt = 1) {
    const announce = { requestId, methodPath: 'POST /v1/chat' };
    return bench.ledger.admit({ ...line.request(key, 1, { attempt, announce }), operation });
  }

  it('is found by request ID, method and path', async () => {
    const line = bench.line();
    const id = fresh();
    await check(line, id, 'a', 'op');
    const found = { reservation: line.id('a'), operation: 'op' };
    expect(await bench.ledger.findCheck(id, 'POST /v1/chat')).toEqual(found);
    expect(await bench.ledger.findCheck(id, 'GET /v1/chat')).toBeUndefined();
    expect(await bench.ledger.findCheck(fresh(), 'POST /v1/chat')).toBeUndefined();
  });

  it('is recorded also where it was refused: a lost answer may have been an OK', async () => {
    const line = bench.line();
    const id = fresh();
    await check(line, id, 'a', 'op');
    const refused = fresh();
    const announce = { requestId: refused, methodPath: 'POST /v1/chat' };
    await bench.ledger.admit({ ...line.request('b', 5000, { announce }), operation: 'op b' });
    const found = { reservation: line.id('b'), operation: 'op b' };
    expect(await bench.ledger.findCheck(refused, 'POST /v1/chat')).toEqual(found);
  });

  it('of two with the same request ID neither is found', async () => {
    const [one, other] = [bench.line(), bench.line()];
    const id = fresh();
    await check(one!, id, 'a', 'op 1');
    await check(other!, id, 'a', 'op 2');
    expect(await bench.ledger.findCheck(id, 'POST /v1/chat')).toBeUndefined();
  });

  it('that goes on to the next attempt is found with that', async () => {
    const line = bench.line();
    await line.reserve('a', 1);
    await line.release('a');
    const id = fresh();
    await check(line, id, 'a', 'op');
    await check(line, id, 'a', 'op', 2);
    const found = { reservation: line.id('a', 2), operation: 'op' };
    expect(await bench.ledger.findCheck(id, 'POST /v1/chat')).toEqual(found);
  });

  it('is forgotten an hour after the usage deadline', async () => {
    const line = bench.line();
    const id = fresh();
    await check(line, id, 'a', 'op');
    const ms = await bench.redis.pttl(bench.ledger.keys.request(id));
    expect(ms).toBeLessThanOrEqual(DEADLINE + 3_600_000);
    expect(ms).toBeGreaterThan(DEADLINE + 3_500_000);
  });

  it('is recorded when the server forgot its scripts, too', async () => {
    const line = bench.line();
    await bench.redis.script('FLUSH');
    const id = fresh();
    await check(line, id, 'a', 'op');
    expect((await bench.ledger.findCheck(id, 'POST /v1/chat'))?.operation).toBe('op');
  });
});
