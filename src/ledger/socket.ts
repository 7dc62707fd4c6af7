/** Paths of Unix sockets, which the kernel cuts at about 100 bytes. */
import { createHash } from 'node:crypto';
import { lstatSync, readlinkSync, symlinkSync, unlinkSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';

const PATH_BYTES_MAX = 100;

/** A path to the same socket that is short enough: by a symbolic link to its folder, where needed. */
export function shortSocket(path: string): string {
  const full = resolve(path);
  if (Buffer.byteLength(full) <= PATH_BYTES_MAX) return full;
  const folder = dirname(full);
  const hash = createHash('sha256').update(folder).digest('base64url').slice(0, 22);
  const user = process.getuid?.() ?? 0;
  const link = join(tmpdir(), `earmark-${user}-${hash}`);
  try {
    symlinkSync(folder, link);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    // Anyone may write to the folder of temporary files: only a link of our own is followed.
    const { uid } = lstatSync(link);
    if (uid !== user || readlinkSync(link) !== folder) {
      throw new Error(`${link} is in the way: remove it, or choose a folder with a shorter path`);
    }
  }
  return join(link, basename(full));
}

/** Takes the link away, where there is one; the next who needs it makes it anew. */
export function dropShortSocket(path: string): void {
  const short = shortSocket(path);
  if (short !== resolve(path)) unlinkSync(dirname(short));
}

/** Sends `request` and resolves with what came back within the time; undefined: nobody listens. */
export async function askSocket(
  path: string,
  request: string,
  ms: number,
): Promise<string | undefined> {
  return new Promise((done) => {
    let answer = '';
    let connected = false;
    const socket = connect(path);
    const end = (): void => {
      socket.destroy();
      done(connected ? answer : undefined);
    };
    socket.setTimeout(ms, end);
    socket.on('connect', () => {
      connected = true;
      socket.write(request);
    });
    socket.on('data', (data) => {
      answer += data.toString();
      if (answer.includes('\n')) end();
    });
    socket.on('error', end);
    socket.on('close', end);
  });
}
