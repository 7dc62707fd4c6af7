-- Integers from 0 to 2^53 - 1, exactly, or not at all. Lua 5.1 has doubles only: `%` and `/` on large operands round,
-- tostring and `..` print 14 digits. So: divide by `div`, print by `text`.
local MAX = 9007199254740991

local function fail(why, detail)
  error({ why = why, detail = detail }, 0)
end

local function integer(value, field)
  if type(value) ~= 'number' or not (value >= 0 and value <= MAX) or value ~= math.floor(value) then
    fail('invalid', field .. ' must be a whole number from 0 to 9007199254740991')
  end
  return value
end

local function text(number)
  return string.format('%.0f', number)
end

local function add(a, b)
  local sum = a + b
  if sum > MAX then
    fail('overflow', 'a counter would pass 9007199254740991')
  end
  return sum
end

local function multiply(a, b)
  local product = a * b
  if product > MAX then
    fail('overflow', 'a product would pass 9007199254740991')
  end
  return product
end

local function div(a, b)
  return (a - math.fmod(a, b)) / b
end

local function ceil_div(a, b)
  local rest = math.fmod(a, b)
  return (a - rest) / b + (rest > 0 and 1 or 0)
end

local function integers(list, field)
  for _, value in ipairs(list) do
    integer(value, field)
  end
  return list
end
