/** What a response reports of its use, whatever shape and place the report has. Pure. */
import type { Usage, UsageRules, UsageSource } from '../policy/types.js';
import type { LogEntry } from './types.js';

/** Tokens by part, as far as they are reported. */
type Parts = Partial<Record<keyof Usage, number>>;

export interface UsageReading {
  /** Undefined: nobody reported anything. */
  readonly usage: Usage | undefined;
  /** Enough is reported to stand for the whole use; else what there is is the least. */
  readonly whole: boolean;
  /** Names of values that are there and are no whole number from 0 to 2^53 − 1. */
  readonly invalid: readonly string[];
}

type Collect = (part: keyof Usage, name: string, value: unknown) => void;

const BOTH: readonly (keyof Usage)[] = ['input', 'output'];

/** `undefined`: not there. `'invalid'`: there, but no amount of tokens. */
function amount(value: unknown): number | undefined | 'invalid' {
  if (value === undefined || value === null) return undefined;
  const number =
    typeof value === 'string' && /^[ \t]*\d+[ \t]*$/.test(value) ? Number(value) : value;
  return Number.isSafeInteger(number) && (number as number) >= 0 ? (number as number) : 'invalid';
}

function fields(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

/** OpenAI names input and output in two ways; their details stand inside, or flat where Envoy took them out. */
function collectOpenAi(raw: Readonly<Record<string, unknown>>, collect: Collect): void {
  const input = fields(raw.prompt_tokens_details ?? raw.input_tokens_details);
  const output = fields(raw.completion_tokens_details ?? raw.output_tokens_details);
  collect('input', 'prompt_tokens', raw.prompt_tokens ?? raw.input_tokens);
  collect('output', 'completion_tokens', raw.completion_tokens ?? raw.output_tokens);
  collect('total', 'total_tokens', raw.total_tokens);
  collect('cached', 'cached_tokens', input.cached_tokens ?? raw.cached_tokens);
  collect('reasoning', 'reasoning_tokens', output.reasoning_tokens ?? raw.reasoning_tokens);
  collect('audio', 'audio_tokens', raw.audio_tokens);
  collect('audio', 'audio_tokens', input.audio_tokens);
  collect('audio', 'audio_tokens', output.audio_tokens);
  // Anthropic's caches stand beside the input, not inside of it.
  for (const part of ['input', 'cached'] as const) {
    collect(part, 'cache_read_input_tokens', raw.cache_read_input_tokens);
  }
  for (const part of ['input', 'cacheWritten'] as const) {
    collect(part, 'cache_creation_input_tokens', raw.cache_creation_input_tokens);
  }
}

/** Gemini's usageMetadata: its thoughts stand beside the candidates, what its tools brought beside the prompt. */
function collectGemini(raw: Readonly<Record<string, unknown>>, collect: Collect): void {
  collect('input', 'promptTokenCount', raw.promptTokenCount);
  collect('input', 'toolUsePromptTokenCount', raw.toolUsePromptTokenCount);
  collect('output', 'candidatesTokenCount', raw.candidatesTokenCount);
  collect('output', 'thoughtsTokenCount', raw.thoughtsTokenCount);
  collect('reasoning', 'thoughtsTokenCount', raw.thoughtsTokenCount);
  collect('cached', 'cachedContentTokenCount', raw.cachedContentTokenCount);
  collect('total', 'totalTokenCount', raw.totalTokenCount);
}

const isGemini = (raw: Readonly<Record<string, unknown>>): boolean =>
  'promptTokenCount' in raw || 'candidatesTokenCount' in raw || 'totalTokenCount' in raw;

/** Under each vendor's names alone, so that a report under two of them counts once. */
function metadataReadings(raw: Readonly<Record<string, unknown>>): UsageReading[] {
  const openAi = readOne(BOTH, (collect) => collectOpenAi(raw, collect));
  if (!isGemini(raw)) return [openAi];
  // Gemini leaves out a count of 0; only its total tells that from one that nobody took out of the response.
  return [openAi, readOne(['total'], (collect) => collectGemini(raw, collect))];
}

function collectNamed(
  rules: UsageRules,
  from: Readonly<Record<string, string>>,
  collect: Collect,
): void {
  for (const [part, name] of Object.entries(rules.fields)) {
    collect(part as keyof Usage, name, from[name.toLowerCase()]);
  }
}

/** Makes the parts agree: a total covers input and output, a detail is inside of what it is a detail of. */
function normalise(parts: Parts): Usage | undefined {
  const input = parts.input ?? 0;
  const reported = parts.output ?? 0;
  const total = Math.max(parts.total ?? 0, input + reported);
  if (!Number.isSafeInteger(total)) return undefined;
  const output = total - input;
  const cached = Math.min(parts.cached ?? 0, input);
  return {
    input,
    output,
    total,
    cached,
    cacheWritten: Math.min(parts.cacheWritten ?? 0, input - cached),
    reasoning: Math.min(parts.reasoning ?? 0, output),
    audio: Math.min(parts.audio ?? 0, total),
  };
}

/** `needed`: what must be reported, where no total is, for a report of the whole use. */
function readOne(needed: readonly (keyof Usage)[], fill: (collect: Collect) => void): UsageReading {
  const parts: Parts = {};
  const invalid: string[] = [];
  fill((part, name, value) => {
    const tokens = amount(value);
    if (tokens === 'invalid') invalid.push(name);
    else if (tokens !== undefined) parts[part] = (parts[part] ?? 0) + tokens;
  });
  const { input, output, total } = parts;
  if (input === undefined && output === undefined && total === undefined) {
    return { usage: undefined, whole: false, invalid };
  }
  const usage = normalise(parts);
  if (usage === undefined) invalid.push('total');
  const enough = total !== undefined || needed.every((part) => parts[part] !== undefined);
  return { usage, whole: usage !== undefined && enough, invalid };
}

const NONE: UsageReading[] = [];

function namedReadings(rules: UsageRules, from: Readonly<Record<string, string>>): UsageReading[] {
  for (const _ in from) {
    const needed = BOTH.filter((part) => part in rules.fields);
    return [readOne(needed, (collect) => collectNamed(rules, from, collect))];
  }
  return NONE;
}

function readings(entry: LogEntry, rules: UsageRules, source: UsageSource): UsageReading[] {
  switch (source) {
    case 'trailers':
      return namedReadings(rules, entry.responseTrailers);
    case 'headers':
      return namedReadings(rules, entry.responseHeaders);
    case 'metadata':
      return rules.namespaces
        .map((name) => entry.metadata[name])
        .filter((raw) => raw !== undefined)
        .flatMap(metadataReadings);
  }
}

/** The first place, in the policy's order, that reports the whole use; else the first that reports a part of it. */
export function readUsage(entry: LogEntry, rules: UsageRules): UsageReading {
  let part: Usage | undefined;
  const invalid: string[] = [];
  for (const source of rules.from) {
    for (const reading of readings(entry, rules, source)) {
      invalid.push(...reading.invalid);
      if (reading.whole) return { usage: reading.usage, whole: true, invalid };
      part ??= reading.usage;
    }
  }
  return { usage: part, whole: false, invalid };
}
