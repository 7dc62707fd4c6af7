-- freeze, unfreeze: an operator's stop of one line; and credit, an operator's gift of units.

local function line_named(keys, a)
  local context = open(keys, a.now, {})
  return context, twin_of(context, a.shadow and 'shadow' or 'line')
end

operation('freeze', { 'until', 'shadow', 'now' }, function(keys, a)
  local context, line = line_named(keys, a)
  if not line then
    return refused(nil, nil, 'not-found')
  end
  local till = a['until'] == -1 and -1 or integer(a['until'], 'until')
  if till == line.frozen or till ~= -1 and till <= line.now then
    return same(line, nil)
  end
  touch(context, line)
  line.frozen = till
  return moved(context, line, nil)
end)

operation('unfreeze', { 'shadow', 'now' }, function(keys, a)
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

operation('credit', { 'limit', 'units', 'shadow', 'now' }, function(keys, a)
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
