--- What a check asks of values while it runs: numbers of both widths, deep equality, lengths, duplicates.
--
-- The decoder hands out doubles, and int64/uint64 cdata where a double would lose digits. Plain `==` and
-- `<` on a mix of the two truncate the double or raise, so every comparison of the two goes through here.

local ffi = require "ffi"
local clear = require "table.clear"

local byte, floor, abs, format, gsub = string.byte, math.floor, math.abs, string.format, string.gsub
local concat, sort, max = table.concat, table.sort, math.max
local istype = ffi.istype
local int64, uint64 = ffi.typeof("int64_t"), ffi.typeof("uint64_t")

local M = {}

local DEEPEST = 1000 -- equality looks no deeper; a table built in Lua may contain itself
local EXACT = 2 ^ 53

--- Whether the value is a 64-bit integer that is no Lua number.
---@param v any
---@return boolean
function M.wide(v)
  return type(v) == "cdata" and (istype(int64, v) or istype(uint64, v))
end

local wide = M.wide

local function sign(a, b)
  return a < b and -1 or a > b and 1 or 0
end

-- Rounding keeps order, so doubles decide unless they tie; only then are 64 bits worth casting to.
local function compare_wide(a, limit)
  local near = tonumber(a)
  if near ~= limit then
    return sign(near, limit)
  elseif abs(limit) < EXACT then
    return 0
  elseif istype(uint64, a) then
    return limit >= 2 ^ 64 and -1 or sign(a, ffi.cast(uint64, limit))
  end
  return limit >= 2 ^ 63 and -1 or sign(a, ffi.cast(int64, limit))
end

--- Orders two numbers of either width: below 0, 0, or above 0.
---@param a number|ffi.cdata*
---@param b number|ffi.cdata*
---@return integer
function M.compare(a, b)
  if type(a) == "number" then
    if type(b) == "number" then return sign(a, b) end
    return -compare_wide(b, a)
  elseif type(b) == "number" then
    return compare_wide(a, b)
  elseif istype(int64, a) ~= istype(int64, b) then
    if istype(int64, a) and a < 0 then return -1 end
    if istype(int64, b) and b < 0 then return 1 end
  end
  return sign(a, b)
end

local compare = M.compare

--- Whether v is a multiple of m, forgiving what binary fractions lose (19.99 is a multiple of 0.01).
---@param v number|ffi.cdata*
---@param m number
---@return boolean
function M.multiple(v, m)
  if type(v) ~= "number" then
    if m % 1 == 0 and m < EXACT then
      return v % ffi.cast(istype(uint64, v) and uint64 or int64, m) == 0
    end
    v = tonumber(v)
  end
  if v % m == 0 then return true end
  local q = v / m
  if abs(q) == math.huge then return v % 1 == 0 and (1 / m) % 1 == 0 end
  if m % 1 == 0 and v % 1 == 0 then return false end
  return abs(q - floor(q + 0.5)) <= max(1e-9, abs(q) * 2 ^ -51)
end

--- Counts code points: every byte that does not continue one.
---@param s string
---@return integer
function M.length(s)
  local count = 0
  for i = 1, #s do
    local b = byte(s, i)
    if b < 0x80 or b > 0xBF then count = count + 1 end
  end
  return count
end

--- Counts the properties of an object.
---@param t table
---@return integer
function M.size(t)
  local count = 0
  for _ in pairs(t) do count = count + 1 end
  return count
end

local equal

local function equal_tables(a, b, depth)
  if depth > DEEPEST then return false end
  for k, x in pairs(a) do
    local y = b[k]
    if y == nil or not equal(x, y, depth + 1) then return false end
  end
  for k in pairs(b) do
    if a[k] == nil then return false end
  end
  return true
end

--- Deep equality as JSON has it: 1, 1.0 and 1LL are one number.
---@param a any
---@param b any
---@param depth integer?
---@return boolean
function M.equal(a, b, depth)
  local ta, tb = type(a), type(b)
  if ta == "cdata" or tb == "cdata" then
    if (ta ~= "number" and not wide(a)) or (tb ~= "number" and not wide(b)) then return false end
    return compare(a, b) == 0
  elseif ta ~= tb then
    return false
  elseif ta == "table" and not rawequal(a, b) then
    return equal_tables(a, b, depth or 0)
  end
  return a == b
end

equal = M.equal

--- Whether the value deeply equals one of the list.
---@param list any[]
---@param count integer
---@param v any
---@return boolean
function M.among(list, count, v)
  for i = 1, count do
    if equal(list[i], v) then return true end
  end
  return false
end

-- Duplicates --------------------------------------------------------------------------------------------

local canonical

local function canonical_table(t, depth)
  if depth > DEEPEST then return "..." end
  local parts = {}
  for k, x in pairs(t) do
    local name = type(k) == "string" and format("%d:%s", #k, k) or "#" .. tostring(k)
    parts[#parts + 1] = name .. "=" .. canonical(x, depth + 1)
  end
  sort(parts)
  return "{" .. concat(parts, ",") .. "}"
end

-- Equal values, and only those, give equal texts.
function canonical(v, depth)
  local t = type(v)
  if t == "table" then
    return canonical_table(v, depth)
  elseif t == "string" then
    return format("s%d:%s", #v, v)
  elseif t == "number" then
    return v % 1 == 0 and format("n%.0f", v == 0 and 0 or v) or format("n%.17g", v)
  elseif wide(v) then
    return "n" .. gsub(tostring(v), "U?LL$", "")
  end
  return t .. tostring(v)
end

local FEW = 16      -- up to here comparing pairs is quicker than a set, and allocates nothing
local MANY = 4096   -- past here the set is not kept: one large message must not hold memory for ever
local seen, texts = {}, {} -- plain values; canonical texts of the others

local function repeated_among_many(list, n)
  local found
  for i = 1, n do
    local v = list[i]
    if wide(v) and abs(tonumber(v)) < EXACT then v = tonumber(v) end
    local set, key = seen, v
    if type(v) == "table" or type(v) == "cdata" or (type(v) == "number" and abs(v) >= EXACT) then
      set, key = texts, canonical(v, 0)
    end
    if set[key] then
      found = i
      break
    end
    set[key] = true
  end
  if n > MANY then
    seen, texts = {}, {}
  else
    clear(seen)
    clear(texts)
  end
  return found
end

--- The position of the first item that equals an earlier one, or nil.
---@param list any[]
---@return integer?
function M.repeated(list)
  local n = #list
  if n > FEW then return repeated_among_many(list, n) end
  for i = 2, n do
    for j = 1, i - 1 do
      if equal(list[i], list[j]) then return i end
    end
  end
  return nil
end

return M
