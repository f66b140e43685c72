--- A project that runs under a spec: what testing.start returns. Trouble on purpose is in testing/trouble.lua.
local C = require "moonwire.internal.cdef"
local browse = require "moonwire.testing.channel"
local fakes = require "moonwire.testing.fakes"
local life = require "moonwire.testing.life"
local publish = require "moonwire.internal.api.publish"
local records = require "moonwire.testing.records"
local redis = require "moonwire.testing.redis"
local trouble = require "moonwire.testing.trouble"
local turn = require "moonwire.testing.turn"
local wait = require "moonwire.internal.wait"

---@class moonwire.TestApp
local App = {}
App.__index = App

for name, method in pairs(trouble) do App[name] = method end

local function await(self, fn, what, level) return turn.await(fn, self.clock, what, level + 1) end

-- ---- channels ----

local function link_for(self, channel, url, level)
  if type(channel) ~= "string" or channel == "" then error("expected the name of a channel", level + 1) end
  for _, entry in ipairs(self.links) do
    if url and entry.given == url then return entry.link end
  end
  if url then error(("the project has no connection %q"):format(tostring(url)), level + 1) end
  return self.places[channel] or (self.links[1] and self.links[1].link)
    or error("the project has no connection", level + 1)
end

--- Nothing is handled while the broker takes it: a spec may still crash the app, or cut its connection, before that.
local function hold(self, held)
  for name in pairs(self.pipelines) do self.app:pause(name, held) end
end

--- Publishes a message; the broker has it when this returns, and no handler. Body and options are those of mw.publish.
---@param channel string on the connection of the first pipeline that reads it, or on the project's first one
---@param body any
---@param options table|nil key, headers, id, delay, priority, type; on: the URL of another connection of the project
function App:publish(channel, body, options)
  life.running(self)
  local rest = {}
  for name, value in pairs(options or {}) do rest[name] = value end
  local link = link_for(self, channel, rest.on, 2)
  rest.on = nil
  local problem = publish.delay_problem(link, rest.delay)
  if problem then error("publish: " .. problem, 2) end
  local made, err = publish.message(body, rest)
  if not made then error("publish: " .. err, 2) end
  hold(self, true)
  local ok, why = pcall(await, self, function()
    local sent, why = publish.now(link, channel, made, rest.delay)
    if not sent then error(why, 0) end
  end, "the confirm of a publish to " .. channel, 0)
  hold(self, false)
  if not ok then error(why, 2) end
end

--- What stands in a channel now, oldest first, without taking it.
---@param channel string
---@param on string|nil the URL of the connection, when the first one that has such a channel is not meant
---@return moonwire.TestMessage[]
function App:messages(channel, on)
  life.running(self)
  local link = link_for(self, channel, on, 2)
  return await(self, function() return browse(link, channel) end, "a look into " .. tostring(channel), 2)
end

--- What was published to a channel that no pipeline of the project reads.
---@param channel string
---@param on string|nil as for messages
---@return moonwire.TestMessage[]
function App:published(channel, on)
  life.running(self)
  local reader = not on and self.readers[channel]
  if reader then
    error(("published: channel %q is read by pipeline %q, so nothing stays in it: look at status(%q)"):format(channel,
      reader, reader), 2)
  end
  return self:messages(channel, on)
end

--- Dead letters: of a pipeline, or of a dead-letter channel.
---@param name string
---@return moonwire.TestMessage[]
function App:dead(name)
  life.running(self)
  local pipeline = self.pipelines[name]
  if not pipeline then return self:messages(name) end
  local link, channel = pipeline.dead_link, pipeline.dead
  return await(self, function() return browse(link, channel) end, "a look into " .. channel, 2)
end

-- ---- state ----

--- The counters of a pipeline: received, handled, retried, dead, dropped, deduped, fenced, published, parked,
--- released, in_flight, running.
---@param name string
---@return table<string, number>
function App:status(name)
  for _, status in ipairs(life.running(self):status()) do
    if status.name == name then return status end
  end
  life.unknown_pipeline(self, name, 2)
end

--- How many messages of the pipeline were handled (acked by the handler).
---@param name string
---@return integer
function App:handled(name)
  life.running(self)
  if not self.pipelines[name] then life.unknown_pipeline(self, name, 2) end
  return self:status(name).handled
end

local function left_text(self)
  local parts = {}
  for _, s in ipairs(self.app:status()) do
    local waiting = #self:messages(s.channel)
    if s.in_flight > 0 or waiting > 0 then
      parts[#parts + 1] = ("%s: %d running, %d in flight, %d in its channel"):format(s.name, s.running, s.in_flight,
        waiting)
    end
  end
  return #parts > 0 and table.concat(parts, "; ") or "messages under way"
end

local function busy_text(self) return "everything to be settled; left are " .. left_text(self) end

--- Messages behind a dead key stay until somebody replays it: when only those are left, nothing is left to do.
local function only_held(self)
  for _, s in ipairs(self.app:status()) do
    if s.in_flight > 0 then return false end
  end
  for channel in pairs(self.readers) do
    for _, m in ipairs(self:messages(channel)) do
      if m.due then return false end
    end
  end
  for _, s in ipairs(self.app:status()) do
    if s.in_flight > 0 then return false end
  end
  return true
end

-- ---- time ----

local function need_virtual(self, what)
  if self.clock ~= "virtual" then error(what .. ": this app runs on the real clock", 3) end
