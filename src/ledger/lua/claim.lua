#!lua flags=allow-oom
-- Which lines want a sweep. Any number of sweepers may ask: who is answered a line has it for the lease.
-- claim: KEYS: the indexes. ARGV: 'claim', limit for each, lease in ms. Answers {lease, tag, tag, ...} for each index.
-- finish: KEYS: one index. ARGV: 'finish', tag, lease, next due (0: nothing more). Left alone where somebody came.
local function print_score(score)
  return string.format('%.1f', score)
end

if ARGV[1] == 'finish' then
  local score = redis.call('ZSCORE', KEYS[1], ARGV[2])
  if score and tonumber(score) == tonumber(ARGV[3]) then
    if ARGV[4] == '0' then
      redis.call('ZREM', KEYS[1], ARGV[2])
    else
      redis.call('ZADD', KEYS[1], ARGV[4], ARGV[2])
    end
  end
  return 1
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local lease = print_score(now + tonumber(ARGV[3]) + 0.5)
local claimed = {}
for n = 1, #KEYS do
  local tags = redis.call('ZRANGEBYSCORE', KEYS[n], '-inf', print_score(now), 'LIMIT', 0, ARGV[2])
  for _, tag in ipairs(tags) do
    redis.call('ZADD', KEYS[n], lease, tag)
  end
  table.insert(tags, 1, lease)
  claimed[n] = tags
end
return claimed
