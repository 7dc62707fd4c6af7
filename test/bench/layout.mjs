/**
 * How a line is best stored: `node test/bench/layout.mjs [SERVER]` (default: redis-server of PATH). The same admissions
 * and settlements, 64 in one run of a script, over each layout in turn; only reading and writing differ. Writes its
 * figures into docs/decisions/0002-line-layout.md.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { pack } from 'msgpackr';

const OPERATIONS_A_RUN = 64;
const RUNS = 150;
const ROUNDS = 5;
const DOCUMENT = fileURLToPath(
  new URL('../../docs/decisions/0002-line-layout.md', import.meta.url),
);

/** 24 numbers of a line with one limit, and what seldom changes beside them. */
const LINE = `
local NAMES = {
  'format', 'seq', 'clock', 'generation', 'epoch', 'kept', 'numerator', 'denominator', 'frozen', 'foldedTo', 'limits',
  'opening', 'minted', 'issued', 'available', 'reserved', 'spent', 'retired', 'repaid', 'carried', 'lapsed', 'count',
  'sum', 'remainder',
}
local SEQ, CLOCK, KEPT, AVAILABLE, RESERVED, SPENT = 2, 3, 6, 15, 16, 17
local function new_line()
  local line = {}
  for i = 1, 24 do line[i] = 0 end
  line[AVAILABLE] = 9000000000000000
  line.rest = cmsgpack.pack({ 'tenant/of/some/length', 'chat.generate', string.rep('c', 64), string.rep('t', 180) })
  return line
end
`;

/** Arguments: a list of {admit or settle, id}. Each operation has its own line (and receipt, where that is a key). */
const ACCOUNT = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local done = 0
for n, op in ipairs(cmsgpack.unpack(ARGV[1])) do
  local key, receipt_key = KEYS[2 * n - 1], KEYS[2 * n]
  local line, receipt = load(key, receipt_key, op[2])
  line = line or new_line()
  line[SEQ], line[CLOCK] = line[SEQ] + 1, now
  if op[1] == 'admit' then
    line[KEPT], line[AVAILABLE], line[RESERVED] = line[KEPT] + 1, line[AVAILABLE] - 600, line[RESERVED] + 600
    receipt = { 2, 1, 0, { 600 }, false, false, op[3], op[4], now, now + 30000, now + 600000, 1, 0, false, false,
      'line', line[SEQ] }
    save(key, receipt_key, op[2], line, { SEQ, CLOCK, KEPT, AVAILABLE, RESERVED }, receipt)
  else
    line[AVAILABLE], line[RESERVED], line[SPENT] = line[AVAILABLE] + 400, line[RESERVED] - 600, line[SPENT] + 200
    receipt[1], receipt[5], receipt[11], receipt[13], receipt[17] = 3, { 200 }, now + 86400000, 1, line[SEQ]
    save(key, receipt_key, op[2], line, { SEQ, CLOCK, AVAILABLE, RESERVED, SPENT }, receipt)
  end
  done = done + 1
end
return done
`;

const DOUBLES = `
local FORMAT = '>' .. string.rep('d', 24)
local function pack_line(line) return struct.pack(FORMAT, unpack(line, 1, 24)) .. line.rest end
local function unpack_line(packed)
  local line = { struct.unpack(FORMAT, packed) }
  line.rest = string.sub(packed, 193)
  return line
end
`;

const layouts = {
  'one field, doubles': `${DOUBLES}
local function load(key, _, id)
  local raw = redis.call('HMGET', key, 'line', 'r:' .. id)
  return raw[1] and unpack_line(raw[1]), raw[2] and cmsgpack.unpack(raw[2])
end
local function save(key, _, id, line, _, receipt)
  redis.call('HSET', key, 'line', pack_line(line), 'r:' .. id, cmsgpack.pack(receipt))
end`,
  'one field, msgpack': `
local function load(key, _, id)
  local raw = redis.call('HMGET', key, 'line', 'r:' .. id)
  local line = raw[1] and cmsgpack.unpack(raw[1])
  if line then line.rest = line[25] end
  return line, raw[2] and cmsgpack.unpack(raw[2])
end
local function save(key, _, id, line, _, receipt)
  line[25], line.rest = line.rest, nil
  redis.call('HSET', key, 'line', cmsgpack.pack(line), 'r:' .. id, cmsgpack.pack(receipt))
end`,
  'one field, short msgpack': `
local function load(key, _, id)
  local raw = redis.call('HMGET', key, 'line', 'rest', 'r:' .. id)
  local line = raw[1] and { cmsgpack.unpack(raw[1]) }
  if line then line.kept = true end
  return line, raw[3] and { cmsgpack.unpack(raw[3]) }
end
local function save(key, _, id, line, _, receipt)
  local packed = cmsgpack.pack(unpack(line, 1, 24))
  local fields = { 'line', packed, 'r:' .. id, cmsgpack.pack(unpack(receipt, 1, 17)) }
  if not line.kept then
    fields[5], fields[6] = 'rest', line.rest
  end
  redis.call('HSET', key, unpack(fields))
end`,
  'a field for each counter': `
local function load(key, _, id)
  local raw = redis.call('HMGET', key, 'rest', 'r:' .. id, unpack(NAMES))
  if not raw[1] then return nil end
  local line = { rest = raw[1], kept = true }
  for i = 1, 24 do line[i] = tonumber(raw[i + 2]) end
  return line, raw[2] and cmsgpack.unpack(raw[2])
