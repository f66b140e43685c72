--- The named formats. Each is a function of a string that answers yes or no.
--
-- They read bytes instead of using captures: captures make strings, and a check that passes makes none.

local byte, find = string.byte, string.find

local M = {}

local DAYS = { 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }

local function set(pattern)
  local bytes = {}
  for b = 0, 255 do
    bytes[b] = find(string.char(b), pattern) ~= nil
  end
  return bytes
end

local HEX = set "^[0-9A-Fa-f]$"
local LETTER_DIGIT = set "^[0-9A-Za-z]$"
local ATOM = set "^[0-9A-Za-z!#$%%&'*+/=?^_`{|}~-]$"
local SCHEME = set "^[0-9A-Za-z+.-]$"
local USER = set "^[0-9A-Za-z%-._~!$&'()*+,;=:%%]$"
local QUERY = set "^[0-9A-Za-z%-._~!$&'()*+,;=:@/?%%]$"
local PATH = set "^[0-9A-Za-z%-._~!$&'()*+,;=:@/%%]$"

-- The number written in bytes i..j, or nil when one of them is no digit.
local function number(s, i, j)
  local n = 0
  for at = i, j do
    local b = byte(s, at)
    if not b or b < 48 or b > 57 then return nil end
    n = n * 10 + b - 48
  end
  return n
end

-- Dates and times (RFC 3339) ------------------------------------------------------------------------------

local function date(s)
  local year, month, day = number(s, 1, 4), number(s, 6, 7), number(s, 9, 10)
  if not (year and month and day) or byte(s, 5) ~= 45 or byte(s, 8) ~= 45 then return false end
  if month < 1 or month > 12 or day < 1 or day > DAYS[month] then return false end
  local leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
  return month ~= 2 or day < 29 or leap
end

-- Minutes east of Greenwich of the offset that starts at byte i and ends the string; nil when it is none.
local function offset(s, i)
  local b = byte(s, i)
  if b == 90 or b == 122 then return #s == i and 0 or nil end
  if (b ~= 43 and b ~= 45) or #s ~= i + 5 or byte(s, i + 3) ~= 58 then return nil end
  local hours, minutes = number(s, i + 1, i + 2), number(s, i + 4, i + 5)
  if not (hours and minutes) or hours > 23 or minutes > 59 then return nil end
  return (b == 43 and 1 or -1) * (hours * 60 + minutes)
end

local function time_at(s, i)
  local hour, minute, second = number(s, i, i + 1), number(s, i + 3, i + 4), number(s, i + 6, i + 7)
  if not (hour and minute and second) or byte(s, i + 2) ~= 58 or byte(s, i + 5) ~= 58 then return false end
  if hour > 23 or minute > 59 or second > 60 then return false end
  local at = i + 8
  if byte(s, at) == 46 then
    at = at + 1
    local first = at
    while number(s, at, at) do at = at + 1 end
    if at == first then return false end
  end
  local east = offset(s, at)
  if not east then return false end
  -- Leap seconds are put in at midnight UTC and nowhere else.
  return second < 60 or (hour * 60 + minute - east) % 1440 == 1439
end

M["date"] = function(s) return #s == 10 and date(s) end
M["time"] = function(s) return time_at(s, 1) end
M["date-time"] = function(s)
  local t = byte(s, 11)
  return (t == 84 or t == 116) and date(s) and time_at(s, 12)
end

-- Hosts -----------------------------------------------------------------------------------------------------

local function ipv4(s, i, j)
  local groups, start = 0, i
  for at = i, j + 1 do
    if at > j or byte(s, at) == 46 then
      local n = at > start and at - start <= 3 and number(s, start, at - 1)
      if not n or n > 255 or (at - start > 1 and byte(s, start) == 48) then return false end
      groups, start = groups + 1, at + 1
    end
  end
  return groups == 4
end

local function ipv6(s, i, j)
  local groups, gap, at = 0, false, i
  if byte(s, i) == 58 then
    if i == j or byte(s, i + 1) ~= 58 then return false end
    gap, at = true, i + 2
  end
  while at <= j do
    local start = at
    while at <= j and at - start < 5 and HEX[byte(s, at)] do at = at + 1 end
    if at <= j and byte(s, at) == 46 then
      if not ipv4(s, start, j) then return false end
      groups = groups + 2
      break
    end
    if at == start or at - start > 4 then return false end
    groups = groups + 1
    if at > j then break end
    if byte(s, at) ~= 58 or at == j then return false end
    at = at + 1
    if byte(s, at) == 58 then
      if gap then return false end
      gap, at = true, at + 1
    end
  end
  if gap then return groups < 8 end
  return groups == 8
end