end

--- Seconds since the app was started, on its clock.
---@return number
function App:now()
  return math.floor((turn.now() - self.started) * 1000 + 0.5) / 1000
end

--- Runs what can happen without time passing.
function App:run()
  life.running(self)
  turn.run(function() return busy_text(self) end, 2)
end

--- Lets so much time pass, timer by timer: what is due runs in its order, and all that comes of it before time goes on.
---@param seconds number
function App:advance(seconds)
  life.running(self)
  need_virtual(self, "advance")
  if type(seconds) ~= "number" or seconds < 0 or seconds ~= seconds or seconds == math.huge then
    error("advance: expected a number of seconds", 2)
  end
  turn.advance(seconds, function() return busy_text(self) end, 2)
end

--- Runs until nothing is left to do, and lets time pass for retries and delays. An error when that takes longer.
---@param seconds number|nil on the app's clock: 30 days, or 10 s on the real one
function App:settle(seconds)
  local app = life.running(self)
  local quiet, held = 0, 0
  local function settled(stuck)
    if self.clock == "virtual" then
      if C.mw_vm_pending(wait.vm) and not stuck then return false end -- what was published may be on its way
      return app:idle() or stuck and only_held(self)
    end
    quiet = app:idle() and quiet + 1 or 0
    held = quiet == 0 and only_held(self) and held + 1 or 0
    return quiet >= 3 or held >= 5
  end
  turn.until_true(settled, self.clock, seconds or turn.limit_of(self.clock), function() return busy_text(self) end, 2)
end

--- Runs until fn() is true, and returns what it returned. Time passes as far as that needs.
---@param fn fun(): any
---@param seconds number|nil on the app's clock: 30 days, or 10 s on the real one
---@param what string|nil for the error
function App:wait(fn, seconds, what)
  life.running(self)
  local limit = seconds or turn.limit_of(self.clock)
  return turn.until_true(function() return fn() end, self.clock, limit, what or "a condition", 2)
end

--- What is left to do, as text; nil when nothing is.
---@return string|nil
function App:left()
  local app = life.running(self)
  turn.run(function() return busy_text(self) end, 2)
  if app:idle() or only_held(self) then return nil end
  return left_text(self)
end

-- ---- what happened ----

--- Every retry of a pipeline that was scheduled: which attempt failed, when (seconds since the start), why, and after
--- how many seconds the next one comes.
---@param pipeline string
---@return { id: string, attempt: integer, at: number, delay: number, error: string, class: string }[]
function App:retries(pipeline)
  if not self.pipelines[pipeline] then life.unknown_pipeline(self, pipeline, 2) end
  records.take(life.apps)
  return records.retries(self.lines, pipeline)
end

--- The lines that the project logged with mw.log, of every level; `all = true`: the runtime's too.
---@param options { all: boolean|nil }|nil
---@return { at: number, level: string, text: string, fields: table<string, string|number> }[]
function App:logs(options)
  local list = {}
  records.take(life.apps)
  for _, line in ipairs(self.lines) do
    if line.project or options and options.all then list[#list + 1] = line end
  end
  return list
end

-- ---- the world outside ----

--- Answers the project's HTTP requests from now on: nothing goes out. A function gets each request (method, url,
--- headers, body, data) and returns a reply; a table has replies, or such functions, by "METHOD URL" or URL, where *
--- stands for anything. A reply is { status =, headers =, body = text or table, delay = s }, a status, a body,
--- { error =, kind = }, or { timeout = true }; a list of them is used up one by one, the last one stays. A request
--- without an answer fails the test. nil: requests go out again.
---@param answers fun(request: table): any|table<string, any>|nil
function App:http(answers)
  life.running(self)
  self.fake = answers ~= nil and fakes.new(answers) or nil
  C.mw_http_fake(self.fake ~= nil)
end

--- The requests that were answered, since http was called.
---@return { method: string, url: string, headers: table<string, string>, body: string, data: any }[]
function App:requests() return self.fake and self.fake.requests or {} end

--- Answers the project's Redis commands (mw.redis) from now on: nothing goes out. A function gets each command, a list
--- of texts, and returns the answer; a table has answers, or such functions, by the command as one line ("GET user:7",
--- "INCR", where * stands for anything and what follows may be left out). An answer is a string, a number, true (OK),
--- nil (in a function), a list, { error = "WRONGTYPE …" }, { down = "why" } for a connection that fails,
--- { value =, delay = s }, or { each = { … } }, used up one by one. A command without an answer fails the test. nil:
--- commands go out again.
---@param answers fun(command: string[]): any|table<string, any>|nil
function App:redis(answers)
  life.running(self)
  self.redis_fake = answers ~= nil and redis.new(answers) or nil
  C.mw_redis_fake(self.redis_fake ~= nil)
end

--- The Redis commands that were answered, since redis was called.
---@return string[][]
function App:commands() return self.redis_fake and self.redis_fake.commands or {} end

-- ---- the end ----

--- Ends the app: handlers that still run may finish within a second.
function App:stop()
  if not self.app then return end
  local app = life.running(self)
  self.app, self.problem = nil, nil
  app:drain()
  pcall(turn.until_true, function() return app:done() end, self.clock, 1, "the end", 0)
  app:close()
  life.leave(self)
  if self.problem then error(self.problem, 0) end -- a request that nobody foresaw, at the very end
end

return App
