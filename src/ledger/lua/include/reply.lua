-- What every operation answers, in flat lists: {'moved', receipt, view, freezeRoute}, {'same', receipt, view},
-- {'limited', by, limit, wait, needed, view}, {'refused', why, detail, receipt, view}, {'failed', message}.
local function view(line)
  if not line then
    return {}
  end
  local list = { line.seq, line.now, line.generation, line.page.epoch, line.frozen }
  for i, limit in ipairs(line.terms.limits) do
    local book, burst, debt = line.page.books[i], burst_of(line, i), debt_of(line, limit.name)
    local short = burst + debt - book.available
    local at = 14 * i - 9
    list[at + 1], list[at + 2], list[at + 3] = limit.name, burst, debt
    list[at + 4] = short == 0 and limit.units > 0 and 0 or wait_for(line, i, short)
    list[at + 5], list[at + 6], list[at + 7] = book.opening, book.minted, book.overdraftIssued
    list[at + 8], list[at + 9], list[at + 10] = book.available, book.reserved, book.spent
    list[at + 11], list[at + 12] = book.retiredForEmergency, book.overdraftRepaid
    list[at + 13], list[at + 14] = book.carriedOut, book.lapsed
  end
  return list
end

local function shown(line, receipt)
  if not receipt then
    return {}
  end
  return {
    receipt.field, line.subject, line.route, receipt.twin, receipt.generation, receipt.epoch, receipt.digest,
    receipt.units, receipt.actual or '', receipt.least or '', receipt.operation, receipt.reservedAt,
    receipt.expiresAt, receipt.state, receipt.breach and 1 or 0, receipt.unstarted and 1 or 0, receipt.grade,
    receipt.attempt, receipt.latest, receipt.seq, ENDED[receipt.state] and receipt.timer or 0,
  }
end

local function moved(context, line, receipt, freeze_route)
  commit(context)
  return { 'moved', shown(line, receipt), view(line), freeze_route and 1 or 0 }
end

local function same(line, receipt)
  return { 'same', shown(line, receipt), view(line) }
end

local function refused(line, receipt, why, detail)
  return { 'refused', why, detail or '', shown(line, receipt), view(line) }
end
