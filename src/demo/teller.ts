/** Tells the story on stdout and keeps count of what was as it should be. */

export interface Teller {
  title(text: string): void;
  say(text: string): void;
  /** One thing that must be so; `found` is told where it isn't. */
  check(what: string, ok: boolean, found?: unknown): void;
  readonly passed: number;
  readonly failed: number;
}

/** 1000 -> 1,000. */
export function grouped(value: number): string {
  return value.toLocaleString('en-US');
}

export function createTeller(write: (text: string) => void, colour: boolean): Teller {
  const paint = (code: number, text: string): string =>
    colour ? `\u001b[${code}m${text}\u001b[0m` : text;
  let scene = 0;
  let passed = 0;
  let failed = 0;
  return {
    title(text) {
      scene++;
      write(`\n${paint(1, `${scene}  ${text}`)}\n`);
    },
    say(text) {
      for (const line of text.split('\n')) write(`   ${line}\n`);
    },
    check(what, ok, found) {
      if (ok) passed++;
      else failed++;
      const mark = ok ? paint(32, '✓') : paint(31, '✗');
      const but = ok || found === undefined ? '' : ` (found: ${JSON.stringify(found)})`;
      write(`   ${mark} ${what}${but}\n`);
    },
    get passed() {
      return passed;
    },
    get failed() {
      return failed;
    },
  };
}
