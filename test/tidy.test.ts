/** What the compiler and the linter do not check: who may import whom, and what must not stand in a file. */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, extname, join, normalize, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));

function filesBelow(folder: string): string[] {
  return readdirSync(join(root, folder), { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(root, join(entry.parentPath, entry.name)));
}

const text = (file: string): string => readFileSync(join(root, file), 'utf8');
const source = filesBelow('src').filter((file) => file.endsWith('.ts'));
const tests = filesBelow('test').filter((file) => /\.(ts|mjs)$/.test(file));
const lua = filesBelow('src/ledger/lua');

/** Everything a reader of the project gets, but for data and the licence. */
const written = [
  ...['src', 'test', 'docs', 'envoy', 'proto', '.ci'].flatMap(filesBelow),
  ...readdirSync(root, { withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name !== 'LICENSE')
    .map((entry) => entry.name),
].filter((file) => !['.jsonl', '.log', '.tgz'].includes(extname(file)));

/** Lines of the files that break a rule, as `file:line: text`. */
function lines(files: readonly string[], broken: (line: string) => boolean): string[] {
  return files.flatMap((file) =>
    text(file)
      .split('\n')
      .flatMap((line, index) => (broken(line) ? [`${file}:${index + 1}: ${line.trim()}`] : [])),
  );
}

interface Import {
  readonly from: string;
  readonly target: string;
  /** Only types: gone once compiled. */
  readonly types: boolean;
}

const IMPORT = /^(?:import|export)\s+(type\s)?(?:[^'";]*?\sfrom\s+)?'([^']+)';/gm;

function importsOf(file: string): Import[] {
  return [...text(file).matchAll(IMPORT)].map(([, type, target]) => ({
    from: file,
    target: target!.startsWith('.')
      ? normalize(join(dirname(file), target!.replace(/\.js$/, '.ts')))
      : target!,
    types: type !== undefined,
  }));
}

const imports = source.flatMap(importsOf);

/** A file may use what stands in its own row and above. */
const ROWS: readonly (readonly string[])[] = [
  ['core'],
  ['telemetry'],
  ['ledger', 'policy', 'estimate'],
  ['config', 'settle'],
  ['envoy', 'grpc', 'admin'],
  ['serve.ts'],
  ['cli'],
  ['main.ts'],
];

/** Programs of their own: nothing imports them, and they look at earmark only from outside. */
const OUTSIDE = ['demo', 'bench'];

/** Only these folders may name these packages. */
const OWNERS: Readonly<Record<string, string>> = {
  ioredis: 'ledger',
  '@grpc/grpc-js': 'grpc',
  '@grpc/proto-loader': 'grpc',
  '@grpc/reflection': 'grpc',
  'grpc-health-check': 'grpc',
  pino: 'telemetry',
  'prom-client': 'telemetry',
};

const part = (file: string): string => file.split('/')[1]!;
const row = (file: string): number => ROWS.findIndex((names) => names.includes(part(file)));
const told = ({ from, target }: Import): string => `${from} -> ${target}`;

describe('imports', () => {
  test('there are some, and every folder has its place', () => {
    expect(imports.length).toBeGreaterThan(50);
    const places = new Set([...ROWS.flat(), ...OUTSIDE]);
    expect(source.filter((file) => !places.has(part(file)))).toEqual([]);
  });

  test('go one way', () => {
    const inside = imports.filter(({ from, target }) => !isOutside(from) && isOurs(target));
    expect(inside.filter((i) => !i.types && row(i.target) > row(i.from)).map(told)).toEqual([]);
  });

  test('never reach into a program, nor out of one', () => {
    const crossing = imports.filter(
      ({ from, target }) =>
        isOurs(target) && part(from) !== part(target) && (isOutside(from) || isOutside(target)),
    );
    expect(crossing.map(told)).toEqual([]);
  });

  test('have no circle', () => {
    expect(circles()).toEqual([]);
  });

  test('name a package only in the folder that owns it', () => {
    const strangers = imports.filter(({ from, target }) => {
      const owner = OWNERS[target];
      return owner !== undefined && part(from) !== owner && !isOutside(from);
    });
    expect(strangers.map(told)).toEqual([]);
  });

  test('reach every file', () => {
    const used = new Set(imports.map(({ target }) => target));
    const entries = /^src\/(main|demo\/main|bench\/\w+)\.ts$/;
    expect(source.filter((file) => !used.has(file) && !entries.test(file))).toEqual([]);
  });
});

function isOutside(file: string): boolean {
  return OUTSIDE.includes(part(file));
}

function isOurs(target: string): boolean {
  return target.startsWith('src/');
}

/** Files that import each other, found by walking what is left once files without imports are taken away. */
function circles(): string[] {
  const edges = new Map(source.map((file) => [file, new Set<string>()]));
  for (const { from, target, types } of imports) {
    if (!types && edges.has(target)) edges.get(from)!.add(target);
  }
  for (let before = -1; before !== edges.size; ) {
    before = edges.size;
    for (const [file, targets] of edges) {
      if ([...targets].every((target) => !edges.has(target))) edges.delete(file);
    }
  }
  return [...edges.keys()];
}

describe('Lua', () => {
  const code = (line: string): string => line.replace(/--.*$/, '');

  test('prints a number only by text(): tostring and .. keep 14 digits', () => {
    expect(lua.length).toBeGreaterThan(10);
    const isText =
      /^(text|string\.(?:sub|rep|format|char))\($|^'$|^[\w.]*\b(id|first|previous|newest|operation|field|name|own)$/;
    const wrong = lines(lua, (line) => {
      const words = code(line)
        .replace(/'[^']*'/g, "'")
        .replace(/\([^()]*'\)/g, "'")
        .replace(/\b(text|string\.(?:sub|rep|format|char))\([^()]*\)/g, '$1(');
      const operands = [...words.matchAll(/([\w.(]+|')\s*\.\.(?!\.)\s*(?=([\w.]+\(?|'))/g)];
      const dots = words.match(/(?<!\.)\.\.(?!\.)/g)?.length ?? 0;
      const texts = operands.filter(([, left, right]) => isText.test(left!) && isText.test(right!));
      return dots !== texts.length;
    });
    expect(wrong).toEqual([]);
    const printed = lines(lua, (line) => /tostring\((?!message\))|cjson\.encode/.test(code(line)));
    expect(printed).toEqual([]);
  });
});

describe('text', () => {
  test('lines of TypeScript have at most 120 columns, but for a message', () => {
    const message = /^\s*(const \w+ = |: |return )?['"`/](?![*/])/;
    const template = /`(?:\\.|[^`\\])*`/g;
    const long = [...source, ...tests].flatMap((file) =>
      // Of a text over several lines only its lines are kept.
      text(file)
        .replace(template, (part) => (part.includes('\n') ? part.replace(/.+/g, '') : part))
        .split('\n')
        .flatMap((line, i) =>
          line.length > 120 && !message.test(line) ? [`${file}:${i + 1}`] : [],
        ),
    );
    expect(long).toEqual([]);
  });

  test('no test is left out', () => {
    const out = /\b(it|test|describe)\.(skip|only|todo|skipIf|runIf|fails)\b|\bctx\.skip\(/;
    const files = tests.filter((file) => file !== 'test/tidy.test.ts');
    expect(lines(files, (line) => out.test(line))).toEqual([]);
  });

  test('nothing of the machine it was written on', () => {
    const folders = new RegExp(`(^|[\\s'"(=:])/(${['work', 'home', 'root', 'Users'].join('|')})/`);
    const hosts = new RegExp(['registry\\.npm', 'python' + 'hosted', 'pypi\\.' + 'org'].join('|'));
    expect(lines(written, (line) => folders.test(line) || hosts.test(line))).toEqual([]);
    expect(text('package-lock.json')).not.toContain('"resolved"');
  });
});
