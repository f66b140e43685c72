--- The loop over messages. It runs inside pooled coroutines and is Lua from end to end, so that LuaJIT compiles it
--- together with the handler; C is
--- reached by leaf calls only. A handler that waits keeps its coroutine, and another one goes on with the rest.
local C = require "moonwire.internal.cdef"
local fault = require "moonwire.internal.api.fault"
local ffi = require "ffi"
local log = require "moonwire.internal.api.log"
local json = require "moonwire.json"
local message = require "moonwire.internal.api.message"
local verdict = require "moonwire.internal.api.verdict"
local wait = require "moonwire.internal.wait"

local M = {}

local take, ack, attempt_of = C.mw_pipeline_take, C.mw_delivery_ack, C.mw_delivery_attempt
local wrap = message.wrap
local yield = coroutine.yield

-- Only the text of an error decides; the way to it is for those who ask for it, with --log-level debug.
local function with_trace(err)
  if C.mw_log_wants(log.LEVELS.debug) then
    local fields = { error = tostring(err), trace = debug.traceback("", 2) }
    log.write(log.LEVELS.debug, "the handler raised an error", fields)
  end
  return err
end

local function answer(p, task, delivery, ok, a, b)
  if ok and a == nil and b == nil then
    local forgotten = task.verdict
    if forgotten then return verdict.apply(delivery, forgotten) end
    return ack(delivery)
  end
  if not ok then return verdict.fail(delivery, a) end
  if verdict.is(a) then return verdict.apply(delivery, a) end
  if a == nil or a == false then return verdict.fail(delivery, b or "the handler answered false") end
  if a ~= true then verdict.odd(p.name, a) end
  return ack(delivery)
end

--- Where a coroutine that waits stands in the project; nil when a tail call has left no trace.
local function place_of(co)
  for level = 0, 30 do
    local info = debug.getinfo(co, level, "Sl")
    if not info then return nil end
    if info.source:sub(1, 1) == "@" then return ("%s:%d"):format(info.short_src, info.currentline) end
  end
end

--- What to say about a handler that ran into its deadline.
local function too_late(p, task)
  local waits = coroutine.status(task.co) == "suspended"
  local place = waits and (place_of(task.co) or "") or ffi.string(C.mw_vm_broken_at())
  if place == "" then return ("timed out after %g s"):format(p.timeout) end
  return ("timed out after %g s, %s at %s"):format(p.timeout, waits and "waiting" or "computing", place)
end

