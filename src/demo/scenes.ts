/** The story before the demo's own backend, which does what a scene needs. Every scene has tenants of its own. */
import type { DemoBackend, Execution } from './backend.js';
import { eventually } from './process.js';
import type { Answer, Gateway, Stage } from './stage.js';
import { grouped, type Teller } from './teller.js';

/** Everything a scene plays with. */
export interface Play {
  readonly stage: Stage;
  readonly backend: DemoBackend;
  readonly tell: Teller;
}

export interface Scene {
  readonly title: string;
  play(play: Play): Promise<void>;
}

export const SCENES: readonly Scene[] = [
  { title: 'Three gateways, one budget', play: threeGateways },
  { title: 'Three ways to say what was used', play: threeReports },
  { title: 'The same request, sent again', play: sentAgain },
  { title: 'More than was promised', play: overrun },
  { title: 'A client that leaves', play: clientLeaves },
  { title: 'An earmark dies', play: earmarkDies },
  { title: 'The books', play: theBooks },
];

const MEANING: Readonly<Record<number, string>> = {
  200: 'admitted',
  409: 'a duplicate',
  422: 'another request with the same key',
  503: 'not available',
};

/** "gateway b   429 capacity, again in 30 s". */
export function told(gateway: Gateway, answer: Answer): string {
  const why = answer.headers.get('x-earmark-limited-by') ?? MEANING[answer.status] ?? '';
  const again = answer.headers.get('retry-after');
  const wait = again === null ? '' : `, again in ${again} s`;
  return `gateway ${gateway.name}   ${answer.status} ${why}${wait}`;
}

function statuses(answers: readonly Answer[]): string {
  return answers.map((answer) => answer.status).join(' ');
}

async function threeGateways({ stage, backend, tell }: Play): Promise<void> {
  tell.say('acme has 1,000 tokens left. Three requests that may need 600 each come to three');
  tell.say('gateways in the same instant. Two of them must not be let through.');
  const before = backend.executions.length;
  const asked = stage.gateways.map((gateway) =>
    stage.ask(gateway, {
      tenant: 'acme',
      key: `seed-${gateway.name}`,
      wish: { tokens: 200, hold: 'seed' },
    }),
  );
  // The one that runs waits until the others have their answer, so that none profits from what it gives back.
  let answered = 0;
  for (const answer of asked) answer.then(() => answered++);
  await eventually('three decisions', () => {
    return answered + backend.executions.length - before >= asked.length || undefined;
  });
  backend.release('seed');
  const answers = await Promise.all(asked);
  for (const [index, answer] of answers.entries()) tell.say(told(stage.gateways[index]!, answer));
  const refused = answers.filter((answer) => answer.status === 429);
  tell.check(
    'one was admitted, two were refused',
    refused.length === 2 && statuses(answers).includes('200'),
  );
  const honest = refused.every((answer) => {
    const wait = Number(answer.headers.get('retry-after'));
    return answer.headers.get('x-earmark-limited-by') === 'capacity' && wait >= 1 && wait <= 30;
  });
  tell.check('each refusal says why, and when to come back', honest && refused.length > 0);
  const worked = backend.executions.length - before;
  tell.check('the backend worked once', worked === 1, worked);
  const account = await stage.accountOnce('acme', (line) => line.total('available') === 800);
  tell.check(
    'it used 200, and the 400 that it held too much came back: 800 are available',
    account.total('available') === 800 && account.total('spent') === 200,
    { available: account.total('available'), spent: account.total('spent') },
  );
}

async function threeReports({ stage, tell }: Play): Promise<void> {
  tell.say(
    'A backend reports its usage in a JSON body, in HTTP/2 trailers, or in the last chunk of',
  );
  tell.say('a stream. globex tries each.');
  const [a, b, c] = stage.gateways as [Gateway, Gateway, Gateway];
  const ask = async (
    gateway: Gateway,
    what: string,
    spent: number,
    stream: boolean,
    wish: Record<string, string | number>,
  ): Promise<void> => {
    const answer = await stage.ask(gateway, { tenant: 'globex', key: what, stream, wish });
    const account = await stage.accountOnce('globex', (line) => line.total('spent') === spent);
    const found = { status: answer.status, spent: account.total('spent') };
    const right = answer.status === 200 && found.spent === spent && account.total('reserved') === 0;
    tell.check(`${what}: ${wish.tokens} tokens, ${spent} spent so far`, right, found);
  };
  await ask(a, 'JSON body', 100, false, { tokens: 100 });
  await ask(b, 'HTTP/2 trailers', 250, false, { tokens: 150, usage: 'trailers' });
  await ask(c, 'last chunk of a stream', 400, true, { tokens: 150 });
}

