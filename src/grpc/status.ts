/** Errors of gRPC with details: google.rpc.Status as grpc-status-details-bin carries it. */
import { Metadata, type StatusObject, status } from '@grpc/grpc-js';
import protobuf from 'protobufjs/minimal.js';

export type Code = Exclude<keyof typeof status, 'OK'>;

/** What an error says besides code and text. */
export interface Details {
  /** google.rpc.ErrorInfo, of the domain "earmark". */
  readonly reason?: string;
  readonly metadata?: Readonly<Record<string, string>>;
  /** google.rpc.RetryInfo. */
  readonly retryMs?: number | undefined;
  /** google.rpc.BadRequest. */
  readonly field?: string;
}

export function grpcError(code: Code, message: string, details: Details = {}): StatusObject {
  const metadata = new Metadata();
  metadata.set('grpc-status-details-bin', Buffer.from(encode(status[code], message, details)));
  return { code: status[code], details: message, metadata };
}

type Writer = protobuf.Writer;

/** Writes `body` as the length-delimited field with this number. */
function nested(writer: Writer, field: number, body: (inner: Writer) => void): void {
  body(writer.uint32((field << 3) | 2).fork());
  writer.ldelim();
}

function text(writer: Writer, field: number, value: string): void {
  writer.uint32((field << 3) | 2).string(value);
}

function encode(code: number, message: string, details: Details): Uint8Array {
  const writer = protobuf.Writer.create();
  writer.uint32(8).int32(code);
  text(writer, 2, message);
  const any = (type: string, body: (inner: Writer) => void): void =>
    nested(writer, 3, (inner) => {
      text(inner, 1, `type.googleapis.com/google.rpc.${type}`);
      nested(inner, 2, body);
    });
  const { reason, metadata, retryMs, field } = details;
  if (reason !== undefined) {
    any('ErrorInfo', (info) => {
      text(info, 1, reason);
      text(info, 2, 'earmark');
      for (const [key, value] of Object.entries(metadata ?? {})) {
        nested(info, 3, (entry) => {
          text(entry, 1, key);
          text(entry, 2, value);
        });
      }
    });
  }
  if (retryMs !== undefined) {
    any('RetryInfo', (info) =>
      nested(info, 1, (duration) => {
        duration.uint32(8).int64(Math.floor(retryMs / 1000));
        duration.uint32(16).int32((retryMs % 1000) * 1_000_000);
      }),
    );
  }
  if (field !== undefined) {
    any('BadRequest', (bad) =>
      nested(bad, 1, (violation) => {
        text(violation, 1, field);
        text(violation, 2, message);
      }),
    );
  }
  return writer.finish();
}
