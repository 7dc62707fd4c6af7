-- The movements every operation is made of: time passing, credit, excess, the move to another page.

-- line.closed: what closed books still hold, oldest first: {generation, epoch, limit, debt, reserved}.
local function closed_entry(line, page, book)
  for _, entry in ipairs(line.closed) do
    if entry[1] == page.generation and entry[2] == page.epoch and entry[3] == book.limit then
      return entry
    end
  end
end

-- Call after every change of a book of a closed page, so that the line knows of its debt and holds.
local function note_closed(line, page, book)
  local debt = book.overdraftIssued - book.overdraftRepaid
  local entry = closed_entry(line, page, book)
  if entry then
    entry[4], entry[5] = debt, book.reserved
  elseif debt > 0 or book.reserved > 0 then
    entry = { page.generation, page.epoch, book.limit, debt, book.reserved }
    local at = #line.closed + 1
    while at > 1 and (line.closed[at - 1][1] > entry[1]
      or line.closed[at - 1][1] == entry[1] and line.closed[at - 1][2] > entry[2]) do
      at = at - 1
    end
    table.insert(line.closed, at, entry)
  end
  page.dirty = true
end

local function debt_of(line, limit)
  local debt, book = 0, book_of(line.page, limit)
  if book then
    debt = book.overdraftIssued - book.overdraftRepaid
  end
  for _, entry in ipairs(line.closed) do
    if entry[3] == limit then
      debt = debt + entry[4]
    end
  end
  return debt
end

local function reserved_of(line, limit)
  local reserved, book = 0, book_of(line.page, limit)
  if book then
    reserved = book.reserved
  end
  for _, entry in ipairs(line.closed) do
    if entry[3] == limit then
      reserved = reserved + entry[5]
    end
  end
  return reserved
end

local function scale(amount, numerator, denominator)
  if numerator == denominator then
    return amount
  end
  return math.max(1, div(multiply(amount, numerator), denominator))
end

local function burst_of(line, i)
  return scale(line.terms.limits[i].burst, line.numerator, line.denominator)
end

local function limit_index(line, name)
  for i, limit in ipairs(line.terms.limits) do
    if limit.name == name then
      return i
    end
  end
end

-- Rule 3: the oldest debt of the limit first, then the open book up to its burst; the rest lapses where it came from.
local function credit(context, line, page, book, amount)
  for _, entry in ipairs(line.closed) do
    if amount > 0 and entry[3] == book.limit and entry[4] > 0 then
      local debtor_page = page_of(context, line, entry[1], entry[2])
      local debtor = book_of(debtor_page, book.limit)
      local paid = math.min(amount, entry[4])
      debtor.overdraftRepaid = debtor.overdraftRepaid + paid
      if debtor ~= book then
        book.carriedOut = add(book.carriedOut, paid)
        debtor.minted = add(debtor.minted, paid)
      end
      note_closed(line, debtor_page, debtor)
      amount = amount - paid
    end
  end
  local open_book = book_of(line.page, book.limit)
  if open_book and amount > 0 then
    local paid = math.min(amount, open_book.overdraftIssued - open_book.overdraftRepaid)
    local i = limit_index(line, book.limit)
    local kept = math.min(amount - paid, burst_of(line, i) - open_book.available)
    open_book.overdraftRepaid = open_book.overdraftRepaid + paid
    open_book.available = open_book.available + kept
    if open_book ~= book then
      book.carriedOut = add(book.carriedOut, paid + kept)
      open_book.minted = add(open_book.minted, paid + kept)
    end
    if open_book.available == burst_of(line, i) then
      line.remainders[i] = 0
    end
    amount = amount - paid - kept
  end
  book.lapsed = add(book.lapsed, amount)
  if page.isClosed then
    note_closed(line, page, book)
  end
end

-- Rule 6: what was used beyond a hold, from the open book first; answers what became overdraft.
local function excess(line, page, book, amount)
  local open_book = book_of(line.page, book.limit)
  local taken = open_book and math.min(amount, open_book.available) or 0
  if open_book and taken > 0 then
    open_book.available = open_book.available - taken
    if open_book ~= book then
      open_book.carriedOut = add(open_book.carriedOut, taken)
      book.minted = add(book.minted, taken)
    end
  end
  local overdraft = amount - taken
  book.overdraftIssued = add(book.overdraftIssued, overdraft)
  if page.isClosed then
    note_closed(line, page, book)
  end
  return overdraft
end

-- Rule 2, for one limit from `from` to `to`: what refill mints, and the new remainder.
local function minted_between(limit, units, cap, remainder, from, to)
  if type(limit.every) == 'string' then
    local boundaries = window_index(limit.every, to) - window_index(limit.every, from)
    return boundaries > div(cap, units) and cap or boundaries * units, 0
  end
  local elapsed = to - from
  local periods = div(elapsed, limit.every)
  local whole = periods > div(cap, units) and cap or periods * units
  local part = add(multiply(math.fmod(elapsed, limit.every), units), remainder)
  return add(whole, div(part, limit.every)), math.fmod(part, limit.every)
