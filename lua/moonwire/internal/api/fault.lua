--- Error objects with a class: `error(fault.new{ class = "outage", text = "stock service is down" })`.
--- A plain `error("text")` has the class "transient".
local json = require "moonwire.json"

local M = {}

local Fault = {}
Fault.__index = Fault
Fault.__tostring = function(self) return self.text end
-- Concatenation keeps working where people write `"failed: " .. err`.
Fault.__concat = function(a, b) return tostring(a) .. tostring(b) end

---@class moonwire.Fault
---@field class string
---@field text string
---@field after number|nil seconds until the next attempt

---@param fields { class: string, text: string, after: number|nil }
---@return moonwire.Fault
function M.new(fields)
  return setmetatable({ class = fields.class, text = fields.text, after = fields.after }, Fault)
end

local SHOWN = 1000 -- bytes of a table

-- "table: 0x55d0" would tell nobody anything.
local function table_text(err)
  local ok, text = pcall(json.encode, err, { sort = true })
  if not ok or not text then return "error object of type table" end
  return "error object " .. (#text > SHOWN and text:sub(1, SHOWN) .. "…" or text)
end

--- The text of whatever was raised; an error object's __tostring may fail, or answer with something else.
---@return string
function M.text(err)
  if err == nil then return "error() without a text" end
  local meta = type(err) == "table" and getmetatable(err)
  if type(err) == "table" and not (type(meta) == "table" and meta.__tostring) then return table_text(err) end
  local ok, text = pcall(tostring, err)
  return ok and type(text) == "string" and text or "error object of type " .. type(err)
end

---@return boolean
function M.is(value) return type(value) == "table" and getmetatable(value) == Fault end

return M
