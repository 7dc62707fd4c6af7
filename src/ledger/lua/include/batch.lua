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

local function run_batch()
  local replies, at = {}, 1
  for n = 1, #KEYS / 3 do
    local keys = { line = KEYS[3 * n - 2], due = KEYS[3 * n - 1], done = KEYS[3 * n] }
    local known, given = operations[ARGV[at]], {}
    for i, name in ipairs(known.arguments) do
      given[name] = ARGV[at + i]
    end
    at = at + #known.arguments + 1
    local ok, reply = pcall(known.run, keys, given)
    replies[n] = ok and reply or failure(reply)
  end
  return replies
end
