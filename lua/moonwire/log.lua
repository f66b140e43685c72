--- Structured log lines: `mw.log.info("paid", { order = 7 })`. Inside a handler each line carries the message's id, pipeline and attempt.
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"
local wait = require "moonwire.internal.wait"

local M = {}

local LEVELS = { debug = 0, info = 1, warn = 2, error = 3 }
local parts = ffi.new "mw_parts"

local function add(key, value)
  if type(value) == "number" then
    C.mw_log_num(key, value)
  elseif type(value) == "table" and not (getmetatable(value) or {}).__tostring then
    local text = require("moonwire.json").encode(value) or tostring(value)
    C.mw_log_str(key, text, #text)
  else
    local text = tostring(value)
    C.mw_log_str(key, text, #text)
  end
end

local function add_message()
  local task = wait.current
  while task and task.parent do task = task.parent end
  if not task or task.delivery == nil then return end
  C.mw_message_parts(C.mw_delivery_message(task.delivery), parts)
  if task.name then C.mw_log_str("pipeline", task.name, #task.name) end
  C.mw_log_str("id", parts.id, parts.id_len)
  C.mw_log_int("attempt", C.mw_delivery_attempt(task.delivery))
end

local function write(level, text, fields)
  if not C.mw_log_wants(level) then return end
  text = tostring(text)
  if fields ~= nil and type(fields) ~= "table" then
    error(("mw.log: the fields must be a table, got %s"):format(type(fields)), 3)
  end
  C.mw_log_begin(level, text)
  add_message()
  if fields then
    local names = {}
    for name in pairs(fields) do names[#names + 1] = tostring(name) end
    table.sort(names)
    for _, name in ipairs(names) do add(name, fields[name]) end
  end
  C.mw_log_end()
end

for name, level in pairs(LEVELS) do
  ---@param text string
  ---@param fields table<string, any>|nil
  M[name] = function(text, fields) write(level, text, fields) end
end

return M
