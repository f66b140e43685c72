--- The consumer groups of a broker, from outside. Needs a task (task.lua).
local C = require "moonwire.internal.cdef"
local fail = require "moonwire.cli.fail"
local ffi = require "ffi"
local wait = require "moonwire.internal.wait"

local M = {}

---@class moonwire.Group
---@field channel string
---@field group string
---@field ready number messages that wait for it, those handed out included
---@field delayed number
---@field parked number
---@field consumers number that live

--- All groups of a channel, or of all channels.
---@param broker moonwire.Broker
---@param channel string|nil
---@return moonwire.Group[]
function M.list(broker, channel)
  local waiter = wait.begin()
  C.mw_vm_groups(wait.vm, broker.link, channel, waiter)
  local _, object, err = wait.yield(waiter, function() end)
  if err then fail.raise(fail.UNAVAILABLE, "%s: %s", broker.url, err) end
  local found = ffi.gc(ffi.cast("struct mw_grouping *", object), C.mw_grouping_free)
  local list, view = {}, ffi.new "mw_group_view"
  while C.mw_grouping_at(found, #list, view) do
    list[#list + 1] = {
      channel = ffi.string(view.channel), group = ffi.string(view.group), ready = view.ready, delayed = view.delayed,
      parked = view.parked, consumers = view.consumers,
    }
  end
  return list
end

--- Removes a group.
---@param broker moonwire.Broker
---@param force boolean also while a consumer lives
---@return number|nil messages that waited for it, string|nil error, boolean|nil retryable
function M.remove(broker, channel, group, force)
  local waiter = wait.begin()
  C.mw_vm_remove_group(wait.vm, broker.link, channel, group, force, waiter)
  local count, _, err, retryable = wait.yield(waiter, function() end)
  if err then return nil, err, retryable end
  return count
end

return M
