/**
 * The highest write counter that this process saw of each line. A ledger that forgot acknowledged writes (a replica
 * that took over without them) shows a lower one afterwards: what was spent there must not be spent again.
 */

/** Lines remembered, at least, the latest used; at most twice as many: 100 bytes each. */
const LINES = 25_000;

export interface Height {
  readonly real: number;
  readonly shadow: number;
}

const NONE: Height = { real: 0, shadow: 0 };

export class Heights {
  /** Two maps in turn: to keep one in the order of use, by deleting and setting anew, takes longer than the rest. */
  #lines = new Map<string, Height>();
  #before = new Map<string, Height>();

  /** Ask before a question is sent: only what was known by then must be in its answer. */
  of(tag: string): Height {
    return this.#lines.get(tag) ?? this.#before.get(tag) ?? NONE;
  }

  /** Answers the height a line fell from; undefined: it did not fall. */
  see(tag: string, shadow: boolean, seq: number, before: Height): number | undefined {
    const wanted = shadow ? before.shadow : before.real;
    if (seq < wanted) return wanted;
    const { real, shadow: inShadow } = this.of(tag);
    this.#lines.set(
      tag,
      shadow
        ? { real, shadow: Math.max(seq, inShadow) }
        : { real: Math.max(seq, real), shadow: inShadow },
    );
    if (this.#lines.size > LINES) {
      this.#before = this.#lines;
      this.#lines = new Map();
    }
    return undefined;
  }

  /** A line that fell is counted anew from where it stands. */
  forget(tag: string): void {
    this.#lines.delete(tag);
    this.#before.delete(tag);
  }
}
