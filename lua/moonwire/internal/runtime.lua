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

local BUDGET = 512 -- messages per pipeline and turn, so that timers and sockets get their turn too

M.pipelines = {} -- of worker.lua's objects

--- Runs a task until it waits or ends.
---@return "waits"|"idle"|"ended" state, any error
local function resume(task, ...)
  local before = wait.current
  wait.current = task
  local ok, state = coroutine.resume(task.co, ...)
  wait.current = before
  if not ok then return "ended", state end
  if state == true then return "waits" end
  return state == "idle" and "idle" or "ended"
end

--- Starts a task of its own: a child of mw.all, a command of the CLI. `on_end(error|nil)` is called when it is over.
---@return moonwire.Task
function M.spawn(fn, parent, on_end)
  -- What fn returns must not be taken for what a waiting task yields.
  local task = { parent = parent, on_end = on_end, co = coroutine.create(function() fn() end) }
  local state, err = resume(task)
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
      local state, err = resume(task, done.value, done.object, done.error ~= nil and ffi.string(done.error) or nil,
        done.retryable)
      if state == "idle" then
        task.workers[#task.workers + 1] = task
      elseif state == "ended" then
        task.over = true
        if task.on_end then task.on_end(err, task) else error(err) end
      end
    end
  end
end

local function dispatch(p)
  C.mw_pipeline_budget(p.handle, BUDGET)
  if p.assign_lanes then p.assign_lanes() end
  p.expire()
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
  until state == "idle"
  if C.mw_pipeline_more(p.handle) then C.mw_vm_wake(vm) end
end

local function tick()
  complete()
  local retired = C.mw_vm_retired(vm)
  for i = 1, #M.pipelines do
    if retired then M.pipelines[i].expire() else dispatch(M.pipelines[i]) end
  end
end

core.set_tick(tick)
return M
