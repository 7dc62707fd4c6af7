/** The demo's earmarks, run the way a user runs them: `earmark serve --config FILE` and the other commands. */
import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { stringify } from 'yaml';
import { environment, eventually, freePort, type Process, type ProcessGroup } from './process.js';

const MAIN = fileURLToPath(new URL('../main.js', import.meta.url));
const DOCUMENTS = fileURLToPath(new URL('../../envoy/', import.meta.url));

/** One `earmark serve` beside one Envoy; it can be killed and started again. */
export class DemoEarmark {
  readonly name: string;
  readonly socket: string;
  readonly admin: string;
  readonly config: string;
  readonly #processes: ProcessGroup;
  #process: Process;

  private constructor(name: string, processes: ProcessGroup, ledger: object, port: number) {
    this.name = name;
    this.#processes = processes;
    this.socket = join(processes.folder, `${name}.sock`);
    this.admin = `127.0.0.1:${port}`;
    this.config = join(processes.folder, `${name}.yaml`);
    const settings = {
      gateway: `demo-${name}`,
      listen: { envoy: `unix:${this.socket}`, admin: this.admin },
      ledger,
      policy: join(DOCUMENTS, 'demo-policy.yaml'),
      rollout: join(DOCUMENTS, 'demo-rollout.yaml'),
    };
    writeFileSync(this.config, stringify(settings));
    this.#process = this.#spawn();
  }

  /** Starts one that is ready to answer Checks. */
  static async start(name: string, processes: ProcessGroup, ledger: object): Promise<DemoEarmark> {
    const earmark = new DemoEarmark(name, processes, ledger, await freePort());
    await earmark.#ready();
    return earmark;
  }

  /** kill -9: no chance to say goodbye. */
  async kill(): Promise<void> {
    await this.#process.end('SIGKILL');
  }

  async restart(): Promise<void> {
    this.#process = this.#spawn();
    await this.#ready();
  }

  /** What a backend that knows what it used tells earmark itself. */
  async receipt(
    reservation: string,
    operation: string,
    units: number,
  ): Promise<{ status: number; body: unknown }> {
    const answer = await fetch(`http://${this.admin}/v1/receipts`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ reservation, operation, units }),
    });
    return { status: answer.status, body: await answer.json() };
  }

  #spawn(): Process {
    const args = [MAIN, 'serve', '--config', this.config];
    return this.#processes.start(`earmark ${this.name}`, process.execPath, args);
  }

  async #ready(): Promise<void> {
    await eventually(`earmark ${this.name} is ready`, async () => {
      this.#process.mustRun();
      const answer = await fetch(`http://${this.admin}/readyz`).catch(() => undefined);
      return answer?.ok || undefined;
    });
  }
}

/** A book as `earmark audit --json` prints it. */
export interface AuditBook {
  readonly opening: number;
  readonly minted: number;
  readonly overdraftIssued: number;
  readonly overdraftRepaid: number;
  readonly available: number;
  readonly reserved: number;
  readonly spent: number;
  readonly difference: number;
}

export interface AuditLine {
  readonly subject: string;
  readonly route: string;
  readonly shadow: boolean;
  readonly debt: number;
  readonly suspended: 'debt' | 'frozen' | null;
  readonly books: readonly AuditBook[];
  readonly reservations: Readonly<Record<string, number>>;
}

export interface Audit {
  readonly ok: boolean;
  readonly lines: readonly AuditLine[];
  readonly problems: readonly { readonly line: string; readonly problem: string }[];
}

/** Runs a command of earmark and reads the JSON that it prints. */
export async function earmark(config: string, ...command: readonly string[]): Promise<unknown> {
  const args = [MAIN, ...command, '--config', config, '--json'];
  return new Promise((resolve, reject) => {
    execFile(process.execPath, args, { env: environment() }, (error, stdout, stderr) => {
      try {
        resolve(JSON.parse(stdout));
      } catch {
        reject(new Error(`earmark ${command.join(' ')}: ${stderr.trim() || error?.message}`));
      }
    });
  });
}
