/** envoy/sidecar.yaml with routes and clusters on which a request can come to any of its endings. */

// biome-ignore lint/suspicious/noExplicitAny: Envoy's own document
type Document = any;

const TYPES = 'type.googleapis.com/envoy.extensions';
const HTTP = 'envoy.extensions.upstreams.http.v3.HttpProtocolOptions';
const FAULT = 'envoy.filters.http.fault';
const AUTHZ = 'envoy.filters.http.ext_authz';

const ALWAYS = { numerator: 100, denominator: 'HUNDRED' };
const RETRY = { retry_on: '5xx,connect-failure', num_retries: 2 };
const HTTP2 = { explicit_http_config: { http2_protocol_options: {} } };
const CONTEXT = { context_extensions: { route: 'chat' } };
/** A Check after the first bytes of a body. */
const SOON = {
  with_request_body: { max_request_bytes: 8, allow_partial_message: true, pack_as_bytes: true },
};

/** What a route does, by the first part of its path; `backend` where it names no cluster. */
const ROUTES: Readonly<Record<string, Document>> = {
  '/h1': { route: {} },
  '/h2': { route: { cluster: 'h2' } },
  '/soon': { route: {}, check: { ...CONTEXT, ...SOON } },
  '/dead': { route: { cluster: 'dead' } },
  '/blackhole': { route: { cluster: 'blackhole' } },
  '/empty': { route: { cluster: 'empty' } },
  '/nocluster': { route: { cluster: 'nowhere' } },
  '/timeout/h1': { route: { timeout: '0.5s' } },
  '/timeout/h2': { route: { timeout: '0.5s', cluster: 'h2' } },
  '/timeout/neverread': { route: { timeout: '0.5s', cluster: 'neverread' } },
  '/idle': { route: { idle_timeout: '0.5s' } },
  '/duration/route': { route: { max_stream_duration: { max_stream_duration: '0.5s' } } },
  '/duration/cluster': { route: { cluster: 'limited' } },
  '/retry': { route: { retry_policy: RETRY } },
  '/readrst': { route: { cluster: 'readrst' } },
  '/garbage': { route: { cluster: 'garbage' } },
  '/fault': { route: {}, fault: { abort: { http_status: 503, percentage: ALWAYS } } },
  '/rate': {
    route: {
      rate_limits: [
        { actions: [{ request_headers: { header_name: 'x-rate', descriptor_key: 'rate' } }] },
      ],
    },
  },
  '/direct': { direct_response: { status: 200, body: { inline_string: 'ok' } } },
};

function routeOf(prefix: string, { route, check = CONTEXT, fault, ...rest }: Document): Document {
  const authz = { '@type': `${TYPES}.filters.http.ext_authz.v3.ExtAuthzPerRoute` };
  const faults = { '@type': `${TYPES}.filters.http.fault.v3.HTTPFault`, ...fault };
  return {
    match: { prefix },
    ...(route && { route: { cluster: 'backend', timeout: '60s', ...route } }),
    ...rest,
    typed_per_filter_config: {
      [AUTHZ]: { ...authz, check_settings: check },
      ...(fault && { [FAULT]: faults }),
    },
  };
}

/** Behind ext_authz, as the order of filters goes. */
const FILTERS = [
  {
    name: 'envoy.filters.http.ratelimit',
    typed_config: {
      '@type': `${TYPES}.filters.http.ratelimit.v3.RateLimit`,
      domain: 'test',
      timeout: '0.5s',
      failure_mode_deny: true,
      status_on_error: { code: 'ServiceUnavailable' },
      rate_limited_as_resource_exhausted: true,
      rate_limit_service: {
        transport_api_version: 'V3',
        grpc_service: { envoy_grpc: { cluster_name: 'door' } },
      },
    },
  },
  { name: FAULT, typed_config: { '@type': `${TYPES}.filters.http.fault.v3.HTTPFault` } },
];

/** In place: `ports` by cluster; the Checks and the rate-limit service go to `door`, the log to earmark itself. */
export function shape(document: Document, ports: Record<string, number>, door: string): void {
  const { listeners, clusters } = document.static_resources;
  const manager = listeners[0].filter_chains[0].filters[0].typed_config;
  const [authz] = manager.http_filters;
  authz.typed_config.grpc_service.envoy_grpc.cluster_name = 'door';
  manager.http_filters.splice(1, 0, ...FILTERS);
  manager.route_config.validate_clusters = false;
  manager.route_config.virtual_hosts[0].routes = Object.entries(ROUTES).map(([prefix, route]) =>
    routeOf(prefix, route),
  );

  const [backend, earmark] = clusters;
  const like = (cluster: Document, name: string, endpoints: object[]): Document => {
    const copy = structuredClone(cluster);
    const lb_endpoints = endpoints.map((address) => ({ endpoint: { address } }));
    const load_assignment = { cluster_name: name, endpoints: [{ lb_endpoints }] };
    const made = { ...copy, name, load_assignment };
    clusters.push(made);
    return made;
  };
  const at = (port: number) => [{ socket_address: { address: '127.0.0.1', port_value: port } }];
  for (const [name, port] of Object.entries(ports)) like(backend, name, at(port));
  const named = (name: string): Document => clusters.find((each: Document) => each.name === name);
  named('h2').typed_extension_protocol_options[HTTP] = {
    ...named('h2').typed_extension_protocol_options[HTTP],
    ...HTTP2,
  };
  named('blackhole').connect_timeout = '0.3s';
  like(backend, 'empty', []);
  const [{ endpoint }] = backend.load_assignment.endpoints[0].lb_endpoints;
  const limited = like(backend, 'limited', [endpoint.address]);
  limited.typed_extension_protocol_options[HTTP].common_http_protocol_options = {
    max_stream_duration: '0.5s',
  };
  like(earmark, 'door', [{ pipe: { path: door.slice('unix:'.length) } }]);
}
