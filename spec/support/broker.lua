-- broker.lua - a broker as a spec sees it from outside of any worker: publish, look, take out. Uses a link of this
-- process, whatever the driver; nothing here waits for ever.
local C = require "moonwire.internal.cdef"
local async = require "moonwire.internal.api.async"
local core = require "moonwire.core"
local ffi = require "ffi"
local message = require "moonwire.internal.api.message"
local position = require "moonwire.internal.api.position"
local publish = require "moonwire.internal.api.publish"
local runtime = require "moonwire.internal.runtime"
local wait = require "moonwire.internal.wait"
local clock = require "spec.support.wait"

local M = {}
local Broker = {}
Broker.__index = Broker

local TRIES = 5
local AT_ONCE = 2000 -- publishes under way: one commit takes them all

-- Turns the loop until fn() is true; what fn returns. An error in fn is an error at once.
function M.turn_until(fn, seconds, what)
  local deadline = clock.now() + (seconds or 10)
  while true do
    local value = fn()
    if value then return value end
    if clock.now() >= deadline then
      local text = type(what) == "function" and what() or what or "a condition"
      error(("waited %g s for %s"):format(seconds or 10, text), 2)
    end
    core.step(5)
  end
end

function M.open(url)
  local failure = ffi.new "mw_failure"
  local link = C.mw_vm_link(wait.vm, url, failure)
  if link == nil or C.mw_vm_link_open(link, failure) ~= 0 then error(url .. ": " .. ffi.string(failure.text), 2) end
  return setmetatable({ url = url, link = link, bits = C.mw_vm_link_can(link) }, Broker)
end

local function task(fn, on_end)
  runtime.spawn(fn, nil, on_end)
end

-- Runs fn in a task and turns the loop until it is over; returns what it returns.
local function await(fn, seconds, what)
  local result, failed, over
  task(function() result = fn() end, function(err) failed, over = err, true end)
  M.turn_until(function() return over end, seconds, what)
  if failed then error(failed, 0) end
  return result
end

-- list: { { body, id =, key =, headers =, priority =, delay =, type = }, … }; all confirmed when it returns.
function Broker:publish(channel, list, tries)
  local left, failed = 0, nil
  local function ended(err)
    left = left - 1
    failed = failed or err
  end
  for i, m in ipairs(list) do
    left = left + 1
    task(function()
      local made = assert(publish.message(m[1], { id = m.id, key = m.key, headers = m.headers, priority = m.priority,
                                                  type = m.type }))
      local ok, err, retryable
      for try = 1, tries or TRIES do -- a real broker may refuse one now and then
        C.mw_message_ref(made)
        ok, err, retryable = publish.now(self.link, channel, made, m.delay)
        if ok or not retryable or try == (tries or TRIES) then break end
        async.sleep(0.1 * try)
      end
      C.mw_message_unref(made)
      if not ok then error(err, 0) end
    end, ended)
    if left >= AT_ONCE or i == #list then
      M.turn_until(function() return left == 0 end, 60, "the confirms of " .. #list .. " messages")
      if failed then error(failed, 2) end
    end
  end
end

local FIELDS = { "id", "body", "key", "headers", "time", "type", "priority" }

local function plain(record, place, due_ms)
  local view = message.view(record)
  local copy = { position = place, due = due_ms > 0 and due_ms / 1000 or nil }
  for _, name in ipairs(FIELDS) do copy[name] = view[name] end
  message.seal(view)
  return copy
end

local function page(link, channel, after, max)
  local waiter = wait.begin()
  C.mw_vm_browse(wait.vm, link, channel, after, max, false, waiter)
  local _, object, err = wait.yield(waiter, function() end)
  if err then error("browse: " .. err, 0) end
  return ffi.cast("struct mw_browsing *", object)
end

-- What stands in the channel, oldest first: { id, body, key, headers, time, type, priority, position, due }.
function Broker:messages(channel, max)
  return await(function()
    local list, after = {}, position.space()
    while #list < (max or 1e9) do
      local found = page(self.link, channel, after, math.min(max or 1000, 1000))
      local count = C.mw_browsing_count(found)
      local place, due = position.space(), ffi.new "double[1]"
      for i = 0, count - 1 do
        local record = C.mw_browsing_entry(found, i, place, due)
        list[#list + 1] = plain(record, position.read(place[0]), due[0])
      end
      C.mw_browsing_last(found, after)
      C.mw_browsing_free(found)
      if count == 0 then break end
    end
    return list
  end, 30, "a look into " .. channel)
end

function Broker:is_empty(channel) return #self:messages(channel, 1) == 0 end

-- Takes messages out of the channel by their positions.
function Broker:remove(channel, positions)
  return await(function()
    local waiter = wait.begin()
    C.mw_vm_remove(wait.vm, self.link, channel, position.array(positions), #positions, nil, nil, 0, waiter)
    local count, _, err = wait.yield(waiter, function() end)
    if err then error("remove: " .. err, 0) end
    return count
  end, 10, "a removal from " .. channel)
end

return M
