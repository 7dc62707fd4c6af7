-- start: the compare-and-set that binds an operation. Debt, freeze and drain stop reserve, not start.
local function start(context, line, receipt, bound)
  if receipt.operation == bound then
    return same(line, receipt)
  elseif receipt.operation ~= '' then
    return refused(line, receipt, 'bound')
  elseif receipt.state ~= 'RESERVED' then
    return refused(line, receipt, 'state')
  end
  touch(context, line)
  if line.clock >= receipt.expiresAt then
    change(line, receipt, 'EXPIRING')
    index(context, 'ZADD', context.keys.due, text(line.clock), receipt.field)
    commit(context)
    return refused(line, receipt, 'expired')
  end
  local page = page_of(context, line, receipt.generation, receipt.epoch)
  receipt.operation = bound
  receipt.timer = add(line.clock, terms_of(line, page).deadline)
  change(line, receipt, 'STARTED')
  index(context, 'ZADD', context.keys.due, text(receipt.timer), receipt.field)
  return moved(context, line, receipt)
end
