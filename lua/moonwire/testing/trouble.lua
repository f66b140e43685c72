--- Trouble on purpose: brokers that misbehave, handlers that fail, crashes. Methods of an app (testing/app.lua).
local C = require "moonwire.internal.cdef"
local failing = require "moonwire.testing.failing"
local life = require "moonwire.testing.life"
local nearest = require "moonwire.internal.nearest"
local turn = require "moonwire.testing.turn"

---@class moonwire.TestApp
local App = {}

local FAULTS = { "fail_publish", "fail_settle", "lose_ack", "hold_ack", "duplicate", "reorder", "delay_ms" }

--- Makes the brokers misbehave: `fail_publish`, `fail_settle`, `lose_ack`, `duplicate` and `reorder` strike so many
--- times, `delay_ms` delays every answer while it is set.
---@param what string
---@param amount number
function App:fault(what, amount)
  life.running(self)
  for _, entry in ipairs(self.links) do
    local name = entry.url:match "^memory:(.*)$"
    if name and not C.mw_memory_fault(name, what, amount) then
      local near = nearest(tostring(what), FAULTS)
      error(("no fault %q%s"):format(tostring(what), near and ("; did you mean %q?"):format(near)
        or "; there are " .. table.concat(FAULTS, ", ")), 2)
    end
  end
end

--- The next `count` attempts of a pipeline fail, before its handler runs.
---@param pipeline string
---@param count integer|nil 1
---@param class string|nil of the error; default transient
function App:fail(pipeline, count, class)
  life.running(self)
  if not self.pipelines[pipeline] then life.unknown_pipeline(self, pipeline, 2) end
  if count ~= nil and (type(count) ~= "number" or count < 0 or count % 1 ~= 0) then
    error("fail: expected a number of attempts", 2)
  end
  failing.plan(self.rewrite, pipeline, count or 1, class or "transient")
end

--- The broker takes back what is being handled, as when a connection is lost: late verdicts are discarded.
function App:cut()
  life.running(self)
  for _, entry in ipairs(self.links) do
    local name = entry.url:match "^memory:(.*)$"
    if name then C.mw_memory_cut(name) end
  end
end

--- The brokers deliver again what is being handled: the same as cut.
function App:redeliver() self:cut() end

--- The next `count` messages are delivered twice.
---@param count integer|nil 1
function App:duplicate(count) self:fault("duplicate", count or 1) end

--- The next `count` batches are delivered in the wrong order.
---@param count integer|nil 1
function App:reorder(count) self:fault("reorder", count or 1) end

local function ack_held(self)
  for _, entry in ipairs(self.links) do
    local name = entry.url:match "^memory:(.*)$"
    if name and C.mw_memory_held(name) > 0 then return true end
  end
end

--- Ends the worker as a crash would, and starts it again on the same brokers. Counters begin at 0. With "before_ack" it
--- runs on first, until a handler has ended and its ack is on the way to the broker, which never gets it.
---@param when "now"|"before_ack"|nil
function App:crash(when)
  local app = life.running(self)
  if when == "before_ack" then
    self:fault("hold_ack", 1e9) -- none gets through any more
    local limit = turn.limit_of(self.clock)
    turn.until_true(function() return ack_held(self) end, self.clock, limit, "an ack to crash before", 2)
    self:fault("hold_ack", 0)
  elseif when ~= nil and when ~= "now" then
    error("crash: expected now or before_ack", 2)
  end
  app:kill()
  self.app = nil
  life.load(self, 2)
end

return App
