--- Commands that wait for a broker run as one task on the loop. `run` turns the loop until the task is over; the first
--- INT or TERM asks it to end (`interrupted`), the second ends the process.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local fail = require "moonwire.cli.fail"
local posix = require "moonwire.cli.posix"
local runtime = require "moonwire.internal.runtime"
local wait = require "moonwire.internal.wait"

local M = {}

local TURN_MS = 50 -- how long a signal may wait to be seen
local interrupted = false
local watchers = {}

local function look_for_signals()
  if interrupted or not posix.signalled() then return end
  interrupted = true
  posix.free_signals()
end

local function with_trace(err)
  if fail.is(err) then return err end
  return debug.traceback(tostring(err), 2)
end

--- While a task waits, `look` is called now and then; it may raise, and so end the command.
---@param look fun()
function M.watch(look) watchers[#watchers + 1] = look end

--- Runs `fn` as a task and returns what it returns.
---@param fn fun(): integer
---@return integer
function M.run(fn)
  local over, ok, result = false, nil, nil
  posix.hold_signals() -- before a driver starts a thread, which inherits it
  runtime.spawn(function() ok, result = xpcall(fn, with_trace) end, nil, function(err)
    over = true
    if err ~= nil then ok, result = false, err end
  end)
  while not over do
    core.step(TURN_MS)
    look_for_signals()
    for _, look in ipairs(over and {} or watchers) do look() end
  end
  posix.free_signals()
  if not ok then error(result, 0) end
  return result
end

--- Was the command asked to end?
---@return boolean
function M.interrupted() return interrupted end

local function sleep(seconds)
  local waiter = wait.begin()
  C.mw_vm_sleep(wait.vm, waiter, seconds)
  wait.yield(waiter)
end

--- Waits; an interrupt ends it early.
---@param seconds number
function M.sleep(seconds)
  local slice = TURN_MS / 1000
  local deadline = C.mw_vm_mono(wait.vm) + seconds
  repeat
    local left = deadline - C.mw_vm_mono(wait.vm)
    sleep(math.max(0, math.min(slice, left)))
  until interrupted or left <= slice
end

-- ---- many at a time ----

---@class moonwire.Window runs functions as tasks of their own, a bounded number at a time
local Window = {}
Window.__index = Window

---@param most integer how many run at a time
---@param most_bytes number|nil and how much they may hold together
---@return moonwire.Window
function M.window(most, most_bytes)
  return setmetatable({ most = most, most_bytes = most_bytes or math.huge, running = 0, bytes = 0 }, Window)
end

local function ended(self, err)
  if err ~= nil then self.error = self.error or err end
  if self.parked and self.running <= self.enough and self.bytes <= self.most_bytes / 2 then
    local waiter = self.parked
    self.parked = nil
    C.mw_vm_sleep(wait.vm, waiter, 0) -- from the next turn on, not from inside another task
  end
end

local function park(self, enough)
  if self.running <= enough and (enough > 0 or self.running == 0) and self.bytes <= self.most_bytes / 2 then return end
  self.enough, self.parked = enough, wait.begin()
  wait.yield(self.parked)
end

--- Starts `fn`; waits for room first.
---@param fn fun()
---@param size integer|nil bytes that it holds
function Window:start(fn, size)
  size = size or 0
  if self.running >= self.most or self.bytes + size > self.most_bytes and self.running > 0 then
    park(self, math.floor(self.most / 2))
  end
  self.running, self.bytes = self.running + 1, self.bytes + size
  runtime.spawn(fn, nil, function(err)
    self.running, self.bytes = self.running - 1, self.bytes - size
    ended(self, err)
  end)
  if self.error then error(self.error, 0) end
end

--- Waits until all are over.
function Window:finish()
  park(self, 0)
  if self.error then error(self.error, 0) end
end

return M
