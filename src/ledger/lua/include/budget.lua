-- Under what lines open and admit, each read once in a batch.
local budgets, known_budgets = nil, {}

local function read_budget(f)
  return {
    generation = integer(f[1], 'generation'), rules = rules_of(f[2], parse_terms(f[3])),
    numerator = integer(f[4], 'factor'), denominator = integer(f[5], 'factor'),
  }
end

local function budget_at(place)
  local budget = known_budgets[place]
  if not budget then
    budgets = budgets or cmsgpack.unpack(ARGV[2])
    budget = read_budget(budgets[place])
    known_budgets[place] = budget
  end
  return budget
end
