-- One operation on one line: everything is read through it, changed in memory, and written by `commit` in one HSET.
local batch_time

local function ledger_time(now)
  if now ~= -1 then
    return integer(now, 'now')
  end
  if not batch_time then
    local time = redis.call('TIME')
    batch_time = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  return batch_time
end

-- `fields`: the receipts that are likely to be needed, read together with both twins.
local function open(keys, now, fields)
  local raw = redis.call('HMGET', keys.line, 'owner', 'line', 'rules', 'shadow', 'srules', unpack(fields))
  local context = {
    keys = keys, time = ledger_time(now), owner = raw[1], raw = raw, twins = {}, pages = {}, receipts = {}, index = {},
    gone = {},
  }
  for i, field in ipairs(fields) do
    context.receipts[field] = raw[i + 5] and unpack_receipt(field, raw[i + 5]) or false
  end
  return context
end

local function receipt_of(context, field)
  if context.receipts[field] == nil then
    local packed = redis.call('HGET', context.keys.line, field)
    context.receipts[field] = packed and unpack_receipt(field, packed) or false
  end
  return context.receipts[field]
end

local function twin_of(context, twin)
  if context.twins[twin] == nil then
    local at = twin == 'shadow' and 4 or 2
    local packed = context.raw[at]
    local line = packed and unpack_line(twin, packed, context.raw[at + 1]) or false
    if line then
      line.owner = context.owner
      -- A line's time never runs backwards; where nothing is written, this is only the time of the answer.
      line.now, line.packed = math.max(context.time, line.clock), packed
    end
    context.twins[twin] = line
  end
  return context.twins[twin]
end

local function page_field(line, generation, epoch)
  return (line.twin == 'shadow' and 'sb:' or 'b:') .. text(generation) .. ':' .. text(epoch)
end

local function page_of(context, line, generation, epoch)
  if line.page.generation == generation and line.page.epoch == epoch then
    return line.page
  end
  local field = page_field(line, generation, epoch)
  if not context.pages[field] then
    local packed = redis.call('HGET', context.keys.line, field)
    if not packed then
      error('the page ' .. field .. ' of this line is missing', 0)
    end
    local page = unpack_page(generation, epoch, packed)
    page.field, page.line = field, line
    context.pages[field] = page
  end
  return context.pages[field]
end

local function book_of(page, limit)
  for _, book in ipairs(page.books) do
    if book.limit == limit then
      return book
    end
  end
end

-- A command on one of the indexes; sent ahead of the HSET, so that a broken index stops the operation before it counts.
local function index(context, ...)
  context.index[#context.index + 1] = { ... }
end

local function is_idle(page)
  if page.kept > 0 then
    return false
  end
  for _, book in ipairs(page.books) do
    if book.reserved > 0 or book.overdraftIssued > book.overdraftRepaid then
      return false
    end
  end
  return true
end

-- False where a sum of the archive would overflow: the page then just stays.
local function archive(line, page)
  for _, book in ipairs(page.books) do
    local into = book_of({ books = line.archive }, book.limit)
    if into then
      for _, name in ipairs(COUNTERS) do
        if into[name] + book[name] > MAX then
          return false
        end
      end
      if into.sum + book.sum > MAX then
        return false
      end
    end
  end
  for _, book in ipairs(page.books) do
    local into = book_of({ books = line.archive }, book.limit)
    if not into then
      into = new_book(book.limit, 0)
      line.archive[#line.archive + 1] = into
    end
    for _, name in ipairs(COUNTERS) do
      into[name] = into[name] + book[name]
    end
    into.count, into.sum = into.count + book.count, into.sum + book.sum
  end
  return true
end

local function check_equation(page)
  for _, b in ipairs(page.books) do
    local left = b.opening + b.minted + b.overdraftIssued
    local right = b.available + b.reserved + b.spent + b.retiredForEmergency + b.overdraftRepaid + b.carriedOut
      + b.lapsed
    -- Sums above 2^53 are rounded; the audit adds them exactly. What rises goes through `add`, so only these can fall.
    if b.available < 0 or b.reserved < 0 or b.spent < 0 or left <= MAX and right <= MAX and left ~= right then
      error('the equation of the book would break', 0)
    end
  end
end

local function drop_settled(line)
  if #line.closed > 0 then
    local held = {}
    for _, entry in ipairs(line.closed) do
      if entry[4] > 0 or entry[5] > 0 then
        held[#held + 1] = entry
      end
    end
    line.closed = held
  end
end

-- Everything that changed: indexes first, then all counters, pages and receipts in one HSET.
local function commit(context)
  local fields, dropped = {}, context.gone
  local function set(field, value)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  for field, page in pairs(context.pages) do
    if page.dirty then
      check_equation(page)
      if is_idle(page) and archive(page.line, page) then
        dropped[#dropped + 1] = field
      else
        set(field, pack_page(page))
      end
    end
  end
  for twin, line in pairs(context.twins) do
    if line and line.dirty then
      drop_settled(line)
      check_equation(line.page)
      line.packed = pack_line(line)
      set(twin, line.packed)
      if line.newRules then
        set(twin == 'shadow' and 'srules' or 'rules', line.rules.packed)
      end
    end
  end
  if context.newOwner then
    set('owner', context.owner)
  end
  for field, receipt in pairs(context.receipts) do
    if receipt and receipt.dirty then
      receipt.packed = pack_receipt(receipt)
      set(field, receipt.packed)
    end
  end
  for _, command in ipairs(context.index) do
    redis.call(unpack(command))
  end
  if #fields > 0 then
    redis.call('HSET', context.keys.line, unpack(fields))
  end
  -- Groups have no bound, and unpack has: Lua's stack.
  for from = 1, #dropped, 1000 do
    redis.call('HDEL', context.keys.line, unpack(dropped, from, math.min(from + 999, #dropped)))
  end
end
