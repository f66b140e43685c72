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

-- What a line says by itself, and nothing else may say in its place.
local ALWAYS = { time = true, level = true, msg = true, worker = true }
local OF_MESSAGE = { "pipeline", "id", "attempt" }
local NOTHING = {}

-- Of the message that is being handled.
local function message_fields()
  local task = wait.current
  while task and task.parent do task = task.parent end
  if not task or task.delivery == nil then return NOTHING end
  local message = C.mw_delivery_message(task.delivery)
  if message == nil then return NOTHING end -- the first of a batch, answered already
  C.mw_message_parts(message, parts)
  local id, attempt = ffi.string(parts.id, parts.id_len), C.mw_delivery_attempt(task.delivery)
  return { pipeline = task.name, id = id, attempt = attempt }
end

--- The name to write a field under; nil when the line has it already. A name that the line uses itself gets "field_" in
--- front: twice the same name in a line is read in one way by this program, and in another by that.
local function free_name(name, value, line, fields, own)
  if line[name] == nil and not (own and ALWAYS[name]) then return name end
  if line[name] ~= nil and tostring(line[name]) == tostring(value) then return nil end
  repeat name = "field_" .. name until fields[name] == nil
  return name
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
  fields = fields or NOTHING
  local line = message_fields()
  local names, texts = {}, {} -- made before the line begins: a __tostring that fails must not leave half of one
  for given, value in pairs(fields) do
    value = text_of(value)
    local name = free_name(tostring(given), value, line, fields, own)
    if name and texts[name] == nil then names[#names + 1], texts[name] = name, value end
  end
  table.sort(names)
  if own then C.mw_log_project() end
  C.mw_log_begin(level, text)
  for _, name in ipairs(OF_MESSAGE) do
    if line[name] ~= nil then add(name, line[name]) end
  end
  for _, name in ipairs(names) do add(name, texts[name]) end
  C.mw_log_end()
end

return M
