-- harness.lua - one face for all drivers: workers inside this process (memory drivers; a crash is app:kill()) or real
-- processes (durable brokers; a crash is SIGKILL). A case sees a harness and never asks which it is.
local C = require "moonwire.internal.cdef"
local broker = require "spec.support.broker"
local clock = require "spec.support.wait"
local core = require "moonwire.core"
local process = require "spec.support.process"
local project = require "spec.support.project"

local M = {}
local Harness = {}
Harness.__index = Harness

local binary = os.getenv "MOONWIRE_BIN"
local slow = binary:find "asan"

M.scale = tonumber(os.getenv "MW_SCALE") or (slow and 0.2 or 1)
-- How much later than asked for something may happen in a slow build.
M.late = slow and 3 or 1

local last = 0

function M.new(driver, case)
  last = last + 1
  local dir = process.tmpdir()
  local self = setmetatable({ driver = driver, case = case, dir = dir, name = ("contract-%d"):format(last),
                              workers = {}, started = 0, late = M.late * (driver.late or 1) }, Harness)
  self.url = driver.url(self)
  self.broker = broker.open(self.url)
  self.trace_path = dir .. "/trace"
  self.trace = project.trace(self.trace_path)
  return self
end

-- n, scaled down for slow builds, never below `least`.
function Harness:scaled(n, least)
  return math.max(least or 1, math.floor(n * M.scale * (self.driver.few or 1)))
end

function Harness:can(bit_value) return math.floor(self.broker.bits / bit_value) % 2 == 1 end

--- The broker --------------------------------------------------------------------------------------------------------

function Harness:publish(channel, list)
  if type(channel) == "table" then channel, list = "in", channel end
  self.broker:publish(channel, list)
end

function Harness:messages(channel)
  if self.driver.messages then return self.driver.messages(self, channel) end
  return self.broker:messages(channel)
end

function Harness:is_empty(channel)
  if self.driver.is_empty then return self.driver.is_empty(self, channel or "in") end
  return self.broker:is_empty(channel or "in")
end

function Harness:dead() return self.broker:messages "in.dead" end

-- Makes the broker refuse the next n publishes and settlements; nil when it cannot be made to.
function Harness:refuse(n) return self.driver.refuse(self, n) end

--- Workers -----------------------------------------------------------------------------------------------------------

local Inside, Outside = {}, {}
Inside.__index, Outside.__index = Inside, Outside

function Inside.start(self, dir)
  local app = core.app()
  local ok, err = app:load { dir = dir, broker = self.url }
  if not ok then error("load: " .. err, 3) end
  assert(app:start())
  return setmetatable({ app = app }, Inside)
end

function Inside:stop(seconds)
  self.app:drain()
  broker.turn_until(function() return self.app:done() end, seconds, "the drain")
  self.app:close()
  return 0
end

function Inside:kill() self.app:kill() end
function Inside:status() return self.app:status() end
function Inside:fenced() return self.app:status()[1].fenced end -- luacheck: ignore 212

function Outside.start(self, dir)
  local log = dir .. "/log"
  -- Alone: what the cases stop, kill and count is the process that has the messages.
  local child = process.spawn { { binary, "run", dir, "--workers", "0" }, env = { BROKER_URL = self.url },
                                stdout = log, stderr = log }
  return setmetatable({ child = child, log = log }, Outside)
end

-- A process that has not installed its signal handlers yet would just die of the signal.
function Outside:stop(seconds)
  local started = function() return self.child:stderr():find("started", 1, true) or not self.child:alive() end
  broker.turn_until(started, 10 * M.late, "the worker to start")
  self.child:kill "TERM"
  local code, why, signal = self.child:wait(seconds or 15)
  if code ~= 0 then
    error(("the worker ended with %s\n%s"):format(tostring(code or why) .. " " .. tostring(signal or ""),
      self.child:stderr():sub(-2000)), 3)
  end
  return code
end

function Outside:kill()
  self.child:kill "KILL"
  self.child:wait(10)
end

function Outside.status() return nil end

function Outside:fenced()
  local _, count = self.child:stderr():gsub("fenced: verdict discarded", "")
  return count
end

-- Starts a worker on a project (see support/project.lua); without one, on the same project as before.
function Harness:start(given, name)
  self.given = given or self.given
  self.started = self.started + 1
  name = name or "w" .. self.started
  local dir = self.dir .. "/" .. name
  project.make(dir, self.given, self.trace_path, name)
  local kind = self.driver.outside and Outside or Inside
  local worker = kind.start(self, dir)
  worker.dir, worker.name = dir, name
  self.workers[worker] = true
  return worker
end

local function only(self)
  local worker = next(self.workers)
  assert(worker and not next(self.workers, worker), "say which worker")
  return worker
end

function Harness:stop(worker, seconds)
  worker = worker or only(self)
  self.workers[worker] = nil
  return worker:stop(seconds or 15 * self.late)
end

function Harness:kill(worker)
  worker = worker or only(self)
  self.workers[worker] = nil
  worker:kill()
end

-- Takes away what the worker is handling, as a broker does that lost it: cuts its connection, or stops the process for
-- longer than its lease while another one is there. `resumed` must turn true before it may go on.
function Harness:cut(worker, resumed, seconds)
  if not self.driver.outside then
    C.mw_memory_cut(self.name)
    return self:wait(resumed, seconds, "the message to come again")
  end
  worker.child:kill "STOP"
  local other = self:start(nil, "other")
  self:wait(resumed, seconds, "another worker to take over")
  worker.child:kill "CONT"
  return other
end

function Harness:wait(fn, seconds, what) -- luacheck: no self
  return broker.turn_until(fn, (seconds or 10) * M.late, what)
end

-- Until so many trace lines of that event are there.
function Harness:wait_for(event, count, seconds)
  self:wait(function()
    for worker in pairs(self.workers) do
      if worker.child and not worker.child:alive() then
        error("the worker died: " .. worker.child:stderr():sub(-2000), 0)
      end
    end
    return self.trace:count(event) >= count
  end, seconds, function() return ("%d traces %q, there are %d"):format(count, event, self.trace:count(event)) end)
end

-- Until the channel is empty: everything in it was settled.
function Harness:wait_settled(channel, seconds)
  self:wait(function() return self:is_empty(channel) end, seconds, "channel " .. (channel or "in") .. " to be empty")
end

-- Until the broker knows what handlers have begun, so that a crash counts.
function Harness:noted() if self.driver.notes then self:stay(self.driver.notes) end end

-- Until the worker gets whatever is published from now on.
function Harness:ready()
  if not self.driver.ready then return self:stay(0.3) end
  self:wait(function() return self.driver.ready(self) end, 20, "the worker to be ready")
end

-- Turns the loop for so long, for cases that show that something does not happen.
function Harness:stay(seconds) -- luacheck: no self
  local deadline = clock.now() + seconds
  while clock.now() < deadline do core.step(5) end
end

function Harness:close()
  for worker in pairs(self.workers) do worker:kill() end
  self.workers = {}
  if self.driver.close then self.driver.close(self) end
end

--- M.new for a describe whose scenes are closed after each of its specs; it is given busted's after_each.
function M.closing(after_each)
  local open = {}
  after_each(function()
    for _, h in ipairs(open) do h:close() end
    open = {}
  end)
  return function(driver, case)
    local h = M.new(driver, case)
    open[#open + 1] = h
    return h
  end
end

return M
