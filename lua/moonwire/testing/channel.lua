--- A look into a channel, as specs see its messages.
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"
local json = require "moonwire.json"
local message = require "moonwire.internal.api.message"
local position = require "moonwire.internal.api.position"
local wait = require "moonwire.internal.wait"

---@class moonwire.TestMessage a message that stands in a channel
---@field id string
---@field body string
---@field data any the body, decoded
---@field key string|nil
---@field headers table<string, string>
---@field type string
---@field priority integer
---@field time number
---@field due number|nil when a delayed one is due, seconds since 1970

local View = {}
function View.__index(self, name)
  if name ~= "data" then return nil end
  local value, err = json.decode(self.body)
  if err then error("the body is not JSON: " .. err, 2) end
  return value
end

local FIELDS = { "id", "body", "key", "headers", "time", "type", "priority" }

local function view(record, due_ms)
  local wrapped = message.view(record)
  local copy = { due = due_ms > 0 and due_ms / 1000 or nil }
  for _, name in ipairs(FIELDS) do copy[name] = wrapped[name] end
  message.seal(wrapped)
  return setmetatable(copy, View)
end

--- Everything that stands there, oldest first, without taking it. Only inside a task.
---@return moonwire.TestMessage[]
return function(link, channel)
  local list, after = {}, position.space()
  local place, due = position.space(), ffi.new "double[1]"
  while true do
    local waiter = wait.begin()
    C.mw_vm_browse(wait.vm, link, channel, after, 1000, false, waiter)
    local _, object, err = wait.yield(waiter, function() end)
    if err then error(err, 0) end
    local found = ffi.cast("struct mw_browsing *", object)
    local count = C.mw_browsing_count(found)
    for i = 0, count - 1 do
      local record = C.mw_browsing_entry(found, i, place, due)
      list[#list + 1] = view(record, due[0])
    end
    C.mw_browsing_last(found, after)
    C.mw_browsing_free(found)
    if count == 0 then return list end
  end
end
