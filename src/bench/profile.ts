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

/** The last parts of a path are enough to find the file. */
function placeOf({ functionName, url, lineNumber }: Profile['nodes'][number]['callFrame']): string {
  const name = functionName || '(anonymous)';
  return url === '' ? name : `${name} ${url.split('/').slice(-3).join('/')}:${lineNumber + 1}`;
}

/** The `count` greatest self times, idle left out, each as its share and its µs a request. */
export function topOf(profile: Profile, requests: number, count: number): string {
  const places = new Map(profile.nodes.map(({ id, callFrame }) => [id, placeOf(callFrame)]));
  const times = new Map<string, number>();
  let total = 0;
  profile.samples.forEach((id, index) => {
    const place = places.get(id) ?? '';
    if (place === '(idle)' || place === '(program)') return;
    const us = profile.timeDeltas[index] ?? 0;
    times.set(place, (times.get(place) ?? 0) + us);
    total += us;
  });
  return [...times]
    .sort(([, a], [, b]) => b - a)
    .slice(0, count)
    .map(([place, us]) => {
      const share = ((us / total) * 100).toFixed(1).padStart(5);
      return `${share} %  ${(us / requests).toFixed(2).padStart(6)} µs  ${place}`;
    })
    .join('\n');
}
