/** What a backend does with a request, by the name that the request gives; some differ from attempt to attempt. */
import type { ServerResponse } from 'node:http';
import { constants, type Http2ServerResponse } from 'node:http2';
import type { Script } from '../support/envoy.js';

const USAGE = { prompt_tokens: 11, completion_tokens: 22, total_tokens: 33 };

const event = (data: object): string => `data: ${JSON.stringify(data)}\n\n`;
const CONTENT = event({ choices: [{ delta: { content: 'word' } }], usage: null });

/** The stream breaks: over HTTP/1.1 its connection, over HTTP/2 it alone. */
function breakOff(response: ServerResponse): void {
  const { stream } = response as unknown as Partial<Http2ServerResponse>;
  if (stream === undefined) response.socket?.destroy();
  else stream.close(constants.NGHTTP2_INTERNAL_ERROR);
}

function begin(response: ServerResponse, then?: () => void): void {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.write(CONTENT, () => then?.());
}

function complete(response: ServerResponse): void {
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(JSON.stringify({ choices: [], usage: USAGE }));
}

function fail(response: ServerResponse, status: number): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end('{}');
}

export const SCRIPTS: Readonly<Record<string, (attempt: number) => Script>> = {
  complete: () => (_request, response) => complete(response),
  silent: () => () => {},
  begin: () => (_request, response) => begin(response),
  usageThenSilent: () => (_request, response) => {
    begin(response);
    response.write(event({ choices: [], usage: USAGE }));
  },
  beginThenBreak: () => (_request, response) => {
    begin(response, () => setTimeout(() => breakOff(response), 20));
  },
  breakAtOnce: () => (_request, response) => breakOff(response),
  truncated: () => (_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': 1000 });
    response.write('{"choices":', () => setTimeout(() => breakOff(response), 20));
  },
  failed: () => (_request, response) => fail(response, 500),
  overloaded: () => (_request, response) => fail(response, 503),
  overloadedOnce: (attempt) => (_request, response) =>
    attempt === 1 ? fail(response, 503) : complete(response),
};
