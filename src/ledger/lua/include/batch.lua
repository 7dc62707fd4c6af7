-- Many operations in one run: each with its own keys (line, due, done), its own reply and its own failure.
local operations = {}

-- `read`: the arguments by name; the client reads their places from its text.
local function operation(name, read, run)
  operations[name] = { read = read, run = run }
end

local function failure(message)
  if type(message) == 'table' and message.why then
    return { 'refused', {}, {}, message.why, message.detail }
  end
  return { 'failed', type(message) == 'table' and message.err or tostring(message) }
end

-- ARGV[1]: a list of {name, argument, ...}; ARGV[2]: the budgets that they name by place. The answer: a list of
-- {reply, bytes that it shows}, and those bytes, one after the other. All msgpack: dozens of small arguments and replies cost more than the account's own work.
local function run_batch()
  local replies, sent = {}, {}
  for n, packed in ipairs(cmsgpack.unpack(ARGV[1])) do
    local keys = { line = KEYS[3 * n - 2], due = KEYS[3 * n - 1], done = KEYS[3 * n] }
    local known = operations[packed[1]]
    stored = {}
    local ok, reply = pcall(known.run, keys, known.read(packed))
    local bytes = ok and table.concat(stored) or ''
    replies[n] = { ok and reply or failure(reply), #bytes }
    sent[n] = bytes
  end
  return { cmsgpack.pack(replies), table.concat(sent) }
end
