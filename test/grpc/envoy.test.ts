/** Envoy's services when something is wrong: a call is answered, a stream goes on, nothing falls over. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Client, credentials, type ServiceError, status } from '@grpc/grpc-js';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type { CheckCall, CheckRequest } from '../../src/envoy/types.js';
import { ENVOY_PROTOS, envoyServices } from '../../src/grpc/envoy.js';
import { GrpcServer } from '../../src/grpc/server.js';
import type { LogEntry } from '../../src/settle/types.js';
import { envoyBytes } from '../support/envoy-messages.js';
import { keep } from '../support/quiet.js';
import { until } from '../support/until.js';

const kept = keep();
const entries: LogEntry[] = [];
const calls: CheckCall[] = [];
let answerWith: (request: CheckRequest) => Promise<never> | never;
let folder: string;
let server: GrpcServer;
let client: Client;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'earmark-grpc-'));
  const services = envoyServices({
    check: (request, call) => {
      calls.push(call);
      return answerWith(request);
    },
    accept: (entry) => entries.push(entry),
    ...{ meter: kept, log: kept },
  });
  // Reflection finds the messages under proto/.
  server = new GrpcServer(services, ENVOY_PROTOS);
  client = new Client(
    await server.listen(`unix:${join(folder, 's')}`),
    credentials.createInsecure(),
  );
});
afterAll(async () => {
  client.close();
  await server.stop(1000);
  rmSync(folder, { recursive: true });
});
beforeEach(() => {
  entries.length = 0;
  calls.length = 0;
});

const same = (value: Buffer): Buffer => value;

function unary(path: string, bytes: Buffer, deadline = 5000): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const options = { deadline: Date.now() + deadline };
    client.makeUnaryRequest(path, same, same, bytes, options, (error, answer) =>
      error ? reject(error) : resolve(answer!),
    );
  });
}

const CHECK = '/envoy.service.auth.v3.Authorization/Check';
const LOGS = '/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs';
const logs = (requestId: string) =>
  envoyBytes('envoy.service.accesslog.v3.StreamAccessLogsMessage', {
    http_logs: { log_entry: [{ request: { request_id: requestId } }] },
  });

const ERROR_RESPONSE = (5 << 3) | 2;

/** Steps over the status, and says which kind of answer stands behind it. */
const kindOf = (answer: Buffer): number => answer[2 + answer[1]!]!;

test('bytes that are no CheckRequest get an error_response', async () => {
  const answer = await unary(CHECK, Buffer.from([0x0a, 0xff]));
  expect(kindOf(answer)).toBe(ERROR_RESPONSE);
  expect(answer.toString()).toContain('could not read the request');
  expect(calls).toEqual([]);
});

test.each([
  [
    'throws',
    () => {
      throw new Error('a bug');
    },
  ],
  [
    'rejects',
    async () => {
      throw new Error('a bug');
    },
  ],
] as const)('a handler that %s too', async (_how, fails) => {
  answerWith = fails;
  const answer = await unary(CHECK, Buffer.alloc(0));
  expect(kindOf(answer)).toBe(ERROR_RESPONSE);
  expect(answer.toString()).not.toContain('a bug');
  expect(kept.lines.at(-1)).toMatch(/^error /);
});

test('the handler knows the deadline, and whether the call was cancelled', async () => {
  answerWith = () => new Promise(() => {});
  const before = Date.now();
  await expect(unary(CHECK, Buffer.alloc(0), 300)).rejects.toThrow(/DEADLINE/);
  const [call] = calls;
  expect(call!.deadline).toBeGreaterThan(before + 100);
  expect(call!.deadline).toBeLessThan(before + 600);
  await until(() => call!.cancelled(), 'the call is cancelled');
});

test('a message that can’t be read is counted, and the stream goes on', async () => {
  await new Promise<void>((resolve, reject) => {
    const stream = client.makeClientStreamRequest(LOGS, same, same, (error) =>
      error ? reject(error) : resolve(),
    );
    stream.write(logs('a'));
    stream.write(Buffer.from([0x12, 0xff]));
    stream.end(logs('b'));
  });
  expect(entries.map(({ requestId }) => requestId)).toEqual(['a', 'b']);
  expect(kept.metrics.get('earmark_evidence_total  unreadable')).toBe(1);
});

test('a stream that Envoy gives up does no harm', async () => {
  const stream = client.makeClientStreamRequest(LOGS, same, same, () => {});
  stream.on('error', () => {});
  stream.write(logs('c'));
  await until(() => entries.length === 1, 'the entry is read');
  stream.cancel();
  await new Promise<void>((resolve) => {
    const next = client.makeClientStreamRequest(LOGS, same, same, () => resolve());
    next.end(logs('d'));
  });
  expect(entries.map(({ requestId }) => requestId)).toEqual(['c', 'd']);
});

test('ShouldRateLimit says that it is not built, and what to use', async () => {
  const path = '/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit';
  const error = await unary(path, Buffer.alloc(0)).catch((failed: ServiceError) => failed);
  expect(error).toMatchObject({ code: status.UNIMPLEMENTED });
  expect((error as ServiceError).details).toContain('ext_authz');
});
