import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { bootstrap, type Upstream } from '../../src/demo/envoy.js';
import { envoyBinary } from '../support/binaries.js';

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
  const folder = mkdtempSync(join(tmpdir(), 'earmark-envoy-'));
  try {
    const file = join(folder, 'envoy.yaml');
    const text = bootstrap(upstream, '/run/earmark.sock');
    for (const fixed of ['8080', '9901', '10000', '9191']) {
      if (fixed !== String(upstream.port)) expect(text).not.toContain(`port_value: ${fixed}`);
    }
    writeFileSync(file, text);
    expect(validate(file)).toContain('OK');
  } finally {
    rmSync(folder, { recursive: true });
  }
});
