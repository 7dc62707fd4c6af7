/** The commands as a user types them, on a real ledger. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { run } from '../../src/cli/run.js';
import { lineTag } from '../../src/core/ids.js';
import { Ledger } from '../../src/ledger/ledger.js';
import type { AdmitRequest } from '../../src/ledger/types.js';
import { startRedis, type TestRedis } from '../support/redis.js';

let folder = '';
let server: TestRedis;
let ledger: Ledger;
let reservation = '';

const request = (subject: string, shadow = false): AdmitRequest => ({
  subject,
  route: 'chat',
  key: 'k',
  attempt: 1,
  digest: 'x'.repeat(43),
  units: [600],
  budget: {
    generation: 1,
    content: 'c',
    factor: { numerator: 1, denominator: 1 },
    terms: {
      limits: [
        {
          name: '',
          burst: 1000,
          refill: null,
          maxReservation: 1000,
          maxOverdraft: null,
          executionHardCap: null,
          ownCost: false,
        },
      ],
      epochMs: 86_400_000,
      holdTtlMs: 30_000,
      usageDeadlineMs: 600_000,
      retentionMs: 86_400_000,
      onBreach: 'mark',
      freezeForMs: 0,
    },
  },
  shadow,
  closed: false,
  routeFrozenUntil: 0,
  again: false,
  operation: 'op',
});

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'earmark-cli-'));
  server = await startRedis();
  ledger = new Ledger({ redis: { path: server.socket }, prefix: 'earmark:', timeoutMs: 2000 });
  await new Promise((resolve) => ledger.redis.once('ready', resolve));
  ({ reservation } = await held('acme'));
  await ledger.settle({ reservation, operation: 'op', actual: [200], grade: 'reported' });
  const twin = await ledger.admit({ ...request('acme', true), key: 'seen' });
  const evil = await ledger.admit(request('evil\u001b[31m}\n'));
  expect([twin.kind, evil.kind]).toEqual(['moved', 'moved']);
});

async function held(subject: string) {
  const outcome = await ledger.admit(request(subject));
  if (outcome.kind !== 'moved') throw new Error(`not admitted: ${JSON.stringify(outcome)}`);
  return outcome.receipt;
}

afterAll(async () => {
  await ledger.stop();
  await server.stop();
  rmSync(folder, { recursive: true });
});

interface Told {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

async function earmark(...argv: string[]): Promise<Told> {
  return earmarkWith({ EARMARK_LEDGER_URL: `unix:${server.socket}` }, ...argv);
}

async function earmarkWith(environment: Record<string, string>, ...argv: string[]): Promise<Told> {
  const out: string[] = [];
  const err: string[] = [];
  const streams = { out: (t: string) => void out.push(t), err: (t: string) => void err.push(t) };
  const code = await run(argv, environment, streams);
  return { code, out: out.join('\n'), err: err.join('\n') };
}

async function json(...argv: string[]) {
  const told = await earmark(...argv, '--json');
  return { ...told, json: JSON.parse(told.out) };
}

it('audits the ledger: for machines', async () => {
  const { code, err, json: report } = await json('audit');
  expect([code, err]).toEqual([0, '']);
  expect(Object.keys(report)).toEqual(['ok', 'lines', 'problems']);
  expect(report.lines.length).toBe(3);
  const line = report.lines.find((each: { subject: string; shadow: boolean }) => {
    return each.subject === 'acme' && !each.shadow;
  });
  const epoch = line.books[0].epoch;
  expect(line).toEqual({
    subject: 'acme',
    route: 'chat',
    shadow: false,
    seq: 2,
    debt: 0,
    suspended: null,
    books: [
      {
        limit: '',
        generation: 1,
        epoch,
        opening: 1000,
        minted: 0,
        overdraftIssued: 0,
        available: 800,
        reserved: 0,
        spent: 200,
        retiredForEmergency: 0,
        overdraftRepaid: 0,
        carriedOut: 0,
        lapsed: 0,
        difference: 0,
        closed: false,
      },
    ],
    archive: { count: 0, sum: 0 },
    reservations: { SETTLED: 1 },
  });
  expect(report.lines.map(({ subject }: { subject: string }) => subject)).toContain(
    'evil\u001b[31m}\n',
  );
});

it('audits the ledger: for people, and no subject steers their terminal', async () => {
  const { code, out } = await earmark('audit');
  expect(code).toBe(0);
  expect(out).toMatch(
    /^route +subject +limit +available +reserved +spent +debt +state +receipts$/m,
  );
  expect(out).toMatch(/^chat +acme +800 +0 +200 +0 +SETTLED 1$/m);
  expect(out).toMatch(/^chat +acme +\(shadow\) +400 +600 +0 +0 +STARTED 1$/m);
  expect(out).toContain('3 lines, everything adds up');
  expect(out).not.toContain('\u001b');
});

it('names a line that it cannot read, and fails; nothing is deleted', async () => {
  const key = `earmark:{${'A'.repeat(22)}}:l`;
  await ledger.redis.set(key, 'foreign');
  const { code, json: report, err } = await json('audit');
  expect(code).toBe(1);
  expect(report).toMatchObject({ ok: false, problems: [{ line: key }] });
  expect(report.problems[0].problem).toMatch(/WRONGTYPE/);
  expect(err).toContain(key);
  expect(report.lines.length).toBe(3);
  expect(await ledger.redis.get(key)).toBe('foreign');
  await ledger.redis.del(key);
});

it('adds a line up that never holds still', async () => {
  const use = (at: number) =>
    ledger.admit({ ...request('busy'), key: `k${at}`, units: [1], shadow: true });
  // Enough receipts for two pages.
  await Promise.all(Array.from({ length: 800 }, (_, at) => use(at)));
  let busy = true;
  const work = (async () => {
    for (let at = 0; busy; at++) {
      await ledger.credit({ subject: 'busy', route: 'chat' }, true, '', 1);
      await use(800 + at);
    }
  })();
  for (let times = 0; times < 5; times++) expect(await earmark('audit')).toMatchObject({ code: 0 });
  busy = false;
  await work;
  const { json: report } = await json('audit');
  expect(report.ok).toBe(true);
  await ledger.redis.del(ledger.keys.line(lineTag('busy', 'chat')));
});

it('fails where a line lost its last write', async () => {
  const { reservation: id } = await held('lossy');
  const key = ledger.keys.line(id.slice(3, 25));
  const before = (await ledger.redis.hgetBuffer(key, 'line'))!;
  await ledger.settle({ reservation: id, operation: 'op', actual: [1], grade: 'reported' });
  const after = (await ledger.redis.hgetBuffer(key, 'line'))!;
  await ledger.redis.hset(key, 'line', before);
  const { code, err } = await earmark('audit');
  expect(code).toBe(1);
  expect(err).toMatch(/^"lossy" on "chat": book of generation 1, epoch \d+: reserved is 600/m);
  await ledger.redis.hset(key, 'line', after);
  expect((await earmark('audit')).code).toBe(0);
});

it('shows a reservation', async () => {
  const shown = await json('reservation', 'show', reservation);
  expect(shown.json).toMatchObject({
    reservation,
    state: 'SETTLED',
    actual: [200],
    line: { seq: 2 },
  });
  const { out } = await earmark('reservation', 'show', reservation);
  expect(out).toMatch(/^state +SETTLED$/m);
  expect(out).toMatch(/^used +200$/m);
  const none = `rl-${'A'.repeat(22)}-${'B'.repeat(22)}`;
  const missing = await earmark('reservation', 'show', none);
  expect(missing).toMatchObject({ code: 1, out: '', err: expect.stringContaining('no receipt') });
  const bad = await earmark('reservation', 'show', 'rl-1');
  expect(bad).toMatchObject({ code: 2, err: expect.stringContaining('is no ID') });
});

it('finds what nobody reported, and an operator says what it was', async () => {
  const { reservation: id } = await held('quiet');
  await ledger.unknown({ reservation: id, operation: 'op', least: [] });
  await ledger.settle({ reservation: id, operation: 'late', actual: [7], grade: 'reported' });

  const found = await json('reservation', 'list', '--state', 'USAGE_UNKNOWN');
  expect(found.json).toMatchObject({ ok: true, more: false });
  expect(found.json.receipts.map((each: { reservation: string }) => each.reservation)).toEqual([
    id,
  ]);
  const line = await json('reservation', 'list', '--route', 'chat', '--subject', 'quiet');
  const owns = line.json.receipts.map((each: { own: boolean }) => each.own);
  expect(owns.sort()).toEqual([false, true]);
  const { out } = await earmark('reservation', 'list', '--subject', 'quiet');
  expect(out).toMatch(/its own/);
  expect(out).toMatch(/^2 receipts$/m);
  expect((await json('reservation', 'list', '--route', 'other')).json.receipts).toEqual([]);
  expect((await earmark('reservation', 'show', id)).out).toMatch(
    /^its own +SETTLED.* 7 reported by late$/m,
  );

  const told = await json('receipt', id, '--units', '250');
  expect(told.json).toMatchObject({
    moved: true,
    receipt: { state: 'SETTLED', actual: [250], operation: 'op', evidence: 'operator' },
  });
  expect((await json('receipt', id, '--units', '250')).json).toMatchObject({ moved: false });
  expect(await earmark('receipt', id, '--units', '9')).toMatchObject({
    code: 1,
    err: expect.stringMatching(/^conflict: another amount was booked .*reservation show/),
  });
  const none = `rl-${'A'.repeat(22)}-${'B'.repeat(22)}`;
  expect(await earmark('receipt', none, '--units', '9')).toMatchObject({
    code: 1,
    err: expect.stringMatching(/^not-found: no such receipt is kept: check the ID/),
  });
});

it('lists no more than a person reads, and says that there is more', async () => {
  const use = (at: number) =>
    ledger.admit({ ...request('many', at % 2 === 0), key: `m${at}`, units: [1] });
  await Promise.all(Array.from({ length: 1002 }, (_, at) => use(at)));
  const { json: listed } = await json('reservation', 'list', '--subject', 'many');
  expect([listed.receipts.length, listed.more]).toEqual([1000, true]);
  const { out } = await earmark('reservation', 'list', '--subject', 'many');
  expect(out).toMatch(/^the first 1000 that were found, and there are more/m);
  await ledger.redis.del(ledger.keys.line(lineTag('many', 'chat')));
});

it('freezes no route that nobody knows', async () => {
  for (const command of ['freeze', 'unfreeze']) {
    expect(await earmark(command, '--route', 'nope')).toMatchObject({
      code: 1,
      err: 'no route "nope" is known: there are chat',
    });
  }
});

const suspended = async (subject: string, shadow = false) => {
  const { json: report } = await json('audit');
  return report.lines.find((line: { subject: string; shadow: boolean }) => {
    return line.subject === subject && line.shadow === shadow;
  }).suspended;
};

it('freezes and unfreezes one line, for a time or until told', async () => {
  const line = ['--route', 'chat', '--subject', 'acme'];
  const frozen = await json('freeze', ...line);
  expect(frozen).toMatchObject({ code: 0, json: { ok: true, moved: true, until: -1 } });
  expect(await suspended('acme')).toBe('frozen');
  expect(await suspended('acme', true)).toBe(null);
  expect((await json('unfreeze', ...line)).json).toEqual({ ok: true, moved: true, lines: 1 });
  expect((await json('unfreeze', ...line)).json).toMatchObject({ moved: false });

  const before = Date.now();
  const { json: timed } = await json('freeze', ...line, '--for', '15m', '--shadow');
  expect(timed.until).toBeGreaterThanOrEqual(before + 890_000);
  expect(timed.until).toBeLessThan(before + 920_000);
  expect(await suspended('acme')).toBe(null);
  expect(await suspended('acme', true)).toBe('frozen');
  await earmark('unfreeze', ...line, '--shadow');

  const nobody = await earmark('freeze', '--route', 'chat', '--subject', 'nobody');
  expect(nobody).toMatchObject({ code: 1, err: expect.stringContaining('has no line on route') });
});

it('freezes a route, and unfreezes it with the lines whose breach it was', async () => {
  expect((await earmark('freeze', '--route', 'chat')).out).toBe(
    'route chat is frozen until earmark unfreeze',
  );
  expect(await suspended('acme')).toBe('frozen');
  const tag = reservation.slice(3, 25);
  await ledger.redis.sadd('earmark:{policy}:frozen:chat', tag);
  await ledger.freeze({ subject: 'acme', route: 'chat' }, false, -1);
  const { json: report } = await json('unfreeze', '--route', 'chat');
  expect(report).toEqual({ ok: true, moved: true, lines: 1 });
  expect(await suspended('acme')).toBe(null);
});

const audited = async (subject: string) => {
  const { json: report } = await json('audit');
  return report.lines.find(
    (line: { subject: string; shadow: boolean }) => line.subject === subject && !line.shadow,
  );
};

it('gives a line units: its debt first, then what is available, up to the burst', async () => {
  const { reservation: id } = await held('indebted');
  await ledger.settle({ reservation: id, operation: 'op', actual: [1500], grade: 'reported' });
  const debt = (await audited('indebted')).debt;
  expect(debt).toBeGreaterThan(0);
  const line = ['--route', 'chat', '--subject', 'indebted'];
  const part = await json('credit', ...line, '--units', String(debt - 1));
  expect(part).toMatchObject({ code: 0, json: { ok: true, available: 0, debt: 1 } });
  const rest = await json('credit', ...line, '--units', '3');
  expect(rest.json).toMatchObject({ available: 2, debt: 0 });
  expect(await audited('indebted')).toMatchObject({ debt: 0, suspended: null });
  expect((await json('audit')).json.ok).toBe(true);
});

it.each([
  [['--subject', 'nobody', '--units', '1'], 1, 'there is no such line'],
  [['--subject', 'acme', '--units', '1', '--limit', 'day'], 1, 'no such limit'],
  [['--subject', 'acme', '--units', '0'], 2, '--units must be a whole number from 1'],
  [['--subject', 'acme', '--units', '1.5'], 2, '--units must be a whole number from 1'],
  [['--subject', 'acme', '--units', '9007199254740992'], 2, '--units must be a whole number'],
  [['--subject', 'acme'], 2, 'usage: earmark credit'],
])('credit %j gives nothing', async (args, code, words) => {
  const before = await audited('acme');
  expect(await earmark('credit', '--route', 'chat', ...args)).toMatchObject({
    code,
    err: expect.stringContaining(words),
  });
  expect(await audited('acme')).toEqual(before);
});

it.each([
  [[], 'usage: earmark COMMAND'],
  [['drain'], 'unknown command drain: there are serve, policy, rollout, freeze'],
  [['toString'], 'unknown command toString'],
  [['audit', 'x'], 'usage: earmark audit'],
  [['audit', '--jsn'], 'unknown option --jsn\nusage: earmark audit'],
  [['serve', '--port'], 'unknown option --port\nusage: earmark serve'],
  [['reservation', 'list', '--state', 'LOST'], '--state LOST is none: there are RESERVED'],
  [['reservation', 'list', '--stat', 'x'], "Unknown option '--stat'"],
  [['receipt', `rl-${'A'.repeat(22)}-${'B'.repeat(22)}`], 'usage: earmark receipt'],
  [['receipt', 'rl-1', '--units', '1'], 'reservation: is no ID of a reservation'],
  [['receipt', `rl-${'A'.repeat(22)}-${'B'.repeat(22)}`, '--units', '-1'], 'units'],
  [['freeze'], 'usage: earmark freeze'],
  [['freeze', '--route', 'r', '--shadow'], 'usage: earmark freeze'],
  [['freeze', '--route', 'r', '--for', 'soon'], '--for soon is no length of time'],
  [['freeze', '--rout', 'r'], "Unknown option '--rout'"],
  [['unfreeze', '--route', 'r', '--for', '1m'], 'usage: earmark unfreeze'],
  [['reservation', 'hide'], 'usage: earmark reservation'],
  [['serve', 'x'], 'usage: earmark serve'],
  [['audit', '--config'], '--config needs a FILE'],
  [['policy'], 'usage: earmark policy'],
])('%j is wrong usage', async (argv, message) => {
  const told = await earmark(...argv);
  expect(told).toMatchObject({ code: 2, out: '', err: expect.stringContaining(message) });
});

it('says what it is, and what it can', async () => {
  expect(await earmark('--version')).toEqual({
    code: 0,
    err: '',
    out: expect.stringMatching(/^\d+\.\d+\.\d+$/),
  });
  const help = await earmark('--help');
  expect(help.code).toBe(0);
  for (const name of [
    'serve',
    'policy',
    'rollout',
    'freeze',
    'unfreeze',
    'reservation',
    'receipt',
    'audit',
  ]) {
    expect(help.out).toContain(`earmark ${name}`);
  }
});

it('takes the ledger from --config, and says where it is not', async () => {
  const file = join(folder, 'e.yaml');
  writeFileSync(file, `ledger: { url: "unix:${server.socket}" }`);
  expect((await earmarkWith({}, 'audit', '--config', file)).code).toBe(0);
  expect((await earmarkWith({}, 'audit', `--config=${file}`)).code).toBe(0);
  const none = await earmarkWith({}, 'audit');
  expect(none).toMatchObject({ code: 1, err: expect.stringContaining('EARMARK_LEDGER_URL') });
  expect(none.err).toContain('--config FILE');
  const wrong = await earmarkWith({}, 'policy', 'valdate', 'x');
  expect(wrong).toMatchObject({ code: 2, err: expect.stringContaining('usage: earmark policy') });
  const away = await earmarkWith({ EARMARK_LEDGER_URL: `unix:${folder}/none` }, 'audit', '--json');
  expect(away.code).toBe(1);
  expect(away.err).toMatch(/nothing answers at ledger.url.*ENOENT/);
  expect(JSON.parse(away.out)).toMatchObject({ ok: false });
  for (const command of [
    ['freeze', '--route', 'r'],
    ['policy', 'show'],
    ['rollout', 'show'],
    ['reservation', 'list'],
  ]) {
    const told = await earmarkWith({ EARMARK_LEDGER_URL: `unix:${folder}/none` }, ...command);
    expect(told).toMatchObject({ code: 1, out: '' });
    expect(told.err).toMatch(/^nothing answers at ledger.url: check it .*ENOENT/);
  }
  const embedded = await earmarkWith({ EARMARK_LEDGER_DATA: folder }, 'audit');
  expect(embedded).toMatchObject({ code: 1, err: expect.stringContaining('is not running') });
});

it('validates a policy without any ledger', async () => {
  const file = join(folder, 'policy.yaml');
  writeFileSync(
    file,
    `schema: admissionBudget.v1
generation: 1
unmatched: allow
budgets: [{ route: r, subject: source.principal, burst: 1 }]
`,
  );
  const told = await earmarkWith({}, 'policy', 'validate', file);
  expect(told).toMatchObject({ code: 0, out: expect.stringContaining('is valid: generation 1') });
});
