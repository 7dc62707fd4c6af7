-- Evidence names an operation; this finds the receipt it is about, or says that there is none to be had.

-- About an older reservation of the same ID that the ledger forgot: the one that is kept came later.
local function is_older(a, receipt)
  return a.reservedAt ~= -1 and not a.unreserved and receipt.operation ~= a.operation
    and receipt.reservedAt > integer(a.reservedAt, 'reservedAt')
end

-- The line for a use without a kept receipt; opened where the ledger has none and the metadata says under what.
local function line_for_forgotten(context, a)
  local twin = a.shadow and 'shadow' or 'line'
  local line = twin_of(context, twin)
  if line then
    touch(context, line)
  elseif a.budget ~= '' then
    local under = cjson.decode(a.budget)
    line = open_line(context, twin, read_budget(under.budget), under.owner)
  end
  return line
end

-- Amounts made for another set of limits than the page's: the greatest stands for the budget's unit.
local function fit(list, terms)
  if #list > 0 and #list ~= #terms.limits then
    return { math.max(unpack(list)) }
  end
  return list
end

-- `on`: what to do with a receipt that is bound, unbound, its own, lost (the start was not won), or forgotten.
local function weigh(keys, a, list, on)
  local field, own_field = 'r:' .. a.id, 'u:' .. a.id .. ':' .. a.operation
  local context = open(keys, a.now, { field, own_field })
  local receipt, own = context.receipts[field], context.receipts[own_field]
  if own then
    return on.own(context, twin_of(context, own.twin), own, list, a)
  end
  if receipt and not is_older(a, receipt) then
    local line = twin_of(context, receipt.twin)
    if receipt.operation == a.operation then
      return on.bound(context, line, receipt, list, a)
    elseif receipt.operation == '' and (receipt.state == 'RESERVED' or receipt.state == 'EXPIRING') then
      return on.unbound(context, line, receipt, list, a)
    end
    return on.lost(context, line, receipt, list, a, own_field)
  end
  local line = twin_of(context, a.shadow and 'shadow' or 'line')
  if a.reservedAt == -1 then
    return refused(line, nil, 'not-found')
  elseif line and integer(a.reservedAt, 'reservedAt') <= line.foldedTo then
    return refused(line, nil, 'too-late')
  end
  return on.forgotten(context, line, list, a, own_field)
end

-- `budget`: JSON of what a line is opened under, read only where the ledger has none; "" where nobody knows.
local function evidence(p)
  return {
    id = p[2], operation = p[3], amounts = p[4], grade = p[5], reservedAt = p[6], unreserved = p[7], shadow = p[8],
    budget = p[9], now = p[10],
  }
end
