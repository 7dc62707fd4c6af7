#!lua
-- Ahead of admissions, in the same pipeline: the record of each Check by its request ID (for log entries without our
-- metadata), and when its line will want a sweep. Hints: the ledger never depends on them.
-- KEYS: for each: the due index of its line's shard, the request's record ("" where there is none: the index again).
-- ARGV: for each: tag, ms until due, operation, record, ms to keep.
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

for n = 1, #KEYS / 2 do
  local at = 5 * (n - 1)
  announce(KEYS[2 * n - 1], ARGV[at + 1], now + tonumber(ARGV[at + 2]))
  if ARGV[at + 3] ~= '' then
    redis.call('HSET', KEYS[2 * n], ARGV[at + 3], ARGV[at + 4])
    redis.call('PEXPIRE', KEYS[2 * n], ARGV[at + 5])
  end
end
return #KEYS / 2
