#!lua flags=allow-oom
-- Freezes or unfreezes a whole route, and remembers which lines were frozen with it.
-- KEYS: version, freezes (hash: route -> until), the route's lines (set of tags)
-- ARGV: 'freeze', route, until (-1: until an operator ends it), tag or '' | 'unfreeze', route
-- Reply: {1 or 0: moved, tag, tag, ...} (tags only for unfreeze)
local version, freezes, lines = KEYS[1], KEYS[2], KEYS[3]
local what, route = ARGV[1], ARGV[2]
local there = tonumber(redis.call('HGET', freezes, route) or '0')

if what == 'unfreeze' then
  local tags = redis.call('SMEMBERS', lines)
  if there == 0 and #tags == 0 then return {0} end
  redis.call('HDEL', freezes, route)
  redis.call('DEL', lines)
  redis.call('INCR', version)
  table.insert(tags, 1, 1)
  return tags
end

local till, tag = tonumber(ARGV[3]), ARGV[4]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- A freeze that has ended leaves nothing to be unfrozen.
if there > 0 and there <= now then
  redis.call('DEL', lines)
  there = 0
end
if tag ~= '' then redis.call('SADD', lines, tag) end
-- The longest stands, and -1 is the longest.
if there == -1 or (till ~= -1 and till <= there) then return {0} end
redis.call('HSET', freezes, route, ARGV[3])
redis.call('INCR', version)
return {1}
