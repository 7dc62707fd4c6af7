-- Many operations in one run: each with its own keys (line, due, done), its own reply and its own failure.
local operations = {}

local function operation(name, arguments, run)
  operations[name] = { arguments = arguments, run = run }
end

local function failure(message)
  if type(message) == 'table' and message.why then
    return { 'refused', message.why, message.detail, {}, {} }
  end
  return { 'failed', type(message) == 'table' and message.err or tostring(message) }
end

-- ARGV[1]: a list of {name, argument, ...}; the answer: a list of replies in the same order. Both msgpack: dozens of
-- small arguments and replies cost client and server more than the account's own work.
local function run_batch()
  local replies = {}
  for n, packed in ipairs(cmsgpack.unpack(ARGV[1])) do
    local keys = { line = KEYS[3 * n - 2], due = KEYS[3 * n - 1], done = KEYS[3 * n] }
    local known, given = operations[packed[1]], {}
    for i, name in ipairs(known.arguments) do
      given[name] = packed[i + 1]
    end
    local ok, reply = pcall(known.run, keys, given)
    replies[n] = ok and reply or failure(reply)
  end
  return cmsgpack.pack(replies)
end
