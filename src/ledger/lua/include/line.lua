-- A twin of the line as it is stored: one string in one field of the hash. FORMAT rises with every change here.
local FORMAT = 2
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

-- What is the same for most lines stands in a field of its own, as one text: read once in a batch, however many lines
-- have it. Terms are positions of JSON, as a gateway sends them.
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

local known_rules = {}

local function unpack_rules(packed)
  local rules = known_rules[packed]
  if not rules then
    local content, json = cmsgpack.unpack(packed)
    rules = { content = content, terms = parse_terms(json), packed = packed }
    known_rules[packed] = rules
  end
  return rules
end

local function rules_of(content, terms)
  return unpack_rules(cmsgpack.pack(content, terms.json))
end

-- Numbers first, then for each limit its counters, number and sum of folded receipts, and the remainder of its refill.
-- Short values, one after the other: Lua keeps each string in a table by a few of its bytes, and finds nothing among
-- long ones that are alike.
local HEAD, BOOK = 12, 13

local function unpack_line(twin, packed, rules)
  local at, format, seq, clock, generation, epoch, kept, numerator, denominator, frozen, folded_to, closed, archived =
    cmsgpack.unpack_limit(packed, HEAD, 0)
  if format > FORMAT then
    error('this line was written by a newer earmark (format ' .. text(format) .. '): upgrade this one', 0)
  end
  rules = unpack_rules(rules)
  local terms, books, remainders = rules.terms, {}, {}
  for i, limit in ipairs(terms.limits) do
    local opening, minted, issued, available, reserved, spent, retired, repaid, carried, lapsed, count, sum, remainder
    at, opening, minted, issued, available, reserved, spent, retired, repaid, carried, lapsed, count, sum, remainder =
      cmsgpack.unpack_limit(packed, BOOK, at)
    books[i] = {
      limit = limit.name, opening = opening, minted = minted, overdraftIssued = issued, available = available,
      reserved = reserved, spent = spent, retiredForEmergency = retired, overdraftRepaid = repaid,
      carriedOut = carried, lapsed = lapsed, count = count, sum = sum,
    }
    remainders[i] = remainder
  end
  return {
    twin = twin, seq = seq, clock = clock, generation = generation, content = rules.content, rules = rules,
    numerator = numerator, denominator = denominator, frozen = frozen, foldedTo = folded_to, terms = terms,
    remainders = remainders, closed = closed, archive = unpack_books(archived),
    page = { generation = generation, epoch = epoch, kept = kept, books = books },
  }
end

local function pack_line(line)
  local page = line.page
  local parts = { cmsgpack.pack(FORMAT, line.seq, line.clock, line.generation, page.epoch, page.kept, line.numerator,
    line.denominator, line.frozen, line.foldedTo, line.closed, pack_books(line.archive)) }
  for i, b in ipairs(page.books) do
    parts[i + 1] = cmsgpack.pack(b.opening, b.minted, b.overdraftIssued, b.available, b.reserved, b.spent,
      b.retiredForEmergency, b.overdraftRepaid, b.carriedOut, b.lapsed, b.count, b.sum, line.remainders[i])
  end
  return table.concat(parts)
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
