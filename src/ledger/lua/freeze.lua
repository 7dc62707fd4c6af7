-- freeze, unfreeze: an operator's stop of one line; and credit, an operator's gift of units.

local function line_named(keys, a)
  local context = open(keys, a.now, {})
  return context, twin_of(context, a.shadow and 'shadow' or 'line')
end

local function freezing(p)
  return { till = p[2], shadow = p[3], now = p[4] }
end

local function thawing(p)
  return { shadow = p[2], now = p[3] }
end

local function giving(p)
  return { limit = p[2], units = p[3], shadow = p[4], now = p[5] }
end

operation('freeze', freezing, function(keys, a)
  local context, line = line_named(keys, a)
  if not line then
    return refused(nil, nil, 'not-found')
  end
  local till = a.till == -1 and -1 or integer(a.till, 'until')
  if till == line.frozen or till ~= -1 and till <= line.now then
    return same(line, nil)
  end
  touch(context, line)
  line.frozen = till
  return moved(context, line, nil)
end)

operation('unfreeze', thawing, function(keys, a)
  local context, line = line_named(keys, a)
  if not line then
    return refused(nil, nil, 'not-found')
  elseif line.frozen == 0 or line.frozen > 0 and line.frozen <= line.now then
    return same(line, nil)
  end
  touch(context, line)
  line.frozen = 0
  return moved(context, line, nil)
end)

operation('credit', giving, function(keys, a)
  local context, line = line_named(keys, a)
  local book = line and book_of(line.page, a.limit)
  if not book then
    return refused(line, nil, 'not-found', line and 'no such limit' or 'no such line')
  end
  touch(context, line)
  local units = integer(a.units, 'units')
  book.minted = add(book.minted, units)
  credit(context, line, line.page, book, units)
  return moved(context, line, nil)
end)
