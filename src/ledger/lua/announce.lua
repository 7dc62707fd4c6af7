#!lua
-- Ahead of admissions, in the same pipeline: the record of each Check by its request ID (for log entries without our
-- metadata), and when its line will want a sweep. Hints: the ledger never depends on them.
-- KEYS: for each: the due index of its line's shard, the request's record ("" where there is none: the index again).
-- ARGV[1]: for each, in msgpack: {tag, ms until due, operation, record, ms to keep}.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- A score with a fraction is a sweeper's lease (claim.lua): made whole, so that the sweeper sees that somebody came.
local function announce(index, tag, due)
  local score = tonumber(redis.call('ZSCORE', index, tag) or nil)
  if not score or due < score then
    redis.call('ZADD', index, string.format('%.0f', due), tag)
  elseif score ~= math.floor(score) then
    redis.call('ZADD', index, string.format('%.0f', math.floor(score)), tag)
  end
end

for n, hint in ipairs(cmsgpack.unpack(ARGV[1])) do
  announce(KEYS[2 * n - 1], hint[1], now + hint[2])
  if hint[3] ~= '' then
    redis.call('HSET', KEYS[2 * n], hint[3], hint[4])
    redis.call('PEXPIRE', KEYS[2 * n], hint[5])
  end
end
return #KEYS / 2
