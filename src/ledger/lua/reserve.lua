-- reserve, and admit (a reserve whose start runs along when nothing waits between them).

-- A receipt that can't be started is the answer itself: it says why.
local function start_known(context, line, receipt, bound)
  if receipt.state == 'RESERVED' or receipt.operation == bound then
    return start(context, line, receipt, bound)
  end
  return same(line, receipt)
end

local function limited(context, line, by, limit, wait, needed)
  commit(context)
  return { 'limited', view(line), by, limit, wait, needed }
end

-- The limit that fails with the longest wait: a wait that never ends is the longest.
local function longest(line, units, fails, short)
  local found, found_wait
  for i, limit in ipairs(line.terms.limits) do
    if fails(i, limit) then
      local wait = wait_for(line, i, short(i, limit))
      if wait == -1 and limit.units == 0 and reserved_of(line, limit.name) > 0 then
        wait = line.terms.hold
      end
      if not found or (wait == -1 and found_wait ~= -1) or (found_wait ~= -1 and wait > found_wait) then
        found, found_wait = i, wait
      end
    end
  end
  if found then
    return line.terms.limits[found].name, found_wait, units[found]
  end
end

-- Most admissions pass: this looks only whether one limit or another may stand in the way.
local function has_room(line, units)
  if #line.closed > 0 then
    return false
  end
  for i, book in ipairs(line.page.books) do
    if book.available < units[i] or book.overdraftIssued > book.overdraftRepaid then
      return false
    end
  end
  return true
end

-- What stops an admission, in the order of docs/ledger.md: the first that fails is named.
local function obstacle(line, units, closed, route_frozen)
  if line.frozen ~= 0 or route_frozen == -1 or route_frozen > line.clock then
    return 'frozen', '', -1, units[1]
  elseif closed then
    return 'closed', '', -1, units[1]
  end
  for i, limit in ipairs(line.terms.limits) do
    if units[i] > scale(limit.max, line.numerator, line.denominator) then
      return 'max-reservation', limit.name, -1, units[i]
    end
  end
  if has_room(line, units) then
    return nil
  end
  local function short(i, limit)
    return units[i] + debt_of(line, limit.name) - line.page.books[i].available
  end
  local limit, wait, needed = longest(line, units, function(_, terms)
    return debt_of(line, terms.name) > 0
  end, short)
  for _, entry in ipairs(line.closed) do
    if entry[4] > 0 and not limit_index(line, entry[3]) and (not limit or wait ~= -1) then
      limit, wait, needed = entry[3], -1, units[1]
    end
  end
  if limit then
    return 'debt', limit, wait, needed
  end
  limit, wait, needed = longest(line, units, function(i)
    return line.page.books[i].available < units[i]
  end, short)
  if limit then
    return 'capacity', limit, wait, needed
  end
end


local function follow(context, a, receipt)
  receipt.first, receipt.previous = a.first, a.previous
  local first = receipt_of(context, 'r:' .. a.first)
  first.latest, first.newest, first.dirty = receipt.attempt, a.id, true
end

local function reserve(keys, a, bound)
  local field, previous = 'r:' .. a.id, 'r:' .. a.previous
  local own = bound and 'u:' .. a.id .. ':' .. a.operation or field
  local fields = a.previous == '' and { field, own } or { field, own, previous, 'r:' .. a.first }
  local context = open(keys, a.now, fields)
  local units, attempt = integers(a.units, 'units'), integer(a.attempt, 'attempt')
  local budget = budget_at(a.budget)
  local twin = a.shadow and 'shadow' or 'line'
  local known = context.receipts[field]
  if known then
    local line = twin_of(context, known.twin)
    if known.digest ~= a.digest then
      return refused(line, known, 'digest')
    end
    return bound and start_known(context, line, known, bound) or same(line, known)
  end
  -- Overtaken: the operation's use is booked already, and nobody waits for this answer.
  local booked = context.receipts[own]
  if booked then
    return refused(twin_of(context, booked.twin), booked, 'state')
  end
  local line = twin_of(context, twin)
  if attempt > 1 then
    local before = context.receipts[previous]
    if not before or before.digest ~= a.digest or not may_be_followed(before, a.again)
      or not context.receipts['r:' .. a.first] then
      return refused(before and twin_of(context, before.twin) or line, before or nil, 'attempt')
    end
  end
  if line and budget.generation < line.generation then
    return refused(line, nil, 'stale', text(line.generation))
  elseif line and budget.generation == line.generation and budget.rules.content ~= line.content then
    return refused(line, nil, 'content', line.content)
  end
  if #units ~= #(line and budget.generation == line.generation and line.terms or budget.rules.terms).limits then
    fail('invalid', 'units: as many as the budget has limits')
  end
  for i, amount in ipairs(units) do
    units[i] = math.max(1, amount)
  end
  if line then
    move_line(context, line, budget)
  else
    line = open_line(context, twin, budget, a.owner)
  end
  local by, limit, wait, needed = obstacle(line, units, a.closed, a.routeFrozen)
  if by then
    return limited(context, line, by, limit, wait, needed)
  end
  for i, book in ipairs(line.page.books) do
    book.available, book.reserved = book.available - units[i], add(book.reserved, units[i])
  end
  line.page.kept = line.page.kept + 1
  local receipt = {
    field = field, generation = line.generation, epoch = line.page.epoch, units = units, actual = false,
    least = false, operation = '', digest = a.digest, reservedAt = line.clock,
    expiresAt = add(line.clock, line.terms.hold), timer = 0, attempt = attempt, grade = '', breach = false,
    unstarted = false, twin = twin, latest = attempt, newest = '', first = '', previous = '', own = {},
  }
  context.receipts[field] = receipt
  change(line, receipt, 'RESERVED')
  if attempt > 1 then
    follow(context, a, receipt)
  end
  if bound then
    return start(context, line, receipt, bound)
  end
  index(context, 'ZADD', keys.due, text(receipt.expiresAt), field)
  return moved(context, line, receipt)
end

local function reservation(p)
  return {
    id = p[2], digest = p[3], units = p[4], attempt = p[5], previous = p[6], first = p[7], budget = p[8],
    owner = p[9], shadow = p[10], closed = p[11], routeFrozen = p[12], again = p[13], operation = p[14], now = p[15],
  }
end

operation('reserve', reservation, function(keys, a)
  return reserve(keys, a, nil)
end)

operation('admit', reservation, function(keys, a)
  return reserve(keys, a, a.operation)
end)
