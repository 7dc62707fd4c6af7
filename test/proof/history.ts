/**
 * Was it one ledger? Every reply carries the line's write counter, so a history recorded by many callers has an order
 * of its own: no search. It is linearizable if that order answers each question as the model does, and if nothing
 * that was answered stands behind something that was asked later. Linear in the number of calls.
 */
import type { LineDump, Outcome, Receipt } from '../../src/ledger/types.js';
import { replyDifferences } from '../model/compare.js';
import { step } from '../model/model.js';
import { type Event, type LineState, twinOf } from '../model/state.js';
import { tell } from '../model/story.js';

export interface Call {
  /** `now` is the ledger's to say: it stands in the reply. */
  readonly event: Event;
  readonly invoked: number;
  /** Undefined, as the reply: the answer was lost, and whether it ran is not known. */
  readonly answered: number | undefined;
  readonly reply: Outcome | undefined;
}

export interface Judgement {
  readonly violations: readonly string[];
  readonly checked: number;
  /** Lost answers that were found to have run. */
  readonly found: number;
}

type Known = Call & { readonly answered: number; readonly reply: Outcome };

/** A refused admission and a late start write the line as well. */
function writes({ reply }: Known): boolean {
  const late = reply.kind === 'refused' && reply.why === 'expired';
  return reply.kind === 'moved' || reply.kind === 'limited' || late;
}

function isKnown(call: Call): call is Known {
  return call.reply !== undefined && call.reply.line.seq > 0;
}

/** Of one line without shadow. `end`: the line as it stood when all was quiet. */
export function judge(first: LineState, calls: readonly Call[], end: LineDump): Judgement {
  const known = calls.filter(isKnown);
  known.sort(
    (a, b) =>
      a.reply.line.seq - b.reply.line.seq ||
      Number(writes(b)) - Number(writes(a)) ||
      a.reply.line.now - b.reply.line.now ||
      a.invoked - b.invoked,
  );
  const replay = new Replay(first, calls, known, end);
  for (const call of known) replay.add(call);
  return replay.finish();
}

class Replay {
  #state: LineState;
  readonly #calls: readonly Call[];
  readonly #seen = new Map<number, Receipt>();
  readonly #end: LineDump;
  readonly #violations: string[] = [];
  #checked = 0;
  #found = 0;
  #lastInvoked = Number.NEGATIVE_INFINITY;

  constructor(first: LineState, calls: readonly Call[], known: readonly Known[], end: LineDump) {
    this.#state = first;
    this.#end = end;
    const answered = new Set<Call>(known);
    // Lost ones first: a command that a network doubled ran once more than its answer says.
    this.#calls = [...calls.filter((call) => !answered.has(call)), ...known];
    for (const receipt of end.receipts) this.#seen.set(receipt.seq, receipt);
    for (const { reply } of known) {
      const receipt = 'receipt' in reply ? reply.receipt : undefined;
      if (receipt !== undefined) this.#seen.set(receipt.seq, receipt);
    }
  }

  get #seq(): number {
    return twinOf(this.#state, false)?.seq ?? 0;
  }

  add(call: Known): void {
    const { event, reply, invoked, answered } = call;
    this.#checked += 1;
    if (answered < this.#lastInvoked) {
      this.#say(call, 'was answered before something that stands ahead of it was asked');
    }
    this.#lastInvoked = Math.max(this.#lastInvoked, invoked);
    const { seq, now } = reply.line;
    this.#fill(writes(call) ? seq - 1 : seq, now);
    const next = step(this.#state, { ...event, now });
    const differences = replyDifferences(next.reply, reply);
    if (differences.length > 0) this.#say(call, differences.join('; '));
    this.#state = next.state;
  }

  finish(): Judgement {
    this.#fill(this.#end.seq, this.#end.clock);
    const violations = this.#violations;
    return { violations, checked: this.#checked, found: this.#found };
  }

  #say({ event, reply }: Known, what: string): void {
    this.#violations.push(`${reply.line.seq}: ${tell(event)}: ${what}`);
  }

  /** Writes up to `seq` whose answers nobody has: each must be a call whose answer was lost. */
  #fill(seq: number, before: number): void {
    while (this.#seq < seq) {
      const wanted = this.#seq + 1;
      const seen = this.#seen.get(wanted);
      const next = this.#calls.map((call) => this.#ran(call, seen, before)).find((state) => state);
      if (next === undefined) {
        this.#violations.push(`${wanted}: a write that nobody asked for`);
        return;
      }
      this.#state = next;
      this.#found += 1;
    }
  }

  /** The state after a call that may have made the next write; undefined: it can't have. */
  #ran({ event }: Call, seen: Receipt | undefined, before: number): LineState | undefined {
    if (seen !== undefined && 'id' in event && !seen.reservation.endsWith(event.id))
      return undefined;
    const clock = twinOf(this.#state, false)?.clock ?? before;
    const fresh = seen?.state === 'RESERVED' || seen?.state === 'STARTED';
    const now = Math.max(clock, fresh ? seen.reservedAt : clock);
    const { state, reply } = step(this.#state, { ...event, now });
    if (twinOf(state, false)?.seq !== this.#seq + 1 || !('kind' in reply)) return undefined;
    if (seen === undefined) return reply.kind === 'limited' ? state : undefined;
    const receipt = reply.kind === 'moved' ? reply.receipt : undefined;
    const isIt =
      receipt?.state === seen.state &&
      receipt.operation === seen.operation &&
      String(receipt.actual) === String(seen.actual);
    return isIt ? state : undefined;
  }
}
