local function releasing(p)
  return { id = p[2], now = p[3] }
end

operation('release', releasing, function(keys, a)
  local context = open(keys, a.now, { 'r:' .. a.id })
  local receipt = context.receipts['r:' .. a.id]
  if not receipt then
    return refused(nil, nil, 'not-found')
  end
  local line = twin_of(context, receipt.twin)
  if receipt.state == 'RELEASED' then
    return same(line, receipt)
  elseif receipt.state ~= 'RESERVED' then
    return refused(line, receipt, 'state')
  end
  touch(context, line)
  return_hold(context, line, receipt, 'RELEASED')
  return moved(context, line, receipt)
end)
