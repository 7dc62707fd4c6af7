/** Between a client and a real server: at the n-th command it does what networks and servers do. */
import { connect, createServer, type Server, type Socket } from 'node:net';
import { Messages, words } from './resp.js';

export const FAULTS = [
  /** The connection breaks and the command never gets there. */
  'cut before',
  /** The command runs, its answer is cut off before the first byte. */
  'cut after the run',
  /** Half of the answer comes, then the connection breaks. */
  'cut in the answer',
  /** The whole answer comes, then the connection breaks. */
  'cut behind',
  /** The answer, and all behind it, comes late. */
  'late',
  /** Nothing goes through any more, and nobody says so: a network that is gone. */
  'hole',
  /** The server gets the command twice. */
  'double',
] as const;
export type Fault = (typeof FAULTS)[number];

/** What a client says of itself before it is ready: a fault is never meant for it. */
const HANDSHAKE = ['HELLO', 'CLIENT', 'INFO', 'SELECT', 'AUTH', 'PING'];

type Then = 'give' | 'swallow' | Fault;

/** One client's connection, and the one to the server that stands behind it. */
class Pair {
  readonly client: Socket;
  readonly server: Socket;
  /** What becomes of the answers to come, in order. */
  readonly #awaited: Then[] = [];
  readonly #held: (() => void)[] = [];
  #hole = false;
  #lateUntil = 0;

  constructor(proxy: FaultProxy, client: Socket, target: string) {
    this.client = client;
    this.server = connect(target);
    const commands = new Messages();
    client.on('data', (data) => {
      for (const command of commands.add(data)) this.#ask(command, proxy.faultOf(command));
    });
    const answers = new Messages();
    this.server.on('data', (data) => {
      for (const answer of answers.add(data)) this.#answer(proxy.rewrite(answer), proxy.lateMs);
    });
    for (const side of [client, this.server]) {
      side.on('error', () => this.cut());
      side.on('close', () => this.cut());
    }
  }

  cut(): void {
    this.client.destroy();
    this.server.destroy();
  }

  #ask(command: Buffer, fault: Fault | undefined): void {
    if (fault === 'hole') this.#hole = true;
    if (this.#hole) return;
    if (fault === 'cut before') {
      this.cut();
      return;
    }
    this.#awaited.push(fault ?? 'give');
    this.server.write(command);
    if (fault !== 'double') return;
    this.#awaited.push('swallow');
    this.server.write(command);
  }

  #answer(answer: Buffer, lateMs: number): void {
    const then = this.#awaited.shift();
    if (then === 'late') this.#lateUntil = performance.now() + lateMs;
    this.#held.push(() => this.#give(answer, then));
    this.#release();
  }

  /** What is late holds up all that comes behind it: a connection never changes the order of answers. */
  #release(): void {
    const wait = this.#lateUntil - performance.now();
    if (wait > 0) {
      setTimeout(() => this.#release(), wait);
      return;
    }
    for (const give of this.#held.splice(0)) give();
  }

  #give(answer: Buffer, then: Then | undefined): void {
    if (this.client.destroyed || this.#hole || then === 'swallow') return;
    if (then === 'cut after the run') this.cut();
    else if (then === 'cut in the answer') {
      this.client.write(answer.subarray(0, Math.ceil(answer.length / 2)), () => this.cut());
    } else if (then === 'cut behind') this.client.write(answer, () => this.cut());
    else this.client.write(answer);
  }
}

export class FaultProxy {
  readonly path: string;
  /** Every command that came, but for those of handshakes. */
  readonly commands: Buffer[] = [];
  lateMs = 300;
  /** What the client gets in place of an answer; as long as it was. */
  rewrite: (answer: Buffer) => Buffer = (answer) => answer;
  /** Where new connections lead. */
  target: string;
  readonly #server: Server;
  readonly #pairs = new Set<Pair>();
  #plan: { fault: Fault; left: number } | undefined;

  private constructor(path: string, target: string) {
    this.path = path;
    this.target = target;
    this.#server = createServer((client) => {
      const pair = new Pair(this, client, this.target);
      this.#pairs.add(pair);
      client.on('close', () => this.#pairs.delete(pair));
    });
  }

  static async listen(path: string, target: string): Promise<FaultProxy> {
    const proxy = new FaultProxy(path, target);
    await new Promise<void>((resolve) => proxy.#server.listen(path, resolve));
    return proxy;
  }

  get connections(): number {
    return this.#pairs.size;
  }

  /** The fault strikes once, at the n-th command from now. */
  arm(fault: Fault, n: number): void {
    this.#plan = { fault, left: n };
  }

  /** Whether it still waits for its command. */
  get armed(): boolean {
    return this.#plan !== undefined;
  }

  disarm(): void {
    this.#plan = undefined;
  }

  cutAll(): void {
    for (const pair of this.#pairs) pair.cut();
  }

  async stop(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.cutAll();
    await closed;
  }

  /** What is to happen to this command, asked once for each. */
  faultOf(command: Buffer): Fault | undefined {
    const name = words(command)[0]!.toString().toUpperCase();
    if (HANDSHAKE.includes(name)) return undefined;
    this.commands.push(command);
    if (this.#plan === undefined || --this.#plan.left > 0) return undefined;
    const { fault } = this.#plan;
    this.#plan = undefined;
    return fault;
  }
}