async function sentAgain({ stage, backend, tell }: Play): Promise<void> {
  tell.say('initech sends order-7 and loses patience: it sends the same request again, through');
  tell.say('another gateway, while the first one still runs.');
  const [a, b, c] = stage.gateways as [Gateway, Gateway, Gateway];
  const before = backend.executions.length;
  const order = { tenant: 'initech', key: 'order-7' };
  const first = stage.ask(a, { ...order, wish: { tokens: 200, hold: 'order' } });
  await eventually('order-7 runs', () => backend.executions.length > before || undefined);
  const running = await stage.ask(b, order);
  tell.say(told(b, running));
  const hint = running.headers.get('x-should-retry');
  tell.check('409: it runs already, and asking again is no use', running.status === 409, {
    status: running.status,
  });
  tell.check('x-should-retry: false', hint === 'false', hint);
  const other = await stage.ask(c, { ...order, text: 'Something else altogether.' });
  tell.check('422: the same key with other words is another request', other.status === 422, {
    status: other.status,
  });
  backend.release('order');
  tell.check('the first gets its answer', (await first).status === 200);
  const account = await stage.accountOnce('initech', (line) => line.total('available') === 800);
  const done = await stage.ask(c, order);
  tell.check('409 again once it is done', done.status === 409, { status: done.status });
  const worked = backend.executions.length - before;
  tell.check(
    'it was executed once and paid once: 200 of 1,000',
    worked === 1 && account.total('spent') === 200 && account.total('available') === 800,
    { worked, spent: account.total('spent') },
  );
}

async function overrun({ stage, tell }: Play): Promise<void> {
  tell.say(
    'hooli holds 600 and uses 2,000. What its 1,000 do not cover is debt, and debt is repaid',
  );
  tell.say('before anything else: by a refill of 400 tokens a second.');
  const [a, b] = stage.gateways as [Gateway, Gateway];
  const ask = (gateway: Gateway, key: string, tokens: number): Promise<Answer> =>
    stage.ask(gateway, { tenant: 'hooli', key, model: 'refilled', wish: { tokens } });
  const greedy = await ask(a, 'greedy', 2000);
  tell.check('the request that ran over gets its answer', greedy.status === 200, greedy.status);
  // Its log entry is a moment behind its answer; until then the refusal is for capacity.
  // Where that moment is long, refill lets one more through.
  let tries = 0;
  let admitted = 0;
  const refused = await eventually('a refusal for debt', async () => {
    const answer = await ask(b, `too-soon-${tries++}`, 100);
    if (answer.status === 200) admitted++;
    return answer.headers.get('x-earmark-limited-by') === 'debt' || tries > 40 ? answer : undefined;
  });
  tell.say(told(b, refused));
  const by = refused.headers.get('x-earmark-limited-by');
  tell.check('the next one is refused: debt', refused.status === 429 && by === 'debt', by);
  const wait = Number(refused.headers.get('retry-after-ms'));
  tell.check('and told when the refill has repaid it', wait > 0 && wait <= 5000, wait);
  await new Promise((resolve) => setTimeout(resolve, Math.min(wait, 5000)));
  const after = await ask(b, 'in-time', 100);
  tell.check(`after exactly those ${grouped(wait)} ms it is admitted`, after.status === 200, {
    status: after.status,
  });
  const used = 2100 + 100 * admitted;
  const account = await stage.accountOnce(
    'hooli',
    (line) => line.total('spent') === used,
    'refilled',
  );
  const [issued, repaid] = [account.total('overdraftIssued'), account.total('overdraftRepaid')];
  tell.check(
    `all ${grouped(used)} are booked; of that ${grouped(issued)} were debt, and all of it is repaid`,
    account.total('spent') === used && issued > 0 && issued === repaid && account.line.debt === 0,
    { spent: account.total('spent'), issued, repaid },
  );
}

