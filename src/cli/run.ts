/** The commands of `earmark`: which there are, what they are given, where their words go. */
import { readFileSync } from 'node:fs';
import { ConfigError, type Environment, loadConfig } from '../config/load.js';
import { NO_CONNECTION } from '../ledger/reason.js';
import { LedgerUnavailable } from '../ledger/types.js';
import { serveCommand } from '../serve.js';
import { auditCommand } from './audit.js';
import { LedgerContext } from './context.js';
import { creditCommand } from './credit.js';
import { freezeCommand, unfreezeCommand } from './freeze.js';
import { type CommandResult, policyCommand, wrongUsage } from './policy.js';
import { receiptCommand } from './receipt.js';
import { reservationCommand } from './reservation.js';
import { rolloutCommand } from './rollout.js';

/** `table`: for people, on stdout whatever the code is. */
type Result = CommandResult & { readonly table?: string };

interface Command {
  readonly usage: string;
  readonly does: string;
  /** It reads its options itself. */
  readonly options?: true;
  run(args: readonly string[], context: LedgerContext): Promise<Result>;
}

const COMMANDS: Readonly<Record<string, Command>> = {
  policy: {
    usage: 'policy validate FILE | publish FILE | show [GENERATION] | revert GENERATION',
    does: 'checks, publishes and shows policies',
    run: policyCommand,
  },
  rollout: {
    usage:
      'rollout apply FILE | show | set [--generation N] [--route ROUTE] [--mode MODE] [--percent N] | undo',
    does: 'says which generation is in force, and how far',
    options: true,
    run: rolloutCommand,
  },
  freeze: {
    usage: 'freeze --route ROUTE [--subject SUBJECT [--shadow]] [--for 15m]',
    does: 'stops admissions of a route or of one line',
    options: true,
    run: freezeCommand,
  },
  unfreeze: {
    usage: 'unfreeze --route ROUTE [--subject SUBJECT [--shadow]]',
    does: 'lets them go on',
    options: true,
    run: unfreezeCommand,
  },
  reservation: {
    usage: 'reservation show ID | list [--state STATE] [--route ROUTE] [--subject SUBJECT]',
    does: 'shows what is kept of a reservation, or finds reservations',
    options: true,
    run: reservationCommand,
  },
  receipt: {
    usage: 'receipt RESERVATION --units N [--operation OPERATION]',
    does: 'says what a reservation has used, for one that nobody reported',
    options: true,
    run: receiptCommand,
  },
  credit: {
    usage: 'credit --route ROUTE --subject SUBJECT --units N [--limit LIMIT] [--shadow]',
    does: 'gives a line units, its debt first',
    options: true,
    run: creditCommand,
  },
  audit: {
    usage: 'audit',
    does: 'adds the whole ledger up, exit code 1 if it does not',
    run: auditCommand,
  },
};

const SERVE = 'serve --config FILE';

function help(): string {
  const commands = [
    [SERVE, 'answers Envoy, settles what was used'],
    ...Object.values(COMMANDS).map(({ usage, does }) => [usage, does]),
  ];
  return `usage: earmark COMMAND [--config FILE] [--json]

${commands.map(([usage, does]) => `  earmark ${usage}\n      ${does}`).join('\n')}

The ledger is the one of --config FILE, or EARMARK_LEDGER_URL. --json prints JSON. --help, --version.
Exit codes: 0 done, 1 failed, 2 wrong usage.`;
}

export interface Streams {
  out(text: string): void;
  err(text: string): void;
}

/** Options that every command takes, taken out of its arguments. */
interface Common {
  readonly args: readonly string[];
  readonly config: string | undefined;
  readonly json: boolean;
  readonly help: boolean;
  readonly version: boolean;
}

class WrongUsage extends Error {}

function readCommon(argv: readonly string[]): Common {
  const common = { json: false, help: false, version: false };
  const args: string[] = [];
  let config: string | undefined;
  for (let at = 0; at < argv.length; at++) {
    const arg = argv[at]!;
    if (arg === '--config') {
      config = argv[++at];
      if (config === undefined) throw new WrongUsage('--config needs a FILE');
    } else if (arg.startsWith('--config=')) config = arg.slice('--config='.length);
    else if (arg === '--json') common.json = true;
    else if (arg === '--help' || arg === '-h') common.help = true;
    else if (arg === '--version') common.version = true;
    else args.push(arg);
  }
  return { ...common, args, config };
}

/** Runs one command; resolves with the exit code. */
export async function run(
  argv: readonly string[],
  environment: Environment,
  streams: Streams,
): Promise<number> {
  let common: Common;
  try {
    common = readCommon(argv);
  } catch (error) {
    if (!(error instanceof WrongUsage)) throw error;
    streams.err(error.message);
    return 2;
  }
  const [name, ...args] = common.args;
  if (common.version) {
    streams.out(version());
    return 0;
  }
  if (common.help || name === 'help') {
    streams.out(help());
    return 0;
  }
  if (name === undefined) {
    streams.err(help());
    return 2;
  }
  if (name === 'serve') return serve(args, common, environment, streams);
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (command === undefined) {
    const known = ['serve', ...Object.keys(COMMANDS)].join(', ');
    streams.err(`unknown command ${name}: there are ${known}`);
    return 2;
  }
  const result = await resultOf(command, args, common, environment);
  if (common.json) streams.out(JSON.stringify(result.json));
  else if (result.table !== undefined) streams.out(result.table);
  if (result.code !== 0) streams.err(result.text);
  else if (!common.json) streams.out(result.text);
  return result.code;
}

async function resultOf(
  command: Command,
  args: readonly string[],
  common: Common,
  environment: Environment,
): Promise<Result> {
  let context: LedgerContext | undefined;
  try {
    const odd = command.options ? undefined : args.find((arg) => arg.startsWith('-'));
    if (odd !== undefined) {
      return wrongUsage(`unknown option ${odd}\nusage: earmark ${command.usage}`);
    }
    context = new LedgerContext(() => loadConfig(common.config, environment));
    return await command.run(args, context);
  } catch (error) {
    if (!(error instanceof ConfigError) && !(error instanceof LedgerUnavailable)) throw error;
    const isAway = error.message.startsWith(NO_CONNECTION);
    const text = (isAway && context?.remedy(error.message)) || error.message;
    return { text, json: { ok: false, error: text }, code: 1 };
  } finally {
    await context?.close();
  }
}

async function serve(
  args: readonly string[],
  common: Common,
  environment: Environment,
  streams: Streams,
): Promise<number> {
  if (args.length > 0) {
    const odd = args[0]!.startsWith('-') ? `unknown option ${args[0]}\n` : '';
    streams.err(`${odd}usage: earmark ${SERVE}`);
    return 2;
  }
  try {
    return await serveCommand(common.config, environment);
  } catch (error) {
    streams.err((error as Error).message);
    return 1;
  }
}

function version(): string {
  const file = new URL('../../package.json', import.meta.url);
  return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version;
}
