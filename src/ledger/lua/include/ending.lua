-- How a receipt ends: what was used against what was held, breach, and the queue of those that will fold.

local function terms_of(line, page)
  return page.isClosed and page.terms or line.terms
end

local function change(line, receipt, state)
  receipt.state, receipt.seq, receipt.dirty = state, line.seq, true
end

local function end_receipt(context, line, receipt, state)
  local page = page_of(context, line, receipt.generation, receipt.epoch)
  if not ENDED[receipt.state] then
    receipt.timer = add(line.clock, terms_of(line, page).retention)
    -- In this order: an entry in `done` of a receipt that is open does no harm, one missing in `due` would.
    index(context, 'RPUSH', context.keys.done, text(receipt.timer) .. ':' .. receipt.field)
    index(context, 'ZREM', context.keys.due, receipt.field)
  end
  change(line, receipt, state)
end

-- The hold goes back whole: RELEASED, EXPIRED.
local function return_hold(context, line, receipt, state)
  local page = page_of(context, line, receipt.generation, receipt.epoch)
  for i, book in ipairs(page.books) do
    book.reserved = book.reserved - receipt.units[i]
    credit(context, line, page, book, receipt.units[i])
  end
  end_receipt(context, line, receipt, state)
end

-- A route has one freeze, which is enforced: what a line in shadow does is no reason for it.
local function stops_route(line, terms)
  return terms.breach == 'freezeRoute' and line.twin ~= 'shadow'
end

local function freeze_for(line, duration)
  local till = duration == 0 and -1 or line.clock + duration
  if line.frozen ~= -1 and (till == -1 or till > line.frozen) then
    line.frozen = till
  end
end

-- From `before` (what counts as held or as spent until now, each limit) to `actual`. Booked in full whatever it breaks.
local function book_use(context, line, receipt, actual, grade)
  local page = page_of(context, line, receipt.generation, receipt.epoch)
  local terms, replaces = terms_of(line, page), ENDED[receipt.state]
  -- No sweep may be waiting for what was not open to time: it gets a time to fold, or a debt to repay, just now.
  context.wantsSweep = replaces or receipt.state == 'USAGE_UNKNOWN'
  local issued, went_down, breach = false, false, false
  for i, book in ipairs(page.books) do
    local before = replaces and receipt.actual[i] or receipt.units[i]
    if replaces then
      book.spent = add(book.spent, actual[i] - before)
    else
      book.reserved, book.spent = book.reserved - before, add(book.spent, actual[i])
    end
    local overdraft = 0
    if actual[i] < before then
      went_down = true
      credit(context, line, page, book, before - actual[i])
    elseif actual[i] > before then
      overdraft = excess(line, page, book, actual[i] - before)
    end
    if page.isClosed then
      note_closed(line, page, book)
    end
    local limit = terms.limits[i]
    issued = issued or overdraft > 0
    if overdraft > 0 and limit.overdraft >= 0 and debt_of(line, limit.name) > limit.overdraft
      or limit.cap >= 0 and actual[i] > limit.cap then
      breach = true
    end
  end
  local stays = replaces and receipt.state == 'SETTLED_WITH_DEBT' and not went_down
  receipt.actual, receipt.grade = actual, grade
  receipt.breach = receipt.breach or breach
  end_receipt(context, line, receipt, (issued or stays) and 'SETTLED_WITH_DEBT' or 'SETTLED')
  if breach and terms.breach ~= 'mark' then
    freeze_for(line, terms.freeze)
  end
  return breach and stops_route(line, terms)
end

-- One amount for several limits is in the budget's unit: a limit with a cost of its own then stands at what is held.
local function spread(list, terms, units)
  if #list == #terms.limits then
    return list
  end
  if #list ~= 1 then
    fail('invalid', 'amounts: as many as the budget has limits, or one')
  end
  local result = {}
  for i, limit in ipairs(terms.limits) do
    if limit.own == 1 then
      result[i] = list[1] > 0 and units[i] or 0
    else
      result[i] = list[1]
    end
  end
  return result
end

local function same_amounts(a, b)
  for i, amount in ipairs(a) do
    if b[i] ~= amount then
      return false
    end
  end
  return true
end

local function zeros(count)
  local list = {}
  for i = 1, count do
    list[i] = 0
  end
  return list
end

-- A receipt of its own for a use that no start won: same reservation, that operation, no units held.
local function own_receipt(context, line, field, page, operation, reserved_at, of)
  local receipt = {
    field = field, state = 'USAGE_UNKNOWN', generation = page.generation, epoch = page.epoch,
    units = zeros(#page.books), actual = false, least = false, operation = operation, digest = of and of.digest or '',
    reservedAt = reserved_at, expiresAt = reserved_at, timer = 0, attempt = of and of.attempt or 1, grade = '',
    breach = false, unstarted = true, twin = line.twin, latest = of and of.attempt or 1, newest = '', first = '',
    previous = '', own = {},
  }
  context.receipts[field] = receipt
  page.kept = page.kept + 1
  page.dirty = true
  if of then
    of.own[#of.own + 1] = operation
    of.dirty = true
  end
  change(line, receipt, 'USAGE_UNKNOWN')
  return receipt
end
