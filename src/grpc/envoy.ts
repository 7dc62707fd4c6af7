/** The three services that Envoy calls, on lean codecs; what a handler decides is none of this file's business. */
import {
  type handleClientStreamingCall,
  type handleUnaryCall,
  type MethodDefinition,
  type ServiceDefinition,
  status,
} from '@grpc/grpc-js';
import { unavailable } from '../envoy/answer.js';
import type { CheckAnswer, CheckCall, CheckHandler } from '../envoy/types.js';
import type { LogEntry } from '../settle/types.js';
import type { Log, Meter } from '../telemetry/meter.js';
import { decodeCheckRequest, encodeCheckAnswer } from './codec.js';
import { decodeLogEntries } from './log-codec.js';
import type { Service } from './server.js';

/** What reflection shows of them. */
export const ENVOY_PROTOS = [
  'envoy/service/auth/v3/external_auth.proto',
  'envoy/service/accesslog/v3/als.proto',
  'envoy/service/ratelimit/v3/rls.proto',
];

export interface EnvoyHandlers {
  readonly check: CheckHandler;
  /** Never throws, never waits. */
  readonly accept: (entry: LogEntry) => void;
  readonly meter: Meter;
  readonly log: Log;
}

const bytes = (value: Buffer): Buffer => value;

/** Messages stay bytes until a handler decodes them: what can't be decoded is then answered, not a broken call. */
function method(path: string, requestStream: boolean): MethodDefinition<Buffer, Buffer> {
  return {
    path,
    requestStream,
    responseStream: false,
    requestSerialize: bytes,
    requestDeserialize: bytes,
    responseSerialize: bytes,
    responseDeserialize: bytes,
  };
}

const AUTHORIZATION: ServiceDefinition = {
  Check: method('/envoy.service.auth.v3.Authorization/Check', false),
};
const ACCESS_LOG: ServiceDefinition = {
  StreamAccessLogs: method('/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs', true),
};
const RATE_LIMIT: ServiceDefinition = {
  ShouldRateLimit: method('/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit', false),
};

const NOTHING = Buffer.alloc(0);

/** To be added to the server of `listen.envoy`. */
export function envoyServices(handlers: EnvoyHandlers): readonly Service[] {
  return [
    [AUTHORIZATION, { Check: checkCall(handlers) }],
    [ACCESS_LOG, { StreamAccessLogs: logCall(handlers) }],
    [RATE_LIMIT, { ShouldRateLimit: rateLimitCall }],
  ];
}

function checkCall({ check, log }: EnvoyHandlers): handleUnaryCall<Buffer, Buffer> {
  const answerTo = async (request: Buffer, call: CheckCall): Promise<CheckAnswer> => {
    try {
      return await check(decodeCheckRequest(request), call);
    } catch (error) {
      log.error({ err: error }, 'a CheckRequest could not be read');
      const message = 'this gateway could not read the request';
      return unavailable(message, { reservation: '' }, Math.random());
    }
  };
  return (call, answer) => {
    const deadline = call.getDeadline();
    const ms = typeof deadline === 'number' ? deadline : deadline.getTime();
    const cancelled = (): boolean => call.cancelled;
    answerTo(call.request, Number.isFinite(ms) ? { deadline: ms, cancelled } : { cancelled })
      .then((decided) => answer(null, encodeCheckAnswer(decided)))
      .catch((error: Error) => answer({ code: status.INTERNAL, details: error.message }));
  };
}

function logCall({ accept, meter, log }: EnvoyHandlers): handleClientStreamingCall<Buffer, Buffer> {
  return (call, answer) => {
    call.on('data', (message: Buffer) => {
      let entries: LogEntry[];
      try {
        entries = decodeLogEntries(message);
      } catch (error) {
        meter.count('earmark_evidence_total', { route: '', outcome: 'unreadable' });
        log.error({ err: error }, 'an access-log message could not be read');
        return;
      }
      for (const entry of entries) accept(entry);
    });
    call.on('end', () => answer(null, NOTHING));
    // Envoy gives up a stream by cancelling it; it opens another.
    call.on('error', (error: Error) => log.debug({ err: error.message }, 'an access log ended'));
  };
}

const rateLimitCall: handleUnaryCall<Buffer, Buffer> = (_call, answer) => {
  const details = 'ShouldRateLimit is not built yet: use ext_authz (envoy.service.auth.v3)';
  answer({ code: status.UNIMPLEMENTED, details });
};
