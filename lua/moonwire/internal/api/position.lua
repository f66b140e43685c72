--- Where a message stands in its channel. C has a pair of 64-bit numbers; here it is a number where the broker counts
--- with one, and otherwise a text, "high-low", so that nothing is rounded and it can be shown.
local ffi = require "ffi"

local M = {}

---@alias moonwire.Position number|string

--- For a C function to fill.
---@return ffi.cdata*
function M.space() return ffi.new "mw_position[1]" end

local function digits(value) return (tostring(value):gsub("ULL$", "")) end

---@param c ffi.cdata* mw_position
---@return moonwire.Position
function M.read(c)
  if c.high == 0 and c.low < 2 ^ 53 then return tonumber(c.low) end
  return digits(c.high) .. "-" .. digits(c.low)
end

local function split(position)
  if type(position) == "number" then return "0", ("%.0f"):format(position) end
  return position:match "^(%d+)%-(%d+)$"
end

local function number(text)
  local value = 0ULL
  for digit in text:gmatch "%d" do value = value * 10 + tonumber(digit) end
  return value
end

---@param position moonwire.Position
---@param c ffi.cdata* mw_position
function M.write(position, c)
  local high, low = split(position)
  c.high, c.low = number(high), number(low)
end

--- As an argument of a C function.
---@param list moonwire.Position[]
---@return ffi.cdata*
function M.array(list)
  local array = ffi.new("mw_position[?]", #list + 1)
  for i, position in ipairs(list) do M.write(position, array[i - 1]) end
  return array
end

local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

--- a stands behind b.
---@param a moonwire.Position
---@param b moonwire.Position
function M.after(a, b)
  local a_high, a_low = split(a)
  local b_high, b_low = split(b)
  if a_high ~= b_high then return less(b_high, a_high) end
  return less(b_low, a_low)
end

return M
