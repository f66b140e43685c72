--- `mw.metrics`: counters and gauges of your own, kept in C so that a reload does not reset them.
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"

local M = {}

local dict = C.mw_dict_named "metrics"
local MOST = 1000 -- series: a label with a customer's id in it must not eat the memory

local ESCAPES = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }
local function escape(value) return (tostring(value):gsub('[\\"\n]', ESCAPES)) end

local function series(name, labels, level)
  if type(name) ~= "string" or not name:match "^[%a_][%w_]*$" then
    error(("mw.metrics: %q is not a metric name: letters, digits and _"):format(tostring(name)), level + 1)
  end
  if labels == nil then return name end
  if type(labels) ~= "table" then error("mw.metrics: labels must be a table", level + 1) end
  local list = {}
  for label, value in pairs(labels) do
    if type(label) ~= "string" or not label:match "^[%a_][%w_]*$" then
      error(("mw.metrics: %q is not a label: letters, digits and _"):format(tostring(label)), level + 1)
    end
    local kind = type(value)
    if kind ~= "string" and kind ~= "number" and kind ~= "boolean" then
      error(("mw.metrics: label %s must be a text or a number, got a %s"):format(label, kind), level + 1)
    end
    list[#list + 1] = ('%s="%s"'):format(label, escape(value))
  end
  table.sort(list)
  return ("%s{%s}"):format(name, table.concat(list, ","))
end

local number, text, len = ffi.new "double[1]", ffi.new "const char *[1]", ffi.new "size_t[1]"

local function admit(key)
  return C.mw_dict_count(dict) < MOST or C.mw_dict_get(dict, key, #key, 0, number, text, len) ~= 0
end

--- Adds to a counter.
---@param name string
---@param by number|nil 1 when not given
---@param labels table<string, string|number>|nil
function M.count(name, by, labels)
  local key = series(name, labels, 2)
  if by ~= nil and type(by) ~= "number" then
    error(("mw.metrics.count: it is told a number to add, got a %s"):format(type(by)), 2)
  end
  if by and not (by >= 0 and by < math.huge) then
    error("mw.metrics.count: a counter only grows, by a number of 0 or more", 2)
  end
  if admit(key) then C.mw_dict_add(dict, key, #key, by or 1, 0, 0) end
end

--- Sets a gauge.
---@param name string
---@param value number
---@param labels table<string, string|number>|nil
function M.gauge(name, value, labels)
  local key = series(name, labels, 2)
  if type(value) ~= "number" then error("mw.metrics.gauge: the value must be a number", 2) end
  if admit(key) then C.mw_dict_set_number(dict, key, #key, value, 0) end
end

--- All of them: `name{label="value"}` -> number.
---@return table<string, number>
function M.all()
  local all, at, key = {}, ffi.new "uint32_t[1]", ffi.new "const char *[1]"
  while C.mw_dict_next(dict, at, key, len) do
    local name = ffi.string(key[0], len[0])
    if C.mw_dict_get(dict, name, #name, 0, number, text, len) == 110 then all[name] = number[0] end
  end
  return all
end

return M
