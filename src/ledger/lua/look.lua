#!lua flags=no-writes
-- A receipt and its line as they stand, without moving anything. KEYS: the line. ARGV: the receipt's field.
--- @include number
--- @include window
--- @include line
--- @include receipt
--- @include context
--- @include account
--- @include reply
local context = open({ line = KEYS[1] }, -1, { ARGV[1] })
local receipt = context.receipts[ARGV[1]]
if not receipt then
  return false
end
return { cmsgpack.pack(same(twin_of(context, receipt.twin), receipt)), table.concat(stored) }
