--- Waiting. A handler runs in a coroutine; what it waits for has a number. `begin` picks the number, C is armed with
--- it, `yield` suspends the
--- coroutine until C completes it. Nothing here blocks, and nothing works outside of a task.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local ffi = require "ffi"

local M = {}
local vm = ffi.cast("struct mw_vm *", core.vm)

local waiting = {} -- waiter -> coroutine
local cancels = {} -- waiter -> function, called instead of resuming when its task is cancelled
local last = 0

---@class moonwire.Task
---@field co thread the coroutine that stands for the task
---@field parent moonwire.Task|nil the task that waits for this one (mw.all)
---@field delivery ffi.cdata*|nil
---@field waiter number|nil what it waits for now
---@field children table|nil

M.vm = vm
M.current = nil ---@type moonwire.Task|nil

---@return number
function M.begin()
  if not M.current then error("only inside a handler: there is nothing to wait in here", 3) end
  last = last + 1
  return last
end

--- The message that a task works for.
---@param task moonwire.Task
---@return ffi.cdata*|nil
function M.delivery(task)
  while task.parent do task = task.parent end
  return task.delivery
end

-- Back in the handler: its deadline runs again.
local function go_on(delivery, ...)
  if delivery ~= nil then C.mw_vm_enter(vm, delivery) end
  return ...
end

--- Suspends the current task until C completes `waiter`.
---@param waiter number
---@param cancel fun()|nil
---@return number value, ffi.cdata* object, string|nil error, boolean retryable
function M.yield(waiter, cancel)
  local task = M.current
  if coroutine.running() ~= task.co then
    error("waiting inside a coroutine of your own is not possible: use mw.all", 3)
  end
  local delivery = M.delivery(task)
  if delivery ~= nil then
    C.mw_delivery_wait(delivery)
    C.mw_vm_leave(vm, nil)
  end
  waiting[waiter] = task
  cancels[waiter] = cancel
  task.waiter = waiter
  return go_on(delivery, coroutine.yield(true))
end

--- The task that waits for this number, which it does not any more.
---@return moonwire.Task|nil
function M.take(waiter)
  local task = waiting[waiter]
  waiting[waiter], cancels[waiter] = nil, nil
  if task then task.waiter = nil end
  return task
end

--- Ends a waiting task and its children without resuming them; what they wait for is stopped.
---@param task moonwire.Task
function M.cancel(task)
  local waiter = task.waiter
  if waiter then
    local cancel = cancels[waiter]
    M.take(waiter)
    if cancel then cancel() else C.mw_vm_forget(vm, waiter) end
  end
  for child in pairs(task.children or {}) do M.cancel(child) end
  task.cancelled = true
end

return M
