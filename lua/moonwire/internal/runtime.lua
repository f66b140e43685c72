--- The scheduler of one state: takes what C has ready, runs it in coroutines, and hands back verdicts. C calls `tick`
--- after the poll; everything
--- else happens in here. See docs/architecture.md, "Dispatch".
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local ffi = require "ffi"
local wait = require "moonwire.internal.wait"

local M = {}
local vm = wait.vm
local done = ffi.new "mw_completion"

local BUDGET = 512 -- messages per pipeline and turn; and a turn ends with its slice of time (C.mw_slice_over): acks,
-- timers, signals, sockets and the other pipelines want theirs

M.pipelines = {} -- of worker.lua's objects
M.services = {} -- functions that start a task each, for as long as this generation is the current one
local serving
local first = 0 -- how many pipelines have had their turn before the one that begins

--- Runs a task until it waits or ends.
---@return "waits"|"idle"|"spent"|"ended" state, any error
local function resume(task, ...)
  local before = wait.current
  wait.current = task
  local ok, state = coroutine.resume(task.co, ...)
  wait.current = before
  if not ok then return "ended", state end
  if state == true then return "waits" end
  return (state == "idle" or state == "spent") and state or "ended"
end

-- LuaJIT turns hooks off inside of a hook, and on again when its error is caught; the end of a coroutine is no catch.
local function rethrow(task, ...)
  local state, err = resume(task, ...)
  if C.mw_vm_breaking() then error(err, 0) end
  return state, err
end

--- A child of mw.all goes on, on the deadline of its handler.
local function resume_child(task, ...)
  local ok, state, err = pcall(rethrow, task, ...)
  C.mw_vm_leave(vm, nil)
  if not ok then return "ended", state end
  return state, err
end

--- Starts a task of its own: a child of mw.all, a command of the CLI. `on_end(error|nil)` is called when it is over.
---@return moonwire.Task
function M.spawn(fn, parent, on_end)
  -- What fn returns must not be taken for what a waiting task yields.
  local task = { parent = parent, on_end = on_end, co = coroutine.create(function() fn() end) }
  local state, err = resume(task)
  local delivery = parent and wait.delivery(parent)
  if delivery then C.mw_vm_enter(vm, delivery) end -- the child waits, the one that started it does not
  if state == "ended" then
    task.over = true
    on_end(err, task)
  end
  return task
end

local function complete()
  while C.mw_vm_completion(vm, done) do
    local task = wait.take(done.waiter)
    if task then
      local go_on = task.parent and resume_child or resume
      local state, err = go_on(task, done.value, done.object, done.error ~= nil and ffi.string(done.error) or nil,
        done.retryable)
      if state == "idle" then
        task.workers[#task.workers + 1] = task
      elseif state == "ended" then
        task.over = true
        if task.on_end then task.on_end(err, task) else error(err) end
      end
    end
    if C.mw_slice_over() then return C.mw_vm_wake(vm) end
  end
end

local function dispatch(p)
  if p.assign_lanes then p.assign_lanes() end
  C.mw_pipeline_budget(p.handle, BUDGET)
  local workers = p.workers
  repeat
    local task = workers[#workers]
    if task then workers[#workers] = nil else task = p.new_worker() end
    local state, err = resume(task)
    if state == "idle" then
      workers[#workers + 1] = task
    elseif state == "ended" then
      error(err) -- the worker itself failed: a fault of the library
    end
  until state == "idle" -- or "waits", or "spent": the next one goes on
  if C.mw_pipeline_more(p.handle) then C.mw_vm_wake(vm) end
end

local function serve(retired)
  if retired then
    for _, task in ipairs(serving or {}) do wait.cancel(task) end
    serving, M.services = {}, {}
  elseif not serving and C.mw_vm_current(vm) then
    serving = {}
    for i, start in ipairs(M.services) do serving[i] = start() end
  end
end

--- Those behind the one that used the slice up come first in the next turn.
local function dispatch_all()
  local n = #M.pipelines
  C.mw_vm_slice(vm) -- of their own: handlers that went on may have used up the other
  for k = 0, n - 1 do
    local i = (first + k) % n + 1
    dispatch(M.pipelines[i])
    if C.mw_slice_over() then
      first = i
      if k < n - 1 then C.mw_vm_wake(vm) end
      return
    end
  end
end

local function tick()
  C.mw_vm_slice(vm)
  complete()
  local retired = C.mw_vm_retired(vm)
  if #M.services > 0 then serve(retired) end
  for _, p in ipairs(M.pipelines) do p.expire() end
  if not retired then dispatch_all() end
end

core.set_tick(tick)
return M
