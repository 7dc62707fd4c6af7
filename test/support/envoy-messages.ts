/** Envoy's messages by its own full descriptors, to hold ours against. */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import protobuf from 'protobufjs';

type Json = Readonly<Record<string, unknown>>;

const locate = createRequire(import.meta.url).resolve;
const XDS = join(dirname(locate('@grpc/grpc-js-xds/package.json')), 'deps');
const FOLDERS = [
  ...['envoy-api', 'googleapis', 'xds', 'protoc-gen-validate'].map((name) => join(XDS, name)),
  dirname(locate('protobufjs/package.json')),
];

function load(): protobuf.Root {
  const root = new protobuf.Root();
  root.resolvePath = (_origin, target) =>
    FOLDERS.map((folder) => join(folder, target)).find((file) => existsSync(file)) ?? null;
  return root.loadSync([
    'envoy/service/auth/v3/external_auth.proto',
    'envoy/service/accesslog/v3/als.proto',
  ]);
}

let loaded: protobuf.Root | undefined;

function typeOf(name: string): protobuf.Type {
  loaded ??= load();
  return loaded.lookupType(name);
}

function structValue(value: unknown): Json {
  if (value === null) return { nullValue: 0 };
  if (typeof value === 'number') return { numberValue: value };
  if (typeof value === 'string') return { stringValue: value };
  if (typeof value === 'boolean') return { boolValue: value };
  if (Array.isArray(value)) return { listValue: { values: value.map(structValue) } };
  return { structValue: struct(value as Json) };
}

function struct(value: Json): Json {
  return { fields: Object.fromEntries(Object.entries(value).map(([k, v]) => [k, structValue(v)])) };
}

/** The forms that JSON has for well-known types. */
function wellKnown(name: string, value: unknown): unknown {
  switch (name) {
    case '.google.protobuf.Struct':
      return struct(value as Json);
    case '.google.protobuf.Timestamp':
      return { seconds: Math.floor(Date.parse(String(value)) / 1000) };
    case '.google.protobuf.Duration': {
      const [seconds, fraction = ''] = String(value).replace(/s$/, '').split('.');
      return { seconds: Number(seconds), nanos: Number(fraction.padEnd(9, '0')) };
    }
    case '.google.protobuf.UInt32Value':
    case '.google.protobuf.BoolValue':
      return { value };
    default:
      return undefined;
  }
}

function camel(name: string): string {
  return name.replace(/_([a-z])/g, (_all, letter: string) => letter.toUpperCase());
}

function plainField(field: protobuf.Field, value: unknown): unknown {
  field.resolve();
  const type = field.resolvedType;
  if (!(type instanceof protobuf.Type)) return value;
  const one = (item: unknown): unknown =>
    wellKnown(type.fullName, item) ?? plain(type, item as Json);
  if (field.repeated) return (value as unknown[]).map(one);
  if (!field.map) return one(value);
  return Object.fromEntries(Object.entries(value as Json).map(([k, item]) => [k, one(item)]));
}

/** From the JSON that protobuf defines to the objects that protobufjs encodes. */
function plain(type: protobuf.Type, json: Json): Json {
  return Object.fromEntries(
    Object.entries(json).map(([name, value]) => {
      const field = type.fields[camel(name)] ?? type.fields[name];
      if (field === undefined) throw new Error(`${type.fullName} has no ${name}`);
      return [field.name, plainField(field, value)];
    }),
  );
}

/** Bytes as Envoy would send them. Throws at a field that Envoy doesn't have. */
export function envoyBytes(name: string, json: Json): Buffer {
  const type = typeOf(name);
  return Buffer.from(type.encode(type.fromObject(plain(type, json))).finish());
}

/** As Envoy would read it. */
export function envoyReads(name: string, bytes: Uint8Array): Json {
  const type = typeOf(name);
  return type.toObject(type.decode(bytes), { longs: Number, enums: String, oneofs: true });
}

/** A Struct as envoyReads gives it, as plain values. */
export function plainStruct(value: unknown): unknown {
  const fields = (value as { fields?: Json }).fields ?? {};
  return Object.fromEntries(Object.entries(fields).map(([k, v]) => [k, plainValue(v as Json)]));
}

function plainValue(value: Json): unknown {
  if ('numberValue' in value) return value.numberValue;
  if ('stringValue' in value) return value.stringValue;
  if ('boolValue' in value) return value.boolValue;
  if ('structValue' in value) return plainStruct(value.structValue);
  if ('listValue' in value) {
    return ((value.listValue as { values?: Json[] }).values ?? []).map(plainValue);
  }
  return null;
}
