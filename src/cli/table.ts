/** Columns of text; numbers to the right. Whatever could steer a terminal is shown as its escape. */

export function textTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const all = [head, ...rows].map((row) => row.map(printable));
  const widths = head.map((_title, at) => Math.max(...all.map((row) => row[at]!.length)));
  const isNumeric = head.map((_title, at) => rows.every((row) => /^\d+$/.test(row[at]!)));
  const lines = all.map((row) =>
    row
      .map((cell, at) => (isNumeric[at] ? cell.padStart(widths[at]!) : cell.padEnd(widths[at]!)))
      .join('  ')
      .trimEnd(),
  );
  return lines.join('\n');
}

export function printable(text: string): string {
  return /\p{C}/u.test(text) ? JSON.stringify(text).slice(1, -1).replace(/\p{C}/gu, '?') : text;
}
