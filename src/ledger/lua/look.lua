#!lua flags=no-writes
-- Reading without moving: one receipt, or a page of a line for the audit. KEYS: line. ARGV: what, its argument.
--- @include number
--- @include window
--- @include line
--- @include receipt
--- @include context
--- @include account
--- @include reply

local function book_row(book)
  local row = { book.limit }
  for _, name in ipairs(COUNTERS) do
    row[#row + 1] = book[name]
  end
  row[#row + 1], row[#row + 2] = book.count, book.sum
  return row
end

local function page_row(page)
  local row = { page.generation, page.epoch, page.isClosed and 1 or 0, page.kept }
  for _, book in ipairs(page.books) do
    row[#row + 1] = book_row(book)
  end
  return row
end

local function line_row(line)
  local archive_rows = {}
  for i, book in ipairs(line.archive) do
    archive_rows[i] = book_row(book)
  end
  return {
    line.twin, line.subject, line.route, line.seq, line.clock, line.generation, line.content, line.numerator,
    line.denominator, line.frozen, line.foldedTo, line.remainders, page_row(line.page), archive_rows,
  }
end

local keys = { line = KEYS[1] }
if ARGV[1] == 'receipt' then
  local context = open(keys, -1, { ARGV[2] })
  local receipt = context.receipts[ARGV[2]]
  if not receipt then
    return {}
  end
  local line = twin_of(context, receipt.twin)
  return { shown(line, receipt), view(line) }
end

-- A page of the hash: twins and closed pages as rows, receipts as shown; the cursor of the next.
local scanned = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
local twins, pages, receipts = {}, {}, {}
local context = open(keys, -1, {})
for i = 1, #scanned[2], 2 do
  local field, packed = scanned[2][i], scanned[2][i + 1]
  local kind = string.match(field, '^%a+')
  if kind == 'r' or kind == 'u' then
    local receipt = unpack_receipt(field, packed)
    receipts[#receipts + 1] = shown(twin_of(context, receipt.twin), receipt)
  elseif kind == 'b' or kind == 'sb' then
    local generation, epoch = string.match(field, ':(%d+):(%d+)$')
    local row = page_row(unpack_page(tonumber(generation), tonumber(epoch), packed))
    table.insert(row, 1, kind == 'b' and 'line' or 'shadow')
    pages[#pages + 1] = row
  end
end
for _, twin in ipairs({ 'line', 'shadow' }) do
  local line = twin_of(context, twin)
  if line then
    twins[#twins + 1] = line_row(line)
  end
end
return { scanned[1], twins, pages, receipts }
