import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { DemoBackend } from '../../src/demo/backend.js';
import { bootstrap, startEnvoy, type Upstream } from '../../src/demo/envoy.js';
import { ProcessGroup } from '../../src/demo/process.js';
import { envoyBinary } from '../support/binaries.js';

let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'earmark-envoy-'));
});

afterEach(() => rmSync(folder, { recursive: true }));

function validate(file: string): string {
  const args = ['--mode', 'validate', '-c', file];
  return execFileSync(envoyBinary(), args, { encoding: 'utf8', stdio: 'pipe' });
}

test('Envoy takes envoy/sidecar.yaml as it stands', () => {
  const file = fileURLToPath(new URL('../../envoy/sidecar.yaml', import.meta.url));
  expect(validate(file)).toContain('OK');
});

const upstreams: Upstream[] = [
  { host: '127.0.0.1', port: 8080, protocol: 'http/1.1', tls: false },
  { host: '127.0.0.1', port: 8080, protocol: 'http/2', tls: false },
  { host: 'llm.example', port: 443, protocol: 'http/1.1', tls: true },
];

test.each(upstreams)('and with the addresses of $host over $protocol', (upstream) => {
  const file = join(folder, 'envoy.yaml');
  const text = bootstrap(upstream, '/run/earmark.sock');
  for (const fixed of ['8080', '9901', '10000', '9191']) {
    if (fixed !== String(upstream.port)) expect(text).not.toContain(`port_value: ${fixed}`);
  }
  writeFileSync(file, text);
  expect(validate(file)).toContain('OK');
});

test.each(['http/1.1', 'http/2'] as const)(
  'it reaches a backend that speaks %s, but not without an earmark',
  async (protocol) => {
    const backend = await DemoBackend.start();
    const processes = new ProcessGroup(folder);
    try {
      const port = protocol === 'http/2' ? backend.http2Port : backend.port;
      const upstream = { host: '127.0.0.1', port, protocol, tls: false };
      const envoy = await startEnvoy('a', processes, upstream, join(folder, 'nobody.sock'));
      const models = await fetch(`http://127.0.0.1:${envoy}/v1/models`);
      expect(models.status).toBe(200);
      const chat = await fetch(`http://127.0.0.1:${envoy}/v1/chat/completions`, { method: 'POST' });
      expect(chat.status).toBe(503);
      expect(backend.executions).toEqual([]);
    } finally {
      await processes.end();
      backend.stop();
    }
  },
);
