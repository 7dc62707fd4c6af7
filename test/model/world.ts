/**
 * Small worlds, closed: every state that some commands at some instants can reach, found breadth-first by the model,
 * and every transition between them put on the real scripts: reply, seq and the whole line compared.
 */
import { groupOf } from './admission.js';
import { dumpDifferences, replyDifferences } from './compare.js';
import { type Reply, step } from './model.js';
import type { Real } from './real.js';
import type { Line } from './samples.js';
import { dumpLine, type Event, type LineState, type Twin, twinOf } from './state.js';
import { tell } from './story.js';

export interface World {
  readonly name: string;
  readonly line: Line;
  /** The most telling first. */
  readonly instants: readonly number[];
  /** So many of them are enough for a quick look. */
  readonly few: number;
  /** Answers that must have been given, or the world is not about what it is for. */
  readonly kinds: readonly string[];
  /** All that may be asked at an instant. */
  commands(now: number): readonly Event[];
  /** Some command looks at when a reservation was made: evidence with metadata, folding. */
  readonly looksBack?: boolean;
  /**
   * Bounds a world that would not close: states in which it is true are looked at, but nothing more
   * is asked of them.
   */
  readonly end?: (state: LineState) => boolean;
}

export interface Found {
  readonly states: number;
  readonly transitions: number;
  /** How often each kind of answer was given, by operation. */
  readonly kinds: ReadonlyMap<string, number>;
  /** The first of each sort, with the shortest way to it; empty where model and scripts agree. */
  readonly differences: readonly string[];
}

interface Node {
  readonly state: LineState;
  readonly at: string;
  /** How it was reached first. */
  readonly from: Node | undefined;
  readonly by: Event | undefined;
}

interface Transition {
  readonly node: Node;
  readonly event: Event;
  readonly after: LineState;
  readonly reply: Reply;
  readonly to: string;
}

/** Transitions under way at once. */
const CHUNK = 4096;
/** Of these, so many go together: while the server works on some, others are compared. */
const PART = 512;

/** Explores the whole world. */
export async function explore(world: World, real: Real): Promise<Found> {
  const search = new Search(world, real);
  return search.run();
}

class Search {
  readonly #world: World;
  readonly #real: Real;
  readonly #events: readonly Event[];
  readonly #seen = new Set<string>();
  readonly #dumped = new Set<string>();
  readonly #kinds = new Map<string, number>();
  readonly #differences = new Map<string, string>();
  #transitions = 0;
  #places = 0;

  constructor(world: World, real: Real) {
    this.#world = world;
    this.#real = real;
    this.#events = world.instants.flatMap((now) => world.commands(now));
  }