async function clientLeaves({ stage, backend, tell }: Play): Promise<void> {
  tell.say(
    'A client of umbrella leaves in the middle of its stream. Nobody knows yet what was used,',
  );
  tell.say('so nothing is given back: what may have been spent stays reserved.');
  const [a, b] = stage.gateways as [Gateway, Gateway];
  const leave = new AbortController();
  const response = await stage.send(a, {
    tenant: 'umbrella',
    key: 'impatient',
    stream: true,
    wish: { tokens: 120, hold: 'never' },
    signal: leave.signal,
  });
  if (response.status !== 200) {
    const got = { status: response.status, text: await response.text() };
    return tell.check('the stream begins', false, got);
  }
  const reader = response.body!.getReader();
  await reader.read();
  leave.abort();
  await reader.cancel().catch(() => undefined);
  const run = backend.executions.at(-1)!;
  await eventually('the backend notices', () => run.end === 'client left' || undefined);
  const unknown = await stage.stateOnce(run.reservation, 'USAGE_UNKNOWN');
  tell.check(`the reservation is ${unknown}`, unknown === 'USAGE_UNKNOWN');
  const second = await stage.ask(b, { tenant: 'umbrella', key: 'patient' });
  tell.say(told(b, second));
  tell.check('its 600 are still held: another 600 of 1,000 do not fit', second.status === 429);
  tell.say('Then the backend sends its receipt: 120.');
  await tellReceipt(a, run, tell);
  const account = await stage.accountOnce('umbrella', (line) => line.total('available') === 880);
  const settled = await stage.state(run.reservation);
  tell.check(
    `the receipt ended it: ${settled}, 880 are available`,
    settled === 'SETTLED' && account.total('available') === 880,
    account.total('available'),
  );
  await tellReceipt(b, run, tell);
  const again = await stage.account('umbrella');
  tell.check('the same receipt again moves nothing', again?.total('available') === 880);
}

async function tellReceipt(gateway: Gateway, run: Execution, tell: Teller): Promise<void> {
  const { total_tokens } = run.usage;
  const answer = await gateway.earmark.receipt(run.reservation, run.operation, total_tokens);
  tell.check(`earmark ${gateway.name} takes the receipt`, answer.status === 200, answer);
}

async function earmarkDies({ stage, backend, tell }: Play): Promise<void> {
  tell.say(
    'stark and wayne each have a request under way through gateway b. Its earmark is killed',
  );
  tell.say('(kill -9), with everything it knew.');
  const [a, b] = stage.gateways as [Gateway, Gateway];
  const before = backend.executions.length;
  const hold = { tokens: 300, hold: 'death' };
  const stark = stage.ask(b, { tenant: 'stark', key: 'long', wish: hold });
  const wayne = stage.ask(b, { tenant: 'wayne', key: 'long', stream: true, wish: hold });
  await eventually('both run', () => backend.executions.length === before + 2 || undefined);
  await b.earmark.kill();
  const closed = await stage.ask(b, { tenant: 'stark', key: 'while-dead' });
  tell.say(told(b, closed));
  tell.check('without its earmark, gateway b lets nothing through: 503', closed.status === 503, {
    status: closed.status,
  });
  const other = await stage.ask(a, { tenant: 'stark', key: 'elsewhere' });
  tell.say(told(a, other));
  tell.check('gateway a knows of the 600 that stark holds: 429', other.status === 429, {
    status: other.status,
  });
  await b.earmark.restart();
  tell.say('It is started again, knowing nothing. Now the two requests end.');
  backend.release('death');
  const answers = await Promise.all([stark, wayne]);
  tell.check('both clients get their whole answer', statuses(answers) === '200 200');
  for (const tenant of ['stark', 'wayne']) {
    const account = await stage.accountOnce(tenant, (line) => line.total('spent') === 300);
    const found = { spent: account.total('spent'), available: account.total('available') };
    const right = found.spent === 300 && found.available === 700;
    tell.check(`${tenant}: 300 spent, 700 available, nothing lost`, right, found);
  }
}

async function theBooks({ stage, backend, tell }: Play): Promise<void> {
  const audit = await stage.audit();
  const row = (cells: readonly (string | number)[]): string =>
    cells
      .map((cell, i) => (i === 0 ? String(cell).padEnd(10) : String(cell).padStart(12)))
      .join('');
  tell.say(row(['tenant', 'spent', 'reserved', 'available', 'debt', 'difference']));
  let spent = 0;
  for (const line of audit.lines) {
    const sum = (pick: (book: (typeof line.books)[number]) => number): number =>
      line.books.reduce((total, book) => total + pick(book), 0);
    spent += sum((book) => book.spent);
    const numbers = [
      sum((book) => book.spent),
      sum((book) => book.reserved),
      sum((book) => book.available),
      line.debt,
      sum((book) => Math.abs(book.difference)),
    ];
    tell.say(row([line.subject, ...numbers.map(grouped)]));
  }
  tell.check('the audit finds every book in balance', audit.ok && audit.lines.length > 0, {
    problems: audit.problems,
    lines: audit.lines.length,
  });
  const used = backend.executions.reduce((sum, run) => sum + run.usage.total_tokens, 0);
  tell.check(
    `the backend used ${grouped(used)} in ${backend.executions.length} requests; the ledger booked ${grouped(spent)}`,
    used === spent,
  );
}
