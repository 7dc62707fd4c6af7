operation('start', { 'id', 'operation', 'now' }, function(keys, a)
  local context = open(keys, a.now, { 'r:' .. a.id })
  local receipt = context.receipts['r:' .. a.id]
  if not receipt then
    return refused(nil, nil, 'not-found')
  end
  return start(context, twin_of(context, receipt.twin), receipt, a.operation)
end)
