-- sweep: what time alone does to a line. Each receipt makes one step; groups whose time has come fold.

local STEPS = {}

function STEPS.RESERVED(context, line, receipt, counts)
  if line.clock < receipt.expiresAt then
    return receipt.expiresAt
  end
  change(line, receipt, 'EXPIRING')
  counts.expiring = counts.expiring + 1
  return line.clock
end

function STEPS.EXPIRING(context, line, receipt, counts)
  return_hold(context, line, receipt, 'EXPIRED')
  counts.expired = counts.expired + 1
end

function STEPS.STARTED(context, line, receipt, counts)
  if line.clock < receipt.timer then
    return receipt.timer
  end
  receipt.timer = 0
  change(line, receipt, 'USAGE_UNKNOWN')
  index(context, 'ZREM', context.keys.due, receipt.field)
  counts.unknown = counts.unknown + 1
end

local function step_due(context, limit, counts)
  local due = redis.call('ZRANGEBYSCORE', context.keys.due, '-inf', text(context.time), 'LIMIT', 0, limit)
  for _, field in ipairs(due) do
    local receipt = receipt_of(context, field)
    local step = receipt and STEPS[receipt.state]
    if step then
      local line = twin_of(context, receipt.twin)
      touch(context, line)
      local again = step(context, line, receipt, counts)
      if again then
        index(context, 'ZADD', context.keys.due, text(again), field)
      end
    else
      index(context, 'ZREM', context.keys.due, field)
    end
  end
  return #due
end

-- All attempts of the key and the receipts of their own that belong to them; nil where one is still open.
local function group_of(context, field)
  local members, last = {}, 0
  local function take(name)
    local receipt = receipt_of(context, name)
    if not receipt then
      return true
    elseif not ENDED[receipt.state] then
      return false
    end
    members[#members + 1] = receipt
    last = math.max(last, receipt.timer)
    for _, own in ipairs(receipt.own) do
      if not take('u:' .. string.sub(name, 3) .. ':' .. own) then
        return false
      end
    end
    return true
  end
  local head = receipt_of(context, field)
  if head and string.sub(field, 1, 2) == 'u:' then
    local of = receipt_of(context, 'r:' .. string.sub(field, 3, 24))
    for _, own in ipairs(of and of.own or {}) do
      if own == head.operation then
        head, field = of, of.field
        break
      end
    end
  end
  if head and head.first ~= '' then
    field = 'r:' .. head.first
    head = receipt_of(context, field)
  end
  if not head then
    return {}, 0
  end
  local name = head.newest ~= '' and 'r:' .. head.newest or field
  while name do
    if not take(name) then
      return nil
    end
    local receipt = receipt_of(context, name)
    name = receipt and receipt.previous ~= '' and 'r:' .. receipt.previous or nil
  end
  return members, last
end

local function archive_receipts(context, members)
  local sums = {}
  for _, receipt in ipairs(members) do
    local line = twin_of(context, receipt.twin)
    touch(context, line)
    local page = page_of(context, line, receipt.generation, receipt.epoch)
    for i, book in ipairs(page.books) do
      sums[book] = (sums[book] or book.sum) + (receipt.actual and receipt.actual[i] or 0)
      if sums[book] > MAX then
        return false
      end
    end
  end
  for _, receipt in ipairs(members) do
    local line = twin_of(context, receipt.twin)
    local page = page_of(context, line, receipt.generation, receipt.epoch)
    for i, book in ipairs(page.books) do
      book.count, book.sum = book.count + 1, book.sum + (receipt.actual and receipt.actual[i] or 0)
    end
    page.kept, page.dirty = page.kept - 1, true
    line.foldedTo = math.max(line.foldedTo, receipt.reservedAt)
    context.receipts[receipt.field] = false
    context.gone[#context.gone + 1] = receipt.field
  end
  return true
end

-- The queue is in order of ending. An entry whose group ended again later, or is open again, has one further back.
local function fold(context, limit, counts)
  local entries = redis.call('LRANGE', context.keys.done, 0, limit - 1)
  for _, entry in ipairs(entries) do
    local colon = string.find(entry, ':', 1, true)
    local keep_until, field = tonumber(string.sub(entry, 1, colon - 1)), string.sub(entry, colon + 1)
    local head = receipt_of(context, field)
    local members, last = group_of(context, field)
    if members and #members > 0 and last <= keep_until then
      local line = head and twin_of(context, head.twin)
      if line.now < last or not archive_receipts(context, members) then
        return
      end
      counts.folded = counts.folded + #members
    end
    index(context, 'LPOP', context.keys.done)
  end
end

local function has_debt(line)
  for _, limit in ipairs(line.terms.limits) do
    if debt_of(line, limit.name) > 0 then
      return true
    end
  end
  return false
end

local function next_due(context, keys)
  local least = 0
  local function consider(time)
    if least == 0 or time < least then
      least = time
    end
  end
  local first = redis.call('ZRANGE', keys.due, 0, 0, 'WITHSCORES')
  if first[2] then
    consider(tonumber(type(first[2]) == 'table' and first[2].double or first[2]))
  end
  local entry = redis.call('LINDEX', keys.done, 0)
  if entry then
    consider(tonumber(string.match(entry, '^%d+')))
  end
  for _, line in pairs(context.twins) do
    if line and has_debt(line) then
      consider(context.time + 1000)
    end
  end
  return least
end

local function sweeping(p)
  return { limit = p[2], now = p[3] }
end

operation('sweep', sweeping, function(keys, a)
  local context = open(keys, a.now, {})
  local counts = { expiring = 0, expired = 0, unknown = 0, folded = 0 }
  local limit = math.max(1, integer(a.limit, 'limit'))
  for _, twin in ipairs({ 'line', 'shadow' }) do
    local line = twin_of(context, twin)
    if line and has_debt(line) then
      touch(context, line)
    end
  end
  step_due(context, limit, counts)
  fold(context, limit, counts)
  commit(context)
  return {
    'swept', counts.expiring, counts.expired, counts.unknown, counts.folded, next_due(context, keys), context.time,
  }
end)
