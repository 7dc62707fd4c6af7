-- Boundaries of calendar windows in UTC: the number of the window an instant lies in, and the way to the k-th next.
local DAY = 86400000
local WINDOW = { minute = 60000, hour = 3600000, day = DAY, week = 7 * DAY }
-- 1970-01-01 was a Thursday; weeks begin on Monday.
local WEEK_OFFSET = 3 * DAY

-- The number of months since year 0, from days since 1970-01-01 (the proleptic Gregorian calendar, years from March).
local function month_index(time)
  local days = div(time, DAY) + 719468
  local era = div(days, 146097)
  local of_era = days - era * 146097
  local year = div(of_era - div(of_era, 1460) + div(of_era, 36524) - div(of_era, 146096), 365)
  local of_year = of_era - (365 * year + div(year, 4) - div(year, 100))
  local march_month = div(5 * of_year + 2, 153)
  return (year + era * 400) * 12 + march_month + 2
end

local function month_start(index)
  local from_march = index - 2
  local year, march_month = div(from_march, 12), math.fmod(from_march, 12)
  local era = div(year, 400)
  local of_era = year - era * 400
  local days = of_era * 365 + div(of_era, 4) - div(of_era, 100) + div(153 * march_month + 2, 5)
  return (era * 146097 + days - 719468) * DAY
end

local function window_index(window, time)
  if window == 'month' then
    return month_index(time)
  end
  return div(time + (window == 'week' and WEEK_OFFSET or 0), WINDOW[window])
end

local function window_wait(window, now, windows)
  local index = window_index(window, now) + windows
  local start
  if window == 'month' then
    start = month_start(index)
  else
    start = index * WINDOW[window] - (window == 'week' and WEEK_OFFSET or 0)
  end
  return start - now > MAX and -1 or start - now
end
