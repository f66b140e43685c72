--- Handlers that fail on demand: `app:fail`. The spec and the project's generation are two Lua states of one process;
--- what the spec wants stands in a dictionary that both see.
local C = require "moonwire.internal.cdef"
local fault = require "moonwire.internal.api.fault"
local ffi = require "ffi"

local M = {}

local dict = C.mw_dict_named "testing"
local number, text, len = ffi.new "double[1]", ffi.new "const char *[1]", ffi.new "size_t[1]"

local function key_of(broker, pipeline) return broker .. "\0" .. pipeline end

---@param broker string the app's own: its `rewrite`
---@param pipeline string
---@param count integer
---@param class string
function M.plan(broker, pipeline, count, class)
  local key = key_of(broker, pipeline)
  C.mw_dict_set_number(dict, key, #key, count, 0)
  key = key .. "\0"
  C.mw_dict_set_string(dict, key, #key, class, #class, 0)
end

local function class_of(key)
  key = key .. "\0"
  C.mw_dict_get(dict, key, #key, 0, number, text, len)
  return ffi.string(text[0], len[0])
end

--- The handler, which fails as often as planned before it runs.
---@generic F: function
---@param broker string
---@param pipeline string
---@param run F
---@return F
function M.wrap(broker, pipeline, run)
  local key = key_of(broker, pipeline)
  return function(...)
    if C.mw_dict_get(dict, key, #key, 0, number, text, len) ~= 0 and number[0] > 0 then
      C.mw_dict_add(dict, key, #key, -1, 0, 0)
      error(fault.new { class = class_of(key), text = "made to fail by the spec" }, 0)
    end
    return run(...)
  end
end

return M
