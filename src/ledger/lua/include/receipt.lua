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
  local f = cmsgpack.unpack(packed)
  return {
    field = field, packed = packed, state = STATES[f[1]], generation = f[2], epoch = f[3], units = f[4], actual = f[5], least = f[6],
    operation = f[7], digest = f[8], reservedAt = f[9], expiresAt = f[10], timer = f[11], attempt = f[12],
    grade = GRADES[f[13]] or '', breach = f[14], unstarted = f[15], twin = f[16], seq = f[17],
    -- of a key with more than one attempt, or with receipts of their own (`own`: their operations)
    latest = f[18] or f[12], newest = f[19] or '', first = f[20] or '', previous = f[21] or '', own = f[22] or {},
  }
end

local function pack_receipt(r)
  local f = {
    STATE_NUMBER[r.state], r.generation, r.epoch, r.units, r.actual, r.least,
    r.operation, r.digest, r.reservedAt, r.expiresAt, r.timer, r.attempt,
    GRADE_NUMBER[r.grade], r.breach, r.unstarted, r.twin, r.seq,
  }
  if r.latest ~= r.attempt or r.first ~= '' or #r.own > 0 then
    f[18], f[19], f[20], f[21], f[22] = r.latest, r.newest, r.first, r.previous, r.own
  end
  return cmsgpack.pack(f)
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