end

-- Everything that writes a line first lets time pass on it. A line's time never runs backwards.
local function pass_time(context, line)
  local now = line.now
  for i, limit in ipairs(line.terms.limits) do
    local book, burst = line.page.books[i], burst_of(line, i)
    if limit.units > 0 and now > line.clock then
      local units = scale(limit.units, line.numerator, line.denominator)
      local cap = burst + debt_of(line, limit.name)
      local minted
      minted, line.remainders[i] = minted_between(limit, units, cap, line.remainders[i], line.clock, now)
      if minted > 0 then
        book.minted = add(book.minted, minted)
        credit(context, line, line.page, book, minted)
      end
    end
    if book.available == burst then
      line.remainders[i] = 0
    end
  end
  line.clock = now
end

-- Every write of a twin goes through here, once for each operation.
local function touch(context, line)
  if not line.dirty then
    line.dirty = true
    line.seq = line.seq + 1
    if line.page then
      pass_time(context, line)
    end
    if line.frozen > 0 and line.frozen <= line.clock then
      line.frozen = 0
    end
  end
end

-- The time at which refill will have minted `short` units from now on; -1: never.
local function wait_for(line, i, short)
  local limit = line.terms.limits[i]
  if limit.units == 0 then
    return -1
  end
  local units = scale(limit.units, line.numerator, line.denominator)
  if type(limit.every) == 'string' then
    return window_wait(limit.every, line.clock, ceil_div(short, units))
  end
  local whole, rest = div(short, units), math.fmod(short, units)
  local ms = whole * limit.every
  if rest > 0 then
    ms = ms + ceil_div(rest * limit.every - line.remainders[i], units)
  elseif whole > 0 then
    ms = ms - div(line.remainders[i], units)
  end
  return ms > MAX and -1 or ms
end

-- A line opens full at its first request.
local function open_line(context, twin, budget, owner)
  local rules = budget.rules
  if not context.owner then
    context.owner, context.newOwner = owner, true
  end
  local line = {
    twin = twin, seq = 0, clock = context.time, now = context.time, owner = context.owner, rules = rules,
    newRules = true, generation = budget.generation, content = rules.content, numerator = budget.numerator,
    denominator = budget.denominator, frozen = 0, foldedTo = -1, terms = rules.terms, remainders = {},
    closed = {}, archive = {}, page = { generation = budget.generation, epoch = 0, kept = 0, books = {} },
  }
  line.page.epoch = context.time - math.fmod(context.time, line.terms.epoch)
  for i, limit in ipairs(line.terms.limits) do
    line.page.books[i] = new_book(limit.name, burst_of(line, i))
    line.remainders[i] = 0
  end
  context.twins[twin] = line
  touch(context, line)
  return line
end

-- Rules 5 and 7: to a newer generation, a later epoch, another factor. Creates no capacity, clears no debt.
local function move_line(context, line, budget)
  local newer = budget.generation > line.generation
  local terms = newer and budget.rules.terms or line.terms
  local factor_changed = budget.numerator * line.denominator ~= line.numerator * budget.denominator
  touch(context, line)
  local epoch = line.clock - math.fmod(line.clock, terms.epoch)
  local old_page, old_terms = line.page, line.terms
  line.numerator, line.denominator = budget.numerator, budget.denominator
  if not newer and epoch <= old_page.epoch then
    if factor_changed then
      for i, book in ipairs(old_page.books) do
        local above = math.max(0, book.available - burst_of(line, i))
        book.available, book.lapsed = book.available - above, add(book.lapsed, above)
        line.remainders[i] = 0
      end
    end
    return
  end
  local old_remainders = line.remainders
  if newer then
    line.rules, line.content, line.newRules = budget.rules, budget.rules.content, true
  end
  line.terms, line.generation, line.remainders = terms, budget.generation, {}
  line.page = { generation = budget.generation, epoch = epoch, kept = 0, books = {} }
  for i, limit in ipairs(terms.limits) do
    local burst, before = burst_of(line, i), book_of(old_page, limit.name)
    local opening = before and math.min(burst, before.available) or burst
    line.page.books[i] = new_book(limit.name, opening)
    line.remainders[i] = not newer and not factor_changed and opening < burst and old_remainders[i] or 0
    if before then
      before.available, before.carriedOut = before.available - opening, add(before.carriedOut, opening)
    end
  end
  old_page.isClosed, old_page.terms, old_page.line = true, old_terms, line
  old_page.field = page_field(line, old_page.generation, old_page.epoch)
  context.pages[old_page.field] = old_page
  for _, book in ipairs(old_page.books) do
    book.available, book.lapsed = 0, add(book.lapsed, book.available)
    note_closed(line, old_page, book)
  end
end
