-- insight_support.lua - a project on the embedded broker whose handler does what the body says, run by the real binary.
local clock = require "spec.support.wait"
local cli = require "spec.functional.cli.support"

local M = {}

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect "embedded:data"
local retry = { attempts = 3, backoff = "fixed", base = 30, jitter = 0 }
mw.pipeline "orders" { from = broker:channel "orders", handler = "handler", retry = retry, on_dead = "hold_key" }
mw.pipeline "loose" { from = broker:channel "loose", handler = "handler", retry = retry, order = "none" }
]]
local HANDLER = [[
local mw = require "moonwire"
return { handle = function(msg)
  if msg.body == "fail" then error "no such customer" end
  if msg.body == "reject" then return mw.reject "not wanted" end
  if msg.body == "outage" then error(mw.error("outage", "the bank is closed")) end
  mw.sleep(tonumber(msg.body))
end }
]]

---@class moonwire.Insight
local Insight = {}
Insight.__index = Insight

function M.start()
  local work = cli.workdir()
  work:write("moonwire.lua", MAIN)
  work:write("handler.lua", HANDLER)
  local self = setmetatable({ work = work, child = work:spawn { "run" } }, Insight)
  clock.until_(function() return self.child:stderr():match "msg=started" end, 15, "started")
  return self
end

function Insight:stop()
  local code = self.child:stop(15)
  assert(code == 0, self.child:stderr())
end

function Insight:publish(channel, body, ...) return self.work:publish(channel, body, ...) end

function Insight:run(...) return self.work:run { ... } end

-- The pipeline as `status --json` has it.
function Insight:pipeline(name)
  local result = self:run("status", "--json")
  assert(result.code == 0, result.stderr)
  for _, p in ipairs(cli.objects(result.stdout)[1].pipelines) do
    if p.name == name then return p end
  end
end

-- Waits until its status is as it should be.
function Insight:until_status(name, what, holds)
  return clock.until_(function()
    local p = self:pipeline(name)
    return holds(p) and p
  end, 20, what)
end

-- What explain says, and its exit code.
function Insight:explain(...)
  local result = self:run("explain", ...)
  return result.stdout, result.code, result.stderr
end

return M
