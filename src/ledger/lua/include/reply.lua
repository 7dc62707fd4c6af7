-- What every operation answers: {'moved', view, shown, freezeRoute, wantsSweep}, {'same', view, shown, freezeRoute},
-- {'limited', view, by, limit, wait, needed}, {'refused', view, shown, why, detail}, {'failed', message}.
-- Line and receipt go out as they are stored, behind the replies; a reply has their lengths.
local stored = {}

local function send(packed)
  stored[#stored + 1] = packed
  return #packed
end

-- {} for no line; else its length, the time of the answer, and for each limit what is not stored: name, burst, debt,
-- ms until it is full.
local function view(line)
  if not line then
    return {}
  end
  local list = { send(line.packed), line.now }
  for i, limit in ipairs(line.terms.limits) do
    local burst, debt = burst_of(line, i), debt_of(line, limit.name)
    local short, at = burst + debt - line.page.books[i].available, 4 * i - 2
    list[at + 1], list[at + 2], list[at + 3] = limit.name, burst, debt
    list[at + 4] = short == 0 and limit.units > 0 and 0 or wait_for(line, i, short)
  end
  return list
end

-- Whose it is goes along: who asks by an ID alone does not know.
local function shown(line, receipt)
  return receipt and { receipt.field, send(receipt.packed), line.owner } or {}
end

local function moved(context, line, receipt, freeze_route)
  commit(context)
  return { 'moved', view(line), shown(line, receipt), freeze_route or false, context.wantsSweep or false }
end

local function same(line, receipt, freeze_route)
  return { 'same', view(line), shown(line, receipt), freeze_route or false }
end

local function refused(line, receipt, why, detail)
  return { 'refused', view(line), shown(line, receipt), why, detail or '' }
end
