--- mw.sleep and mw.all.
local C = require "moonwire.internal.cdef"
local runtime = require "moonwire.internal.runtime"
local wait = require "moonwire.internal.wait"

local M = {}

--- Waits without holding up anybody else.
---@param seconds number
function M.sleep(seconds)
  if type(seconds) ~= "number" or seconds < 0 or seconds ~= seconds or seconds > 3.2e9 then
    error("mw.sleep: expected seconds, 0 or more", 2)
  end
  local waiter = wait.begin "mw.sleep"
  C.mw_vm_sleep(wait.vm, waiter, seconds)
  wait.yield(waiter)
end

local function collect(results, i, ...)
  results[i] = { n = select("#", ...), ... }
end

--- Runs functions side by side and waits for all of them. The first error ends the others and is raised.
---@param functions (fun(): any)[]
---@return any ... the first result of each, in order
function M.all(functions)
  if type(functions) ~= "table" then error("mw.all: expected a list of functions, got " .. type(functions), 2) end
  for i = 1, #functions do -- not ipairs: it would stop at a hole, and nobody would end what comes after
    local kind = type(functions[i])
    if kind ~= "function" then error(("mw.all: item %d is a %s, not a function"):format(i, kind), 2) end
  end
  local parent = wait.current
  local join = wait.begin "mw.all"
  local results, left, failure, joined = {}, #functions, nil, false
  parent.children = parent.children or {}
  for i, fn in ipairs(functions) do
    local child = runtime.spawn(function() collect(results, i, fn()) end, parent, function(err, task)
      parent.children[task] = nil
      left = left - 1
      if not failure and not results[i] then failure = { err == nil and "error without a text" or err } end
      if joined and (left == 0 or failure) and not parent.woken then
        parent.woken = true
        C.mw_vm_sleep(wait.vm, join, 0) -- wakes the parent from the next tick, not from inside its child
      end
    end)
    if not child.over then parent.children[child] = true end
    if failure then break end
  end
  if left > 0 and not failure then
    joined, parent.woken = true, nil
    wait.yield(join)
    parent.woken = nil
  end
  if failure then
    for child in pairs(parent.children) do wait.cancel(child) end
    parent.children = nil
    error(failure[1], 0)
  end
  local first = {}
  for i = 1, #functions do first[i] = results[i][1] end
  return unpack(first, 1, #functions)
end

return M
