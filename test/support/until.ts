/** Waits for something that a real process does in its own time. */
export async function until(
  holds: () => boolean | Promise<boolean>,
  what = 'it',
  ms = 10_000,
): Promise<void> {
  const deadline = performance.now() + ms;
  let last: unknown;
  while (performance.now() < deadline) {
    try {
      if (await holds()) return;
    } catch (error) {
      last = error;
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  throw new Error(`${what} did not happen within ${ms} ms`, { cause: last });
}