  async run(): Promise<Found> {
    const state = this.#world.line.empty();
    this.#seen.add(canonical(state, this.#world));
    const queue: Node[] = [{ state, at: this.#place(), from: undefined, by: undefined }];
    for (let next = 0; next < queue.length; ) {
      const transitions: Transition[] = [];
      const done: string[] = [];
      while (next < queue.length && transitions.length < CHUNK) {
        const node = queue[next++]!;
        done.push(node.at);
        if (this.#world.end?.(node.state)) continue;
        for (const event of this.#events) {
          if (event.now >= lastInstant(node.state)) transitions.push(this.#transition(node, event));
        }
      }
      const found = await Promise.all(parts(transitions).map((part) => this.#check(part)));
      queue.push(...found.flat());
      await this.#real.forget(done);
    }
    const differences = [...this.#differences.values()];
    const counts = { states: queue.length, transitions: this.#transitions, kinds: this.#kinds };
    return { ...counts, differences };
  }

  #place(): string {
    return `${this.#world.name} ${this.#places++}`;
  }

  #transition(node: Node, event: Event): Transition {
    const { state: after, reply } = step(node.state, event);
    return { node, event, after, reply, to: this.#place() };
  }

  /** Puts transitions on the scripts, compares, and answers the states that are new. */
  async #check(transitions: readonly Transition[]): Promise<Node[]> {
    const real = this.#real;
    await real.copy(transitions.map(({ node, to }) => [node.at, to]));
    const replies = await Promise.all(
      transitions.map(({ node, event, to }) => real.ask({ at: to, line: node.state, event })),
    );
    const digests = await real.digests(transitions.map(({ to }) => to));
    const dumps: Promise<void>[] = [];
    const found: Node[] = [];
    const over: string[] = [];
    for (const [i, transition] of transitions.entries()) {
      const { node, event, after, to, reply } = transition;
      this.#transitions += 1;
      this.#count(event, reply);
      this.#report(transition, replyDifferences(reply, replies[i]!));
      const digest = digests[i]!;
      if (!this.#dumped.has(digest)) {
        this.#dumped.add(digest);
        dumps.push(this.#compareDump(transition));
      }
      const name = after === node.state ? '' : canonical(after, this.#world);
      if (name === '' || this.#seen.has(name)) {
        over.push(to);
      } else {
        this.#seen.add(name);
        found.push({ state: after, at: to, from: node, by: event });
      }
    }
    await Promise.all(dumps);
    await real.forget(over);
    return found;
  }

  async #compareDump(transition: Transition): Promise<void> {
    const { after, to } = transition;
    const dump = await this.#real.dump(to, after.tag);
    this.#report(transition, dumpDifferences(dumpLine(after), dump));
  }

  #report(transition: Transition, found: readonly string[]): void {
    if (found.length === 0) return;
    const sort = [transition.event.op, ...found.map((text) => text.split(':')[0])].join();
    if (this.#differences.has(sort)) return;
    const way: string[] = [tell(transition.event)];
    for (let node: Node = transition.node; node.from !== undefined; node = node.from) {
      way.unshift(tell(node.by!));
    }
    this.#differences.set(sort, `${way.join('\n')}\n  ${found.join('\n  ')}`);
  }

  #count(event: Event, reply: Reply): void {
    const kind = `${event.op} ${kindOf(reply)}`;
    this.#kinds.set(kind, (this.#kinds.get(kind) ?? 0) + 1);
  }
}

function parts<T>(all: readonly T[]): T[][] {
  const result: T[][] = [];
  for (let from = 0; from < all.length; from += PART) result.push(all.slice(from, from + PART));
  return result;
}

/** moved SETTLED, refused digest, limited debt, … */
export function kindOf(reply: Reply): string {
  if (!('kind' in reply)) {
    const { nextDue: _due, now: _now, ...counts } = reply;
    const names = Object.entries(counts).filter(([, count]) => count > 0);
    return names.map(([name]) => name).join('+') || 'nothing';
  }
  switch (reply.kind) {
    case 'limited':
      return `limited ${reply.by}`;
    case 'refused':
      return `refused ${reply.why}`;
    default:
      return `${reply.kind} ${reply.receipt?.state ?? ''}`.trimEnd();
  }
}

/** The latest instant a state was written at: nothing is asked of it earlier. */
export function lastInstant(state: LineState): number {
  return Math.max(state.real?.clock ?? 0, state.shadow?.clock ?? 0);
}

/**
 * What tells states apart: all but how many writes it took to get there, and the times of receipts that nothing in the
 * world looks at: after its last instant, or, where it doesn't look back, when a reservation was made and would
 * have expired.
 */
export function canonical(state: LineState, world: World): string {
  const last = Math.max(...world.instants);
  const receipts = [...state.receipts.values()].map((kept) => {
    const { seq: _seq, keepUntil, reservedAt, expiresAt, ...rest } = kept;
    const dead = !world.looksBack && kept.state !== 'RESERVED';
    const times = dead ? [] : [reservedAt, expiresAt];
    return [...Object.values(rest), ...times, Math.min(keepUntil, last + 1)].join('|');
  });
  const twins = [false, true].map((shadow) => {
    const twin = twinOf(state, shadow);
    return twin === undefined ? '' : canonicalTwin(twin);
  });
  const done = world.looksBack ? state.done.filter(({ name }) => mayFold(state, name)) : [];
  const order = done.map(({ name, keepUntil }) => `${name}|${Math.min(keepUntil, last + 1)}`);
  return [...twins, ...receipts.sort(), ...order].join('\n');
}

/** An entry of a group that is open again is passed over. */
function mayFold(state: LineState, name: string): boolean {
  const receipts = groupOf(state, state.receipts.get(name)?.group);
  return receipts.length > 0 && receipts.every(({ keepUntil }) => keepUntil > 0);
}

function canonicalTwin(twin: Twin): string {
  const { clock, content, factor, frozenUntil, foldedTo, remainders, pages, archive } = twin;
  const books = pages.map(({ generation, epoch, kept, books }) => [
    ...[generation, epoch, kept],
    ...books.flatMap((book) => Object.values(book)),
  ]);
  const archived = [...archive].flatMap(([name, book]) => [name, ...Object.values(book)]);
  const line = [clock, content, factor.numerator, factor.denominator, frozenUntil, foldedTo];
  return [line, remainders, ...books, archived].join('/');
}