--- The deadline passed while the handler computed: what it answered, or caught, does not matter.
local function timed_out(p, task, deliveries, n)
  local class, text = "timeout", too_late(p, task)
  wait.cancel(task) -- its children, if any
  p.all[task] = nil
  if task.claiming then -- the handler has not begun
    class, text = "outage", ("dedupe: the store did not answer within %g s"):format(p.timeout)
  end
  for i = 0, n - 1 do C.mw_delivery_retry(deliveries[i], -1, class, text, #text) end
  return "spent"
end

local one = ffi.new "struct mw_delivery *[1]"

local function late(p, task, delivery)
  one[0] = delivery
  return timed_out(p, task, one, 1)
end

--- The body of a worker coroutine. Made from source for every pipeline, so that each has traces of its own.
local SOURCE = [[
local p, task, take, ack, attempt_of, wrap, yield, answer, with_trace, run, handle, vm, enter, leave, late = ...
return function()
  while true do
    local d = take(handle)
    if d == nil then
      yield("idle")
    else
      task.delivery, task.verdict = d, nil
      local msg = wrap(d, attempt_of(d), p)
      enter(vm, d)
      local ok, a, b = xpcall(run, with_trace, msg)
      local broken = leave(vm, d)
      msg[1] = nil
      if broken then return late(p, task, d) end
      if ok and a == nil and b == nil and not task.verdict then ack(d) else answer(p, task, d, ok, a, b) end
      task.delivery = nil
    end
  end
end]]

local function single(p, chunk)
  return function()
    local task = { workers = p.workers, name = p.name, pipeline = p }
    local body = chunk(p, task, take, ack, attempt_of, wrap, yield, answer, with_trace, p.run, p.handle, wait.vm,
      C.mw_vm_enter, C.mw_vm_leave, late)
    task.co = coroutine.create(body)
    p.all[task] = true
    return task
  end
end

--- verdicts: nil (all acked), one verdict for all, or a table of verdicts by message or place.
local function answer_batch(p, task, deliveries, n, ok, a, b)
  local each = ok and type(a) == "table" and not verdict.is(a)
  if each then
    a, b = verdict.by_place(a, task.messages)
    each = a ~= nil
    task.verdict = nil -- none was forgotten: they stand in the table
  end
  for i = 0, n - 1 do
    if each then answer(p, task, deliveries[i], true, a[i + 1]) else answer(p, task, deliveries[i], ok, a, b) end
  end
end

local function batched(p)
  return function()
    local task = { workers = p.workers, name = p.name, pipeline = p }
    local deliveries = ffi.new("struct mw_delivery *[?]", p.batch_size)
    task.co = coroutine.create(function()
      while true do
        local n = C.mw_pipeline_take_batch(p.handle, deliveries, p.batch_size)
        if n == 0 then
          yield "idle"
        else
          task.delivery, task.verdict, task.batch, task.count = deliveries[0], nil, deliveries, n
          local messages = {}
          for i = 1, n do
            local d = deliveries[i - 1]
            messages[i] = wrap(d, attempt_of(d), p)
          end
          task.messages = messages
          C.mw_vm_enter(wait.vm, deliveries[0])
          local ok, a, b = xpcall(p.run_batch, with_trace, messages)
          local broken = C.mw_vm_leave(wait.vm, deliveries[0])
          for i = 1, n do message.seal(messages[i]) end
          if broken then return timed_out(p, task, deliveries, n) end
          answer_batch(p, task, deliveries, n, ok, a, b)
          task.delivery, task.batch, task.messages = nil, nil, nil
        end
      end
    end)
    p.all[task] = true
    return task
  end
end

--- A handler that waited past its deadline: its coroutine is dropped, what it waited for is stopped.
local function expire(p)
  return function()
    while true do
      local d = C.mw_pipeline_expired(p.handle, wait.vm)
      if d == nil then return end
      for task in pairs(p.all) do
        if task.delivery == d then
          one[0] = d
          timed_out(p, task, task.batch or one, task.count or 1)
          break
        end
      end
    end
  end
end

--- Lanes by the pipeline's own key: a path into the data, or a function of the message.
local function lanes(p, key)
  return function()
    while true do
      local d = C.mw_pipeline_unkeyed(p.handle)
      if d == nil then return end
      local msg = wrap(d, attempt_of(d), p)
      C.mw_vm_enter(wait.vm, d)
      local ok, value = pcall(key, msg)
      local broken = C.mw_vm_leave(wait.vm, d)
      message.seal(msg)
      if broken then ok, value = false, ("timed out after %g s"):format(p.timeout) end
      if ok and type(value) == "table" or type(value) == "function" then -- no two of them are the same
        ok, value = false, ("expected a text or a number, got a %s"):format(type(value))
      end
      if not ok then
        local text = "key: " .. fault.text(value)
        C.mw_delivery_no_lane(d, text, #text)
      elseif value == nil or value == json.null then
        C.mw_delivery_set_lane(d, nil, 0, false)
      else
        local text = tostring(value)
        C.mw_delivery_set_lane(d, text, #text, true)
      end
      if C.mw_slice_over() then return C.mw_vm_wake(wait.vm) end
    end
  end
end

--- Completes a pipeline's table { name, handle, run | run_batch, batch_size, timeout, key } for runtime.lua.
function M.attach(p)
  p.workers, p.all = {}, {}
  p.expire = expire(p)
  if p.key then p.assign_lanes = lanes(p, p.key) end
  if p.run_batch then
    p.new_worker = batched(p)
  else
    p.new_worker = single(p, assert(loadstring(SOURCE, "=worker")))
  end
end

return M
