/** Which functions of earmark take the time, out of a profile that Node wrote. */

interface Profile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: {
      readonly functionName: string;
      readonly url: string;
      readonly lineNumber: number;
    };
  }[];
  /** Node of each sample, and µs since the one before. */
  readonly samples: readonly number[];
  readonly timeDeltas: readonly number[];
}

type Frame = Profile['nodes'][number]['callFrame'];

/** The last parts of a path are enough to find the file. */
function placeOf({ functionName, url, lineNumber }: Frame): string {
  const name = functionName || '(anonymous)';
  return url === '' ? name : `${name} ${url.split('/').slice(-3).join('/')}:${lineNumber + 1}`;
}

/** Our folder, or the package, or the module of Node. */
function partOf({ functionName, url }: Frame): string {
  const ours = /\/dist\/(\w+)/.exec(url.replace(/.*node_modules.*/, ''));
  const other =
    /.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(url) ?? /^(node:[^/]+\/?[^/]*)/.exec(url);
  if (ours !== null) return `src/${ours[1]}`;
  if (other !== null) return other[1]!;
  return functionName.startsWith('(') ? functionName : "Node's own, in C++";
}

/** The greatest self times, idle left out, each as its share and its µs a request: by part, then by function. */
export function topOf(profile: Profile, requests: number, count: number): string {
  const frames = new Map(profile.nodes.map(({ id, callFrame }) => [id, callFrame]));
  const times = new Map<Frame, number>();
  profile.samples.forEach((id, index) => {
    const frame = frames.get(id)!;
    if (/^\((idle|root)\)$/.test(frame.functionName)) return;
    times.set(frame, (times.get(frame) ?? 0) + (profile.timeDeltas[index] ?? 0));
  });
  const rows = (nameOf: (frame: Frame) => string): string => listOf(times, nameOf, requests, count);
  return `${rows(partOf)}\n\n${rows(placeOf)}`;
}

function listOf(
  times: ReadonlyMap<Frame, number>,
  nameOf: (frame: Frame) => string,
  requests: number,
  count: number,
): string {
  const sums = new Map<string, number>();
  let total = 0;
  for (const [frame, us] of times) {
    const name = nameOf(frame);
    sums.set(name, (sums.get(name) ?? 0) + us);
    total += us;
  }
  return [...sums]
    .sort(([, a], [, b]) => b - a)
    .slice(0, count)
    .map(([name, us]) => {
      const share = ((us / total) * 100).toFixed(1).padStart(5);
      return `${share} %  ${(us / requests).toFixed(2).padStart(6)} µs  ${name}`;
    })
    .join('\n');
}
