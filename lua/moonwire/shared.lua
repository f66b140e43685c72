--- `mw.shared`: a dictionary that outlives reloads. Values are strings, numbers and booleans; each may have a time to
--- live.
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"
local wait = require "moonwire.internal.wait"

local M = {}

local dict = C.mw_dict_named "shared"
local number, text, len = ffi.new "double[1]", ffi.new "const char *[1]", ffi.new "size_t[1]"

local function now() return math.floor(C.mw_vm_now(wait.vm) * 1000) end

local function check_key(key, level)
  if type(key) ~= "string" then error("mw.shared: the key must be a string, got " .. type(key), level + 1) end
  return key
end

---@param key string
---@return string|number|boolean|nil
function M.get(key)
  check_key(key, 2)
  local kind = C.mw_dict_get(dict, key, #key, now(), number, text, len)
  if kind == 110 then return number[0] end -- 'n'
  if kind == 98 then return number[0] ~= 0 end -- 'b'
  if kind == 115 then return ffi.string(text[0], len[0]) end -- 's'
  return nil
end

---@param key string
---@param value string|number|boolean|nil nil removes it
---@param ttl number|nil seconds
function M.set(key, value, ttl)
  check_key(key, 2)
  if ttl ~= nil and not (type(ttl) == "number" and ttl > 0 and ttl <= 3.2e9) then
    error("mw.shared.set: ttl must be seconds above 0", 2)
  end
  local expires = ttl and math.floor(now() + ttl * 1000) or 0
  if value == nil then
    C.mw_dict_remove(dict, key, #key)
  elseif type(value) == "number" then
    C.mw_dict_set_number(dict, key, #key, value, expires)
  elseif type(value) == "boolean" then
    C.mw_dict_set_bool(dict, key, #key, value, expires)
  elseif type(value) == "string" then
    C.mw_dict_set_string(dict, key, #key, value, #value, expires)
  else
    error("mw.shared.set: the value must be a string, a number, a boolean or nil, got " .. type(value), 2)
  end
end

--- Adds to a number and returns the sum; a missing one counts from `start`.
---@param key string
---@param by number|nil 1 when not given
---@param start number|nil 0 when not given
---@return number
function M.incr(key, by, start)
  check_key(key, 2)
  by, start = by or 1, start or 0
  if type(by) ~= "number" or type(start) ~= "number" then error("mw.shared.incr: by and start must be numbers", 2) end
  return C.mw_dict_add(dict, key, #key, by, start, now())
end

---@param key string
---@return boolean # was there one
function M.delete(key) return C.mw_dict_remove(dict, check_key(key, 2), #key) end

return M
