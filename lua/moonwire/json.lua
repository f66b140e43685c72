--- JSON for handlers: `local json = require "moonwire.json"`.
--
-- decode(text)            -> value, or nil and what is wrong where
-- encode(value[, options]) -> text, or nil and what cannot be encoded, with its path
--   options.sort    keys in byte order, for stable output
--   options.pretty  one member a line, two spaces a level
-- null                    stands for null in tables, where nil cannot
-- array([t]), object([t]) mark a table, so that an empty one encodes as [] or {}; the keys of a marked
--                         object may be any numbers, which are written as text
-- is_array(t)             would it be written as an array?
--
-- Decoded arrays are marked. Integers beyond 2^53 come as int64_t (or uint64_t) cdata with all their digits,
-- and go out the same way. Of duplicate keys the last wins.

local ffi = require "ffi"
local core = require "moonwire.json.core"

local getmetatable, setmetatable, rawget = getmetatable, setmetatable, rawget
local tostring, type, error = tostring, type, error

local int64, uint64 = ffi.typeof "int64_t", ffi.typeof "uint64_t"
local array_mark, object_mark = core.array_mark, core.object_mark

local M = {
  null = core.null,
  decode = core.decode,
  encode = core.encode,
}

local function make_integer(high, low, unsigned)
  local bits = uint64(high) * 4294967296ULL + uint64(low)
  return unsigned and bits or int64(bits)
end

local function integer_digits(value)
  if ffi.istype(int64, value) or ffi.istype(uint64, value) then
    return (tostring(value):gsub("U?LL$", ""))
  end
end

core.integers(make_integer, integer_digits)

local function mark(t, metatable, name)
  if t == nil then
    t = {}
  elseif type(t) ~= "table" then
    error("json." .. name .. ": expected a table, got a " .. type(t), 3)
  end
  return setmetatable(t, metatable)
end

function M.array(t)
  return mark(t, array_mark, "array")
end

function M.object(t)
  return mark(t, object_mark, "object")
end

function M.is_array(t)
  if type(t) ~= "table" then
    return false
  end
  local metatable = getmetatable(t)
  return metatable == array_mark or (metatable ~= object_mark and rawget(t, 1) ~= nil)
end

return M
