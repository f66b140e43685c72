--- What a handler answers. Returning nothing is the ack; these are the other words.
local C = require "moonwire.internal.cdef"
local fault = require "moonwire.internal.api.fault"
local log = require "moonwire.internal.api.log"
local nearest = require "moonwire.internal.nearest"
local wait = require "moonwire.internal.wait"

local M = {}

local OUT_OF_MEMORY = "not enough memory" -- as Lua raises it

---@class moonwire.Verdict
local Verdict = {}
Verdict.__index = Verdict
Verdict.__tostring = function(v) return ("%s: %s"):format(v.kind, v.reason) end

local function make(fields)
  local verdict = setmetatable(fields, Verdict)
  -- A forgotten `return` must not turn a rejection into an ack: the worker looks here when the handler answers nothing.
  local task = wait.current
  while task and task.parent do task = task.parent end -- the children of mw.all speak for their handler
  if task then task.verdict = verdict end
  return verdict
end

local function text(value, what, level)
  if value == nil then return nil end
  if type(value) ~= "string" and type(value) ~= "number" then
    error(("%s must be a string, got %s"):format(what, type(value)), level + 1)
  end
  return tostring(value)
end

local CLASS_MAX = 31 -- bytes; MW_CLASS_MAX of core/spec.h

-- Classes name policies and group dead letters. One that is long is a reason in the wrong place.
local function class_of(value, what, default)
  local name = text(value, what .. ": class", 3) or default
  if #name > CLASS_MAX then
    error(("%s: class must be a short name such as %q, got %d bytes%s"):format(what, default, #name,
      what == "mw.reject" and "; the reason comes first" or ""), 3)
  end
  return name
end

--- Try again: by the policy of the class, or after so many seconds.
---@param options { after: number|nil, reason: string|nil, class: string|nil }|string|nil
---@return moonwire.Verdict
function M.retry(options)
  if type(options) == "number" then
    error(("mw.retry: write { after = %g } for a delay in seconds"):format(options), 2)
  end
  if type(options) ~= "table" then options = { reason = options } end
  for name in pairs(options) do
    if name ~= "after" and name ~= "reason" and name ~= "class" then
      local near = nearest(tostring(name), { "after", "reason", "class" })
      error(("mw.retry: unknown option %q; %s"):format(tostring(name), near and ("did you mean %q?"):format(near)
        or "it takes after, reason and class"), 2)
    end
  end
  local after = options.after
  if after ~= nil and (type(after) ~= "number" or after < 0 or after ~= after or after > 3.2e9) then
    error("mw.retry: after must be seconds, 0 or more", 2)
  end
  return make {
    kind = "retry", after = after, class = class_of(options.class, "mw.retry", "transient"),
    reason = text(options.reason, "mw.retry: reason", 2) or "the handler asked for a retry",
  }
end

--- Give up now: the message becomes a dead letter.
---@param reason string
---@param class string|nil "rejected" when not given
---@return moonwire.Verdict
function M.reject(reason, class)
  return make {
    kind = "reject", reason = text(reason, "mw.reject: reason", 2) or "rejected by the handler",
    class = class_of(class, "mw.reject", "rejected"),
  }
end

--- Done with it, without having handled it: acked, counted and logged.
---@param reason string
---@return moonwire.Verdict
function M.drop(reason)
  return make { kind = "drop", reason = text(reason, "mw.drop: reason", 2) or "dropped by the handler" }
end

---@return boolean
function M.is(value) return type(value) == "table" and getmetatable(value) == Verdict end

local function place_of(key, messages)
  if type(key) == "number" and key % 1 == 0 and messages[key] then return key end
  for i, msg in ipairs(messages) do
    if rawequal(msg, key) then return i end
  end
end

--- What handle_batch answered for each message, by place: it may name a message by its place, or by itself. An answer
--- for anything else was meant for some message, which must not be acked instead.
---@param answers table<integer|moonwire.Message, any>
---@param messages moonwire.Message[]
---@return table|nil, string|nil error
function M.by_place(answers, messages)
  local list = {}
  for key, value in pairs(answers) do
    local place = place_of(key, messages)
    if not place then
      local why = "handle_batch answered for %s: it is no message of the batch; use the message, or its place, 1 to %d"
      return nil, why:format(type(key) == "string" and ("%q"):format(key) or tostring(key), #messages)
    end
    if list[place] ~= nil then return nil, ("handle_batch answered twice for message %d"):format(place) end
    list[place] = value
  end
  return list
end

--- Applies a verdict to a delivery.
function M.apply(delivery, verdict)
  local kind, reason = verdict.kind, verdict.reason
  if kind == "retry" then
    local after = verdict.after and math.floor(verdict.after * 1000 + 0.5) or -1
    C.mw_delivery_retry(delivery, after, verdict.class, reason, #reason)
  elseif kind == "reject" then
    C.mw_delivery_reject(delivery, verdict.class, reason, #reason)
  elseif kind == "duplicate" then
    C.mw_delivery_duplicate(delivery)
  elseif kind == "busy" then
    C.mw_delivery_busy(delivery)
  else
    C.mw_delivery_drop(delivery, reason, #reason)
  end
end

--- The fault behind Lua's own words for it; nil when it is another error.
---@return moonwire.Fault|nil
function M.out_of_memory(err)
  if err ~= OUT_OF_MEMORY or not M.memory_limit then return nil end
  collectgarbage() -- what the handler made is garbage now: the next one has all the room again
  return fault.new { class = "memory", text = ("out of memory: the limit is %g MB"):format(M.memory_limit / 2 ^ 20) }
end

--- The handler raised an error, or answered `nil, text`.
function M.fail(delivery, err)
  err = M.out_of_memory(err) or err
  if fault.is(err) then
    local after = err.after and math.floor(err.after * 1000 + 0.5) or -1
    C.mw_delivery_retry(delivery, after, err.class, err.text, #err.text)
    return
  end
  local reason = fault.text(err)
  C.mw_delivery_retry(delivery, -1, "transient", reason, #reason)
end

local warned = {}

--- A handler returned something that is no verdict.
function M.odd(pipeline, value)
  if warned[pipeline] then return end
  warned[pipeline] = true
  log.write(log.LEVELS.warn, "the handler returned a value that means nothing", {
    pipeline = pipeline, value = type(value), hint = "return nothing, or mw.retry, mw.reject, mw.drop",
  })
end

return M
