-- A twin of the line as it is stored: packed by position in one field of the hash. FORMAT rises with every change here.
local FORMAT = 1
local COUNTERS = {
  'opening', 'minted', 'overdraftIssued', 'available', 'reserved', 'spent',
  'retiredForEmergency', 'overdraftRepaid', 'carriedOut', 'lapsed',
}

local function new_book(limit, opening)
  local book = { limit = limit, count = 0, sum = 0 }
  for _, name in ipairs(COUNTERS) do
    book[name] = 0
  end
  book.opening, book.available = opening, opening
  return book
end

local function unpack_books(list)
  local books = {}
  for i, f in ipairs(list) do
    books[i] = {
      limit = f[1], opening = f[2], minted = f[3], overdraftIssued = f[4], available = f[5], reserved = f[6],
      spent = f[7], retiredForEmergency = f[8], overdraftRepaid = f[9], carriedOut = f[10], lapsed = f[11],
      count = f[12], sum = f[13],
    }
  end
  return books
end

local function pack_books(books)
  local list = {}
  for i, b in ipairs(books) do
    list[i] = {
      b.limit, b.opening, b.minted, b.overdraftIssued, b.available, b.reserved,
      b.spent, b.retiredForEmergency, b.overdraftRepaid, b.carriedOut, b.lapsed,
      b.count, b.sum,
    }
  end
  return list
end

-- maxOverdraft and executionHardCap: -1 where there is none. every: ms, or the window's name; units 0: no refill.
local function unpack_terms(f)
  local terms = {
    epoch = f[1], hold = f[2], deadline = f[3], retention = f[4], breach = f[5], freeze = f[6], limits = {},
  }
  for i, l in ipairs(f[7]) do
    terms.limits[i] = {
      name = l[1], burst = l[2], units = l[3], every = l[4], max = l[5], overdraft = l[6], cap = l[7], own = l[8],
    }
  end
  return terms
end

-- Terms as a gateway sends them, in the same positions. They are stored as they came, and read once in a batch.
local known_terms = {}

local function parse_terms(json)
  local terms = known_terms[json]
  if not terms then
    terms = unpack_terms(cjson.decode(json))
    terms.json = json
    known_terms[json] = terms
  end
  return terms
end

local function unpack_line(twin, packed)
  local f = cmsgpack.unpack(packed)
  if f[1] > FORMAT then
    error('this line was written by a newer earmark (format ' .. text(f[1]) .. '): upgrade this one', 0)
  end
  return {
    twin = twin, seq = f[2], clock = f[3], subject = f[4], route = f[5], generation = f[6], content = f[7],
    numerator = f[8], denominator = f[9], frozen = f[10], foldedTo = f[11], terms = parse_terms(f[12]),
    remainders = f[13], closed = f[14], archive = unpack_books(f[15]),
    page = { generation = f[6], epoch = f[16], kept = f[17], books = unpack_books(f[18]) },
  }
end

local function pack_line(line)
  local page = line.page
  return cmsgpack.pack({
    FORMAT, line.seq, line.clock, line.subject, line.route, line.generation, line.content,
    line.numerator, line.denominator, line.frozen, line.foldedTo, line.terms.json,
    line.remainders, line.closed, pack_books(line.archive), page.epoch, page.kept, pack_books(page.books),
  })
end

-- A closed page keeps the terms of its generation: a late settlement is judged by them.
local function unpack_page(generation, epoch, packed)
  local f = cmsgpack.unpack(packed)
  return {
    generation = generation, epoch = epoch, kept = f[1], books = unpack_books(f[2]), terms = parse_terms(f[3]),
    isClosed = true,
  }
end

local function pack_page(page)
  return cmsgpack.pack({ page.kept, pack_books(page.books), page.terms.json })
end
