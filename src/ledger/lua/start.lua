local function binding(p)
  return { id = p[2], operation = p[3], now = p[4] }
end

operation('start', binding, function(keys, a)
  local context = open(keys, a.now, { 'r:' .. a.id })
  local receipt = context.receipts['r:' .. a.id]
  if not receipt then
    return refused(nil, nil, 'not-found')
  end
  return start(context, twin_of(context, receipt.twin), receipt, a.operation)
end)
