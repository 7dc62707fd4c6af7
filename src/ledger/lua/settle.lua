-- settle: what was really used, by the operation that used it; booked in full, whatever state the hold is in.

-- The answer that named the route may have been lost: it is named again for as long as the line is frozen.
local function booked_before(context, line, receipt)
  local terms = terms_of(line, page_of(context, line, receipt.generation, receipt.epoch))
  local frozen = line.frozen == -1 or line.frozen > line.now
  return same(line, receipt, receipt.breach and frozen and stops_route(line, terms))
end

local function replace(context, line, receipt, actual, grade)
  local equal = same_amounts(actual, receipt.actual or zeros(#actual))
  local presumed = receipt.grade == 'presumed'
  if grade == 'presumed' then
    return (equal or not presumed) and booked_before(context, line, receipt) or refused(line, receipt, 'conflict')
  elseif presumed then
    touch(context, line)
    return moved(context, line, receipt, book_use(context, line, receipt, actual, grade))
  end
  return equal and booked_before(context, line, receipt) or refused(line, receipt, 'conflict')
end

local function settle_open(context, line, receipt, list, grade)
  local page = page_of(context, line, receipt.generation, receipt.epoch)
  local actual = spread(list, terms_of(line, page), receipt.units)
  if ENDED[receipt.state] then
    return replace(context, line, receipt, actual, grade)
  end
  touch(context, line)
  return moved(context, line, receipt, book_use(context, line, receipt, actual, grade))
end

local settle = {}

function settle.bound(context, line, receipt, list, a)
  return settle_open(context, line, receipt, list, a.grade)
end

function settle.own(context, line, receipt, list, a)
  local page = page_of(context, line, receipt.generation, receipt.epoch)
  return settle_open(context, line, receipt, fit(list, terms_of(line, page)), a.grade)
end

function settle.unbound(context, line, receipt, list, a)
  if all_zero(list) and receipt.state == 'EXPIRING' then
    return same(line, receipt)
  end
  touch(context, line)
  if all_zero(list) then
    receipt.grade = a.grade
    return_hold(context, line, receipt, 'RELEASED')
    return moved(context, line, receipt)
  end
  receipt.operation, receipt.unstarted = a.operation, true
  return settle_open(context, line, receipt, list, a.grade)
end

local function book_own(context, line, page, list, a, reserved_at, of, field)
  local receipt = own_receipt(context, line, field, page, a.operation, reserved_at, of)
  return settle_open(context, line, receipt, fit(list, terms_of(line, page)), a.grade)
end

function settle.lost(context, line, receipt, list, a, field)
  if all_zero(list) then
    return same(line, receipt)
  end
  touch(context, line)
  local page = page_of(context, line, receipt.generation, receipt.epoch)
  return book_own(context, line, page, list, a, receipt.reservedAt, receipt, field)
end

function settle.forgotten(context, line, list, a, field)
  if all_zero(list) then
    return same(line, nil)
  end
  line = line_for_forgotten(context, a)
  if not line then
    return refused(nil, nil, 'not-found')
  end
  return book_own(context, line, line.page, list, a, integer(a.reservedAt, 'reservedAt'), nil, field)
end

operation('settle', evidence, function(keys, a)
  if #a.amounts == 0 then
    fail('invalid', 'actual: as many amounts as the budget has limits, or one')
  end
  return weigh(keys, a, integers(a.amounts, 'actual'), settle)
end)
