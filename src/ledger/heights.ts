/**
 * The highest write counter that this process saw of each line. A ledger that forgot acknowledged writes (a replica
 * that took over without them) shows a lower one afterwards: what was spent there must not be spent again.
 */

/** Lines remembered, the latest used last: 100 bytes each. */
const LINES_MAX = 50_000;

export interface Height {
  readonly real: number;
  readonly shadow: number;
}

const NONE: Height = { real: 0, shadow: 0 };

export class Heights {
  readonly #lines = new Map<string, Height>();

  /** Ask before a question is sent: only what was known by then must be in its answer. */
  of(tag: string): Height {
    return this.#lines.get(tag) ?? NONE;
  }

  /** Answers the height a line fell from; undefined: it did not fall. */
  see(tag: string, shadow: boolean, seq: number, before: Height): number | undefined {
    const wanted = shadow ? before.shadow : before.real;
    if (seq < wanted) return wanted;
    const known = this.of(tag);
    this.#lines.delete(tag);
    this.#lines.set(tag, {
      real: shadow ? known.real : Math.max(seq, known.real),
      shadow: shadow ? Math.max(seq, known.shadow) : known.shadow,
    });
    if (this.#lines.size > LINES_MAX) this.#lines.delete(this.#lines.keys().next().value!);
    return undefined;
  }

  /** A line that fell is counted anew from where it stands. */
  forget(tag: string): void {
    this.#lines.delete(tag);
  }
}
