--- How specs let time pass. On the virtual clock everything that can happen now happens first, then time jumps to the
--- next timer; on the real clock it passes by itself. Every wait also has a limit in real time.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local runtime = require "moonwire.internal.runtime"
local wait = require "moonwire.internal.wait"

local M = {}

local REAL_LIMIT = 10 -- seconds
local VIRTUAL_LIMIT = 30 * 86400
local POLL = 5 -- ms that a step waits for the world outside

--- How long a wait on this clock lasts at most, in seconds of it.
---@param clock "virtual"|"real"
---@return number
function M.limit_of(clock) return clock == "real" and REAL_LIMIT or VIRTUAL_LIMIT end

--- Called after every step; errors of its own are the spec's.
M.after_step = function() end

--- Seconds on the loop's clock.
---@return number
function M.now() return C.mw_vm_mono(wait.vm) end

local function ms(seconds) return math.floor(seconds * 1000 + 0.5) end

local function step(most)
  core.step(most)
  M.after_step()
end

local function busy()
  return C.mw_vm_pending(wait.vm) or C.mw_http_fake_pending() or C.mw_redis_fake_pending()
end

local function span(seconds)
  return seconds < 86400 and ("%g s"):format(seconds) or ("%g days"):format(seconds / 86400)
end

local function text_of(what) return type(what) == "function" and what() or what end

local function too_long(real_deadline, what, level)
  if C.mw_real_seconds() < real_deadline then return end
  error(("%g s of real time have passed, waiting for %s"):format(REAL_LIMIT, text_of(what)), level + 1)
end

--- Runs what can happen without time passing.
function M.run(what, level)
  local deadline = C.mw_real_seconds() + REAL_LIMIT
  step(0)
  while busy() do
    step(POLL)
    too_long(deadline, what, level + 1)
  end
end

--- Lets so much virtual time pass, timer by timer.
---@param seconds number
function M.advance(seconds, what, level)
  local left = ms(seconds)
  local deadline = C.mw_real_seconds() + REAL_LIMIT
  M.run(what, level + 1)
  while left > 0 do
    left = left - C.mw_vm_advance(wait.vm, left)
    M.run(what, level + 1)
    too_long(deadline, what, level + 1)
  end
end

--- Runs until fn() is true, which is asked after every step, and lets time pass as far as needed.
---@param fn fun(stuck: boolean): any stuck: nothing can happen any more, however much time passes
---@param clock "virtual"|"real"
---@param seconds number on that clock
---@param what string|fun(): string for the error
function M.until_true(fn, clock, seconds, what, level)
  local deadline, real = M.now() + seconds, C.mw_real_seconds() + REAL_LIMIT
  step(0)
  while true do
    local value = fn(false)
    if value then return value end
    if busy() then
      step(POLL)
    elseif clock == "real" then
      step(POLL)
    else
      local ahead, left = C.mw_vm_next(wait.vm), ms(deadline - M.now())
      if ahead < 0 then
        value = fn(true)
        if value then return value end
        error("nothing more can happen, however much time passes; waited for " .. text_of(what), level + 1)
      elseif ahead > left then
        error(("waited %s for %s"):format(span(seconds), text_of(what)), level + 1)
      end
      C.mw_vm_advance(wait.vm, left)
      step(0)
    end
    if clock == "real" and M.now() >= deadline then
      error(("waited %s for %s"):format(span(seconds), text_of(what)), level + 1)
    elseif clock == "virtual" then
      too_long(real, what, level + 1)
    end
  end
end

--- Runs fn in a task of this state, so that it may wait; returns what it returns.
function M.await(fn, clock, what, level)
  local result, failed, over
  runtime.spawn(function() result = fn() end, nil, function(err) failed, over = err, true end)
  if not over then
    M.until_true(function() return over end, clock, M.limit_of(clock), what, level + 1)
  end
  if failed then error(tostring(failed), level + 1) end
  return result
end

return M
