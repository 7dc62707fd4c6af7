#!lua
-- Publishes a policy document, or puts a rollout in force. A full Redis refuses both as a whole.
-- KEYS: version, content (generation -> SHA-256), documents (generation -> canonical form), newest, rollout (hash)
-- ARGV: 'policy', generation, content, canonical | 'rollout', generation, canonical, and, where it was made from the
-- rollout in force, that one
-- Reply: {'moved'} | {'same'} | {'content', content there} | {'older', newest} | {'unknown', newest} | {'back', in force}
--   | {'raced', in force}
local version, contents, documents, newest, rollout = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local what, generation = ARGV[1], ARGV[2]
local latest = redis.call('GET', newest)

if what == 'policy' then
  local content, canonical = ARGV[3], ARGV[4]
  local there = redis.call('HGET', contents, generation)
  if there == content then return {'same'} end
  if there then return {'content', there} end
  if latest and tonumber(generation) < tonumber(latest) then return {'older', latest} end
  redis.call('HSET', contents, generation, content)
  redis.call('HSET', documents, generation, canonical)
  redis.call('SET', newest, generation)
  redis.call('INCR', version)
  return {'moved'}
end

local canonical, made_from = ARGV[3], ARGV[4]
local there = redis.call('HGET', rollout, 'canonical') or ''
if made_from and made_from ~= there then return {'raced', redis.call('HGET', rollout, 'generation') or ''} end
local inForce = redis.call('HGET', rollout, 'generation')
if redis.call('HEXISTS', contents, generation) == 0 then return {'unknown', latest or ''} end
-- Without a rollout the newest is in force, in shadow; lines never move back, shadow lines neither.
local floor = inForce or latest
if tonumber(generation) < tonumber(floor) then return {'back', floor} end
if there == canonical then return {'same'} end
redis.call('HSET', rollout, 'generation', generation, 'canonical', canonical, 'previous', there)
redis.call('INCR', version)
return {'moved'}
