-- A receipt as it is stored, packed by position. `timer`: the usage deadline while STARTED, keepUntil once ended.
local STATES = {
  'RESERVED', 'STARTED', 'SETTLED', 'SETTLED_WITH_DEBT', 'RELEASED', 'EXPIRING', 'EXPIRED', 'USAGE_UNKNOWN',
}
local GRADES = { 'reported', 'neverSent', 'refused', 'presumed', 'operator' }
local STATE_NUMBER, GRADE_NUMBER = { [''] = 0 }, { [''] = 0 }
for number, name in ipairs(STATES) do
  STATE_NUMBER[name] = number
end
for number, name in ipairs(GRADES) do
  GRADE_NUMBER[name] = number
end
local ENDED = { SETTLED = true, SETTLED_WITH_DEBT = true, RELEASED = true, EXPIRED = true }

local function unpack_receipt(field, packed)
  local state, generation, epoch, units, actual, least, operation, digest, reserved_at, expires_at, timer, attempt,
    grade, breach, unstarted, twin, seq, latest, newest, first, previous, own = cmsgpack.unpack(packed)
  return {
    field = field, packed = packed, state = STATES[state], generation = generation, epoch = epoch, units = units,
    actual = actual, least = least, operation = operation, digest = digest, reservedAt = reserved_at,
    expiresAt = expires_at, timer = timer, attempt = attempt, grade = GRADES[grade] or '', breach = breach,
    unstarted = unstarted, twin = twin, seq = seq,
    -- of a key with more than one attempt, or with receipts of their own (`own`: their operations)
    latest = latest or attempt, newest = newest or '', first = first or '', previous = previous or '', own = own or {},
  }
end

local function pack_receipt(r)
  local packed = cmsgpack.pack(STATE_NUMBER[r.state], r.generation, r.epoch, r.units, r.actual, r.least, r.operation,
    r.digest, r.reservedAt, r.expiresAt, r.timer, r.attempt, GRADE_NUMBER[r.grade], r.breach, r.unstarted, r.twin, r.seq)
  if r.latest ~= r.attempt or r.first ~= '' or #r.own > 0 then
    packed = table.concat({ packed, cmsgpack.pack(r.latest, r.newest, r.first, r.previous, r.own) })
  end
  return packed
end

local function all_zero(list)
  for _, amount in ipairs(list) do
    if amount ~= 0 then
      return false
    end
  end
  return true
end

-- Ended, and on nothing weaker than real evidence that nothing ran (or, with `again`, whatever ran).
local function may_be_followed(receipt, again)
  if receipt.state == 'RELEASED' or receipt.state == 'EXPIRED' then
    return true
  end
  if receipt.state ~= 'SETTLED' and receipt.state ~= 'SETTLED_WITH_DEBT' or receipt.grade == 'presumed' then
    return false
  end
  return again or receipt.state == 'SETTLED' and all_zero(receipt.actual)
end
