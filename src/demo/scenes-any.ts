/** The story before a backend of the user's: only what holds with any that speaks OpenAI's protocol. */
import { told } from './scenes.js';
import type { Answer, Stage } from './stage.js';
import { grouped, type Teller } from './teller.js';

/** What the answer says was used; undefined: nothing. */
function usage(answer: Answer): number | undefined {
  const texts = answer.text.startsWith('data:')
    ? answer.text.split('\n').map((line) => line.replace(/^data: ?/, ''))
    : [answer.text];
  const totals = texts.map((text) => {
    try {
      return (JSON.parse(text) as { usage?: { total_tokens?: number } }).usage?.total_tokens;
    } catch {
      return undefined;
    }
  });
  return totals.findLast((total) => typeof total === 'number');
}

/** Asks once and checks that the ledger has booked exactly what the answer said. */
async function oneRequest(
  stage: Stage,
  tell: Teller,
  tenant: string,
  stream: boolean,
): Promise<void> {
  const gateway = stage.gateways[0]!;
  const question = { tenant, key: 'once', stream };
  const answer = await stage.ask(gateway, question);
  tell.say(told(gateway, answer));
  if (answer.status !== 200) tell.say(answer.text.slice(0, 300));
  tell.check('the backend answers', answer.status === 200, answer.status);
  const total = usage(answer);
  const account = await stage.accountOnce(tenant, (line) =>
    total === undefined
      ? line.reservations('USAGE_UNKNOWN') === 1
      : line.total('spent') === total && line.total('reserved') === 0,
  );
  if (total === undefined) {
    const unknown = account.reservations('USAGE_UNKNOWN');
    tell.say('It does not say what it used, so the 600 stay held until somebody does.');
    tell.check('USAGE_UNKNOWN, not free', unknown === 1, account.line.reservations);
  } else {
    const spent = account.total('spent');
    tell.check(`it used ${grouped(total)} tokens, ${grouped(spent)} are spent`, spent === total);
  }
  const again = await stage.ask(stage.gateways[1]!, question);
  tell.say(told(stage.gateways[1]!, again));
  tell.check('the same request again is not sent again: 409', again.status === 409, again.status);
}

/** Plays all of it. */
export async function playBeforeAny(stage: Stage, tell: Teller): Promise<void> {
  tell.title('One request, and the same again');
  await oneRequest(stage, tell, 'acme', false);

  tell.title('A stream, and the same again');
  await oneRequest(stage, tell, 'globex', true);

  tell.title('Three gateways, one budget');
  tell.say('initech has 1,000 tokens left; three requests hold 600 each.');
  const answers = await Promise.all(
    stage.gateways.map((gateway) => stage.ask(gateway, { tenant: 'initech', key: gateway.name })),
  );
  for (const [index, answer] of answers.entries()) tell.say(told(stage.gateways[index]!, answer));
  const used = answers.map((answer) => (answer.status === 200 ? (usage(answer) ?? 0) : 0));
  const sum = used.reduce((total, one) => total + one, 0);
  const refused = answers.filter((answer) => answer.status === 429).length;
  const admitted = answers.filter((answer) => answer.status === 200).length;
  tell.check('each was admitted or refused, at least one admitted', admitted >= 1, answers.length);
  tell.check('none was lost', admitted + refused === answers.length, { admitted, refused });
  const account = await stage.accountOnce('initech', (line) => line.total('spent') === sum);
  const spent = account.total('spent');
  tell.check(`they used ${grouped(sum)}, ${grouped(spent)} are spent`, spent === sum);

  tell.title('The books');
  const audit = await stage.audit();
  tell.check('the audit finds every book in balance', audit.ok, audit.problems);
}
