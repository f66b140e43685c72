--- Waiting. A handler runs in a coroutine; what it waits for has a number. `begin` picks the number, C is armed with
--- it, `yield` suspends the
--- coroutine until C completes it. Nothing here blocks, and nothing works outside of a task, or where its coroutine
--- cannot be left.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local ffi = require "ffi"

local M = {}
local vm = ffi.cast("struct mw_vm *", core.vm)

local waiting = {} -- waiter -> coroutine
local cancels = {} -- waiter -> function, called instead of resuming when its task is cancelled
local last = 0
local LIBRARY = "=lua/moonwire/"

---@class moonwire.Task
---@field co thread the coroutine that stands for the task
---@field parent moonwire.Task|nil the task that waits for this one (mw.all)
---@field delivery ffi.cdata*|nil
---@field waiter number|nil what it waits for now
---@field children table|nil

M.vm = vm
M.current = nil ---@type moonwire.Task|nil
M.loading = nil ---@type string|nil the file of the project that is being loaded

-- For error(): the line of the project that called us, however deep in the library we are.
local function user_level()
  local level = 3 -- of debug.getinfo, which counts this function too
  while true do
    local info = debug.getinfo(level, "S")
    if not info then return 2 end
    if info.what ~= "C" and info.source:sub(1, #LIBRARY) ~= LIBRARY then return level - 1 end
    level = level + 1
  end
end

--- "file:line: " of the project's line that called us; "" when there is none.
---@return string
function M.where()
  local info = debug.getinfo(user_level(), "Sl")
  local file = info and info.source:match "^@(.*)"
  return file and ("%s:%d: "):format(file, info.currentline) or ""
end

local function refuse(text, ...) error(text:format(...), user_level()) end

local function name_of(fn)
  for name, value in pairs(_G) do
    if value == fn then return name end
  end
  for _, library in ipairs { "string", "table" } do
    for name, value in pairs(_G[library]) do
      if value == fn then return library .. "." .. name end
    end
  end
end

-- The function of C that called us back, and that a coroutine cannot be left through.
local function barrier()
  local level = 2
  while true do
    local info = debug.getinfo(level, "Sf")
    if not info then return "in a function that C calls back" end
    if info.what == "C" and info.func ~= pcall and info.func ~= xpcall then
      if info.func == error then return "in the error function of xpcall" end
      return "inside " .. (name_of(info.func) or "a function of C")
    end
    level = level + 1
  end
end

--- Raises an error where waiting is not possible. It comes before anything is armed: what was armed would wake whatever
--- its coroutine waits for by then, which may be the handler of another message.
---@param what string|nil the name of the function that wants to wait
function M.ready(what)
  what = what or "this"
  local task = M.current
  if not task then refuse("%s: only inside a handler: there is nothing to wait in here", what) end
  if coroutine.running() ~= task.co then
    refuse("%s: waiting inside a coroutine of your own is not possible: use mw.all", what)
  end
  if M.loading then
    refuse("%s cannot wait while a file is loaded (%s): call it inside of the handler", what, M.loading)
  end
  if not coroutine.isyieldable() then
    refuse("%s cannot wait %s: call it outside of that", what, barrier())
  end
end

--- A number for what comes next; to be armed and waited for, with nothing in between that can fail.
---@param what string|nil the name of the function that wants to wait
---@return number
function M.begin(what)
  M.ready(what)
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

--- The task that waits for this number, which it does not any more. One that waits for another number is not woken.
---@return moonwire.Task|nil
function M.take(waiter)
  local task = waiting[waiter]
  waiting[waiter], cancels[waiter] = nil, nil
  if not task or task.waiter ~= waiter then return nil end
  task.waiter = nil
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