local function hostname(s, i, j)
  if j < i or j - i + 1 > 253 then return false end
  local start = i
  for at = i, j + 1 do
    local b = at <= j and byte(s, at) or 46
    if b == 46 then
      local length = at - start
      if length < 1 or length > 63 or byte(s, start) == 45 or byte(s, at - 1) == 45 then return false end
      start = at + 1
    elseif b ~= 45 and not LETTER_DIGIT[b] then
      return false
    end
  end
  return true
end

M["ipv4"] = function(s) return ipv4(s, 1, #s) end
M["ipv6"] = function(s) return #s > 1 and ipv6(s, 1, #s) end
M["hostname"] = function(s) return hostname(s, 1, #s) end

-- Addresses -------------------------------------------------------------------------------------------------

local function last_at(s)
  for i = #s, 1, -1 do
    if byte(s, i) == 64 then return i end
  end
end

local function dot_atom(s, i, j)
  local dot = true -- as if one stood before: a dot must follow a character
  for at = i, j do
    local b = byte(s, at)
    if b == 46 then
      if dot then return false end
      dot = true
    elseif ATOM[b] then
      dot = false
    else
      return false
    end
  end
  return not dot
end

local function quoted(s, i, j)
  if j - i < 1 or byte(s, j) ~= 34 then return false end
  local at = i + 1
  while at < j do
    local b = byte(s, at)
    if b == 92 then
      at = at + 1
      if at >= j then return false end
    elseif b == 34 or b < 32 or b > 126 then
      return false
    end
    at = at + 1
  end
  return true
end

local function address_literal(s, i, j)
  if byte(s, j) ~= 93 then return false end
  if find(s, "^IPv6:", i + 1) then return j - i > 7 and ipv6(s, i + 6, j - 1) end
  return ipv4(s, i + 1, j - 1)
end

M["email"] = function(s)
  local at = last_at(s)
  if not at or at == 1 then return false end
  local part = byte(s, 1) == 34 and quoted or dot_atom
  if not part(s, 1, at - 1) then return false end
  if byte(s, at + 1) == 91 then return address_literal(s, at + 1, #s) end
  return hostname(s, at + 1, #s)
end

local UUID_DASH = { [9] = true, [14] = true, [19] = true, [24] = true }

M["uuid"] = function(s)
  if #s ~= 36 then return false end
  for i = 1, 36 do
    local b = byte(s, i)
    if UUID_DASH[i] then
      if b ~= 45 then return false end
    elseif not HEX[b] then
      return false
    end
  end
  return true
end

-- Whether bytes i..j are all of the set, with each % followed by two hexadecimal digits.
local function spelt(s, i, j, allowed)
  local at = i
  while at <= j do
    local b = byte(s, at)
    if not allowed[b] then return false end
    if b == 37 then
      if at + 2 > j or not (HEX[byte(s, at + 1)] and HEX[byte(s, at + 2)]) then return false end
      at = at + 2
    end
    at = at + 1
  end
  return true
end

-- The first byte of the given ones at or after i, or the byte past the end.
local function upto(s, i, a, b, c)
  for at = i, #s do
    local x = byte(s, at)
    if x == a or x == b or x == c then return at end
  end
  return #s + 1
end

-- Bytes i..j hold [user@]host[:port].
local function authority(s, i, j)
  for at = i, j do
    if byte(s, at) == 64 then
      if not spelt(s, i, at - 1, USER) then return false end
      i = at + 1
      break
    end
  end
  local colon = j + 1
  if byte(s, i) == 91 and i <= j then
    local close = upto(s, i, 93)
    if close > j or not ipv6(s, i + 1, close - 1) then return false end
    i = close + 1
    if i <= j and byte(s, i) ~= 58 then return false end
    colon = i
  else
    for at = i, j do
      if byte(s, at) == 58 then
        colon = at
        break
      end
    end
  end
  return spelt(s, i, colon - 1, USER) and number(s, colon + 1, j) ~= nil
end

M["uri"] = function(s)
  local colon = upto(s, 1, 58)
  if colon > #s or colon == 1 or not spelt(s, 1, colon - 1, SCHEME) then return false end
  if byte(s, 1) < 65 then return false end -- a scheme starts with a letter
  local at = colon + 1
  if byte(s, at) == 47 and byte(s, at + 1) == 47 then
    local path = upto(s, at + 2, 47, 63, 35)
    if not authority(s, at + 2, path - 1) then return false end
    at = path
  end
  local query = upto(s, at, 63, 35)
  local hash = upto(s, query, 35)
  if not spelt(s, at, query - 1, PATH) then return false end
  return spelt(s, query + 1, hash - 1, QUERY) and spelt(s, hash + 1, #s, QUERY)
end

return M
