--- Looking into a channel page by page, and taking single messages out of it. Needs a task (task.lua).
local C = require "moonwire.internal.cdef"
local fail = require "moonwire.cli.fail"
local ffi = require "ffi"
local position = require "moonwire.internal.api.position"
local wait = require "moonwire.internal.wait"

local M = {}

local PAGE = 500

local place, due = position.space(), ffi.new "double[1]"

---@class moonwire.Entry
---@field message ffi.cdata* valid until the page is over
---@field position moonwire.Position
---@field due number|nil wall time in seconds until which it is delayed

local function browse(broker, channel, after, newest)
  local waiter = wait.begin()
  C.mw_vm_browse(wait.vm, broker.link, channel, position.array { after }, PAGE, newest, waiter)
  local _, object, err = wait.yield(waiter, function() end)
  if err then fail.raise(fail.UNAVAILABLE, "%s: %s", broker.url, err) end
  return ffi.gc(ffi.cast("struct mw_browsing *", object), C.mw_browsing_free)
end

local function last_of(page)
  C.mw_browsing_last(page, place)
  return position.read(place[0])
end

--- The position of the newest message; 0 when there is none.
---@return moonwire.Position
function M.newest(broker, channel) return last_of(browse(broker, channel, 0, true)) end

local function entries_of(page)
  local entries = {}
  for i = 0, C.mw_browsing_count(page) - 1 do
    local message = C.mw_browsing_entry(page, i, place, due)
    local late = due[0] > 0 and due[0] / 1000 or nil
    entries[i + 1] = { message = message, position = position.read(place[0]), due = late }
  end
  return entries
end

--- One page after a position. `use` is called with its entries, which die with the page.
---@param use fun(entries: moonwire.Entry[])
---@return moonwire.Position last continue after it; equal to `after` when there is nothing more now
function M.page(broker, channel, after, use)
  local page = browse(broker, channel, after, false)
  local last = last_of(page)
  local entries = entries_of(page)
  if #entries > 0 then use(entries) end
  C.mw_browsing_free(ffi.gc(page, nil))
  return last
end

--- All that is there, page by page. `use` answers false to end it.
---@param upto moonwire.Position|nil no position beyond this one
function M.each_page(broker, channel, upto, use)
  local after, going = 0, true
  while going do
    local last = M.page(broker, channel, after, function(entries)
      while upto and #entries > 0 and position.after(entries[#entries].position, upto) do
        entries[#entries] = nil
        going = false
      end
      if #entries > 0 and use(entries) == false then going = false end
    end)
    if last == after then return end
    after = last
  end
end

--- Removes messages, and publishes others in the same step.
---@param positions moonwire.Position[]
---@param publish { channel: string, message: ffi.cdata* }[]
---@return number|nil removed, string|nil error, boolean|nil retryable
function M.remove(broker, channel, positions, publish)
  local waiter = wait.begin()
  local channels = ffi.new("const char *[?]", #publish + 1)
  local messages = ffi.new("struct mw_message *[?]", #publish + 1)
  for i, p in ipairs(publish) do channels[i - 1], messages[i - 1] = p.channel, p.message end
  local places = position.array(positions)
  C.mw_vm_remove(wait.vm, broker.link, channel, places, #positions, channels, messages, #publish, waiter)
  local removed, _, err, retryable = wait.yield(waiter, function() end)
  if err then return nil, err, retryable end
  return removed
end

return M