end
local function save(key, _, id, line, changed, receipt)
  local fields = { 'r:' .. id, cmsgpack.pack(receipt) }
  for i = 1, line.kept and #changed or 24 do
    local at = line.kept and changed[i] or i
    fields[#fields + 1] = NAMES[at]
    fields[#fields + 1] = string.format('%.0f', line[at])
  end
  if not line.kept then
    fields[#fields + 1], fields[#fields + 2] = 'rest', line.rest
  end
  redis.call('HSET', key, unpack(fields))
end`,
  'a key for each receipt': `${DOUBLES}
local function load(key, receipt_key)
  local packed, receipt = redis.call('GET', key), redis.call('GET', receipt_key)
  return packed and unpack_line(packed), receipt and cmsgpack.unpack(receipt)
end
local function save(key, receipt_key, _, line, _, receipt)
  redis.call('SET', receipt_key, cmsgpack.pack(receipt))
  redis.call('SET', key, pack_line(line))
end`,
};

async function startServer() {
  const folder = mkdtempSync(join(tmpdir(), 'earmark-layout-'));
  const socket = join(folder, 's');
  const args = ['--port', '0', '--unixsocket', socket, '--dir', folder, '--save', ''];
  const server = spawn(process.argv[2] ?? 'redis-server', [...args, '--appendonly', 'yes'], {
    stdio: 'ignore',
  });
  const redis = new Redis({ path: socket, retryStrategy: () => 20, replyMapping: 'legacy' });
  redis.on('error', () => undefined);
  await redis.ping();
  const stop = async () => {
    redis.disconnect();
    await new Promise((done) => server.once('exit', done).kill('SIGKILL'));
    rmSync(folder, { recursive: true, force: true });
  };
  return { redis, stop };
}

async function info(redis) {
  const text = await redis.info();
  const field = (name) => Number(new RegExp(`^${name}:([\\d.]+)`, 'm').exec(text)?.[1]);
  return {
    cpu: field('used_cpu_user') + field('used_cpu_sys'),
    file: field('aof_current_size'),
    memory: field('used_memory'),
    version: (/^valkey_version:(.*)$/m.exec(text) ?? /^redis_version:(.*)$/m.exec(text))[1].trim(),
    name: text.includes('valkey_version') ? 'Valkey' : 'Redis',
  };
}

let drawn = 0;

/** Admits and settles over so many lines; CPU of the server and bytes of its file, for each operation. */
async function measure(redis, sha, lines, runs) {
  const before = await info(redis);
  for (let run = 0; run < runs; run++) {
    const keys = [];
    const ids = [];
    for (let i = 0; i < OPERATIONS_A_RUN; i++) {
      const tag = `{line-of-22-characters-${drawn++ % lines}}`;
      const id = `receipt-${String(drawn).padStart(14, '0')}`;
      ids.push(id);
      keys.push(`earmark:${tag}:l`, `earmark:${tag}:r:${id}`);
    }
    for (const kind of ['admit', 'settle']) {
      const operation = 'o'.repeat(22);
      const list = ids.map((id) => [kind, id, operation, 'd'.repeat(43)]);
      await redis.evalsha(sha, keys.length, ...keys, pack(list));
    }
  }
  const after = await info(redis);
  const operations = runs * OPERATIONS_A_RUN * 2;
  return {
    us: ((after.cpu - before.cpu) * 1e6) / operations,
    bytes: (after.file - before.file) / operations,
    receipt: (after.memory - before.memory) / (operations / 2),
  };
}

const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];

const servers = new Map();
for (const [name, layout] of Object.entries(layouts)) {
  const server = await startServer();
  const sha = await server.redis.script('LOAD', `${LINE}${layout}${ACCOUNT}`);
  servers.set(name, { ...server, sha, one: [], many: [] });
}
for (const { redis, sha } of servers.values()) await measure(redis, sha, 10_000, 160);
for (let round = 0; round < ROUNDS; round++) {
  for (const { redis, sha, one, many } of servers.values()) {
    one.push(await measure(redis, sha, 1, RUNS));
    many.push(await measure(redis, sha, 10_000, RUNS));
  }
}

const { name, version } = await info([...servers.values()][0].redis);
const rows = [...servers].map(([layout, { one, many }]) => {
  const us = (list) => median(list.map((each) => each.us)).toFixed(1);
  const bytes = median(many.map((each) => each.bytes)).toFixed(0);
  const receipt = median(many.map((each) => each.receipt)).toFixed(0);
  return [layout, us(one), us(many), bytes, receipt];
});
for (const { stop } of servers.values()) await stop();

const head = [
  'layout',
  'µs, one line',
  'µs, 10,000 lines',
  'file, bytes',
  'memory, bytes a receipt',
];
const widths = head.map((title, i) => Math.max(title.length, ...rows.map((row) => row[i].length)));
const print = (row) => `| ${row.map((cell, i) => cell.padEnd(widths[i])).join(' | ')} |`;
const table = [print(head), print(widths.map((width) => '-'.repeat(width))), ...rows.map(print)];
const machine = `${name} ${version}, ${cpus()[0].model.trim()}, append-only file`;
const where = `${machine}, ${OPERATIONS_A_RUN} operations a run; median of ${ROUNDS} rounds in turn.`;
const figures = `<!-- figures -->\n\n${where}\n\n${table.join('\n')}\n\n<!-- end -->`;
process.stdout.write(`${figures}\n`);
const document = readFileSync(DOCUMENT, 'utf8');
writeFileSync(DOCUMENT, document.replace(/<!-- figures -->[\s\S]*<!-- end -->/, figures));
