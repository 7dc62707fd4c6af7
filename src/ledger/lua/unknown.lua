-- unknown: it ran, and nobody says how much. Stays reserved, never counted as unused; the least known is kept.

local function raise_least(context, line, receipt, list)
  if ENDED[receipt.state] then
    return same(line, receipt)
  end
  local page = page_of(context, line, receipt.generation, receipt.epoch)
  local least, changed = receipt.least or {}, receipt.state == 'STARTED'
  if #list > 0 then
    for i, amount in ipairs(spread(list, terms_of(line, page), receipt.units)) do
      if not least[i] or amount > least[i] then
        least[i], changed = amount, true
      end
    end
  end
  if not changed then
    return same(line, receipt)
  end
  touch(context, line)
  receipt.least = #least > 0 and least
  if receipt.state == 'STARTED' then
    receipt.timer = 0
    index(context, 'ZREM', context.keys.due, receipt.field)
  end
  change(line, receipt, 'USAGE_UNKNOWN')
  return moved(context, line, receipt)
end

local unknown = {}

function unknown.bound(context, line, receipt, list, a)
  return raise_least(context, line, receipt, list)
end

function unknown.own(context, line, receipt, list, a)
  local page = page_of(context, line, receipt.generation, receipt.epoch)
  return raise_least(context, line, receipt, fit(list, terms_of(line, page)))
end

function unknown.unbound(context, line, receipt, list, a)
  receipt.operation, receipt.unstarted, receipt.state = a.operation, true, 'STARTED'
  return raise_least(context, line, receipt, list)
end

local function open_own(context, line, page, list, a, reserved_at, of, field)
  local receipt = own_receipt(context, line, field, page, a.operation, reserved_at, of)
  local least = fit(list, terms_of(line, page))
  receipt.least = #least > 0 and spread(least, terms_of(line, page), receipt.units)
  return moved(context, line, receipt)
end

function unknown.lost(context, line, receipt, list, a, field)
  touch(context, line)
  local page = page_of(context, line, receipt.generation, receipt.epoch)
  return open_own(context, line, page, list, a, receipt.reservedAt, receipt, field)
end

function unknown.forgotten(context, line, list, a, field)
  line = line_for_forgotten(context, a)
  if not line then
    return refused(nil, nil, 'not-found')
  end
  return open_own(context, line, line.page, list, a, integer(a.reservedAt, 'reservedAt'), nil, field)
end

operation('unknown', evidence, function(keys, a)
  return weigh(keys, a, integers(a.amounts, 'least'), unknown)
end)
