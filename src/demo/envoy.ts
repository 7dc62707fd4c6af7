/** A real Envoy of the demo: envoy/sidecar.yaml with other addresses. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { rootCertificates } from 'node:tls';
import { fileURLToPath } from 'node:url';
import { parse, stringify } from 'yaml';
import { eventually, type ProcessGroup } from './process.js';

const SIDECAR = fileURLToPath(new URL('../../envoy/sidecar.yaml', import.meta.url));
const INSTALLED = fileURLToPath(new URL('../../.tools/venv/bin/envoy', import.meta.url));

/** Where an Envoy sends what earmark admitted. */
export interface Upstream {
  readonly host: string;
  readonly port: number;
  readonly protocol: 'http/1.1' | 'http/2';
  readonly tls: boolean;
}

// biome-ignore lint/suspicious/noExplicitAny: Envoy's own document, of which only addresses are touched
type Document = any;

function binary(): string {
  const folders = (process.env.PATH ?? '').split(delimiter);
  const candidates = [INSTALLED, ...folders.map((folder) => join(folder, 'envoy'))];
  const found = candidates.find((file) => existsSync(file));
  if (found !== undefined) return found;
  throw new Error('no envoy in .tools or on PATH: run `node test/setup.mjs install`');
}

function setAddress(cluster: Document, address: object): void {
  cluster.load_assignment.endpoints[0].lb_endpoints[0].endpoint.address = address;
}

/** The sidecar's bootstrap at ports that the kernel picks, before this upstream, beside this earmark. */
export function bootstrap(upstream: Upstream, earmarkSocket: string): string {
  const document: Document = parse(readFileSync(SIDECAR, 'utf8'));
  document.admin.address.socket_address.port_value = 0;
  const { listeners, clusters } = document.static_resources;
  listeners[0].address.socket_address.port_value = 0;
  const [backend, earmark] = clusters;
  setAddress(backend, { socket_address: { address: upstream.host, port_value: upstream.port } });
  setAddress(earmark, { pipe: { path: earmarkSocket } });
  const options = 'envoy.extensions.upstreams.http.v3.HttpProtocolOptions';
  if (upstream.protocol === 'http/2') {
    backend.typed_extension_protocol_options[options].explicit_http_config = {
      http2_protocol_options: {},
    };
  }
  if (upstream.tls) {
    const type = 'type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext';
    const trusted = { trusted_ca: { inline_string: rootCertificates.join('\n') } };
    const context = {
      '@type': type,
      sni: upstream.host,
      auto_sni_san_validation: true,
      common_tls_context: { validation_context: trusted },
    };
    backend.transport_socket = { name: 'envoy.transport_sockets.tls', typed_config: context };
  }
  if (upstream.host !== '127.0.0.1') {
    const { virtual_hosts } = listeners[0].filter_chains[0].filters[0].typed_config.route_config;
    for (const { route } of virtual_hosts[0].routes) route.host_rewrite_literal = upstream.host;
  }
  return stringify(document, { aliasDuplicateObjects: false });
}

/** Envoy says which port its admin interface got in a file, and its listeners' ports there. */
async function listenerPort(adminFile: string): Promise<number | undefined> {
  if (!existsSync(adminFile)) return undefined;
  const admin = readFileSync(adminFile, 'utf8').trim();
  try {
    const answer = await fetch(`http://${admin}/listeners?format=json`);
    const { listener_statuses } = (await answer.json()) as Document;
    return listener_statuses?.[0]?.local_address?.socket_address?.port_value;
  } catch {
    return undefined;
  }
}

/** Starts one, waits until it listens and says where. */
export async function startEnvoy(
  name: string,
  processes: ProcessGroup,
  upstream: Upstream,
  earmarkSocket: string,
): Promise<number> {
  const config = join(processes.folder, `envoy-${name}.yaml`);
  const adminFile = join(processes.folder, `envoy-${name}.admin`);
  writeFileSync(config, bootstrap(upstream, earmarkSocket));
  const own = ['--disable-hot-restart', '--concurrency', '1', '--log-level', 'warn'];
  const args = ['-c', config, '--admin-address-path', adminFile, ...own];
  const process = processes.start(`envoy ${name}`, binary(), args);
  return eventually(`envoy ${name} listens`, () => {
    process.mustRun();
    return listenerPort(adminFile);
  });
}
