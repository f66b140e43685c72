--- Writing log lines. Inside a handler each line carries the message's id, pipeline and attempt. `moonwire.log` is the
--- project's face of it.
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"
local wait = require "moonwire.internal.wait"

local M = {}

M.LEVELS = { debug = 0, info = 1, warn = 2, error = 3 }
local parts = ffi.new "mw_parts"

local function text_of(value)
  if type(value) == "number" then return value end
  if type(value) == "table" and not (getmetatable(value) or {}).__tostring then
    local text, err = require("moonwire.json").encode(value)
    return text or ("a table that cannot be JSON: %s"):format(err)
  end
  return tostring(value)
end

local function add(key, value)
  if type(value) == "number" then C.mw_log_num(key, value) else C.mw_log_str(key, value, #value) end
end

local function add_message()
  local task = wait.current
  while task and task.parent do task = task.parent end
  if not task or task.delivery == nil then return end
  local message = C.mw_delivery_message(task.delivery)
  if message == nil then return end -- the first of a batch, answered already
  C.mw_message_parts(message, parts)
  if task.name then C.mw_log_str("pipeline", task.name, #task.name) end
  C.mw_log_str("id", parts.id, parts.id_len)
  C.mw_log_int("attempt", C.mw_delivery_attempt(task.delivery))
end

--- `own`: the project wrote it, not we.
---@param level integer
---@param text string
---@param fields table<string, any>|nil
---@param own boolean|nil
function M.write(level, text, fields, own)
  if not C.mw_log_wants(level) then return end
  text = tostring(text):gsub("%z", "\\0") -- C takes it for the end
  if fields ~= nil and type(fields) ~= "table" then
    error(("mw.log: the fields must be a table, got %s"):format(type(fields)), 3)
  end
  local names, texts = {}, {} -- made before the line begins: a __tostring that fails must not leave half of one
  for name, value in pairs(fields or {}) do
    name = tostring(name)
    names[#names + 1], texts[name] = name, text_of(value)
  end
  table.sort(names)
  if own then C.mw_log_project() end
  C.mw_log_begin(level, text)
  add_message()
  for _, name in ipairs(names) do add(name, texts[name]) end
  C.mw_log_end()
end

return M
