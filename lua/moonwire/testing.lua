--- For specs: runs a project in the real core, on memory brokers of its own. See docs/testing.md.
---
---   local testing = require "moonwire.testing"
---   local app = testing.start()
---   app:publish("orders", { id = 7 }, { key = "7" })
---   app:settle()
---   assert.equal(1, app:handled "orders")
---
--- Apps run on the virtual clock: hours of backoff pass in milliseconds. `testing.start { clock = "real" }` does not.
local C = require "moonwire.internal.cdef"
local assertions = require "moonwire.testing.assertions"
local browse = require "moonwire.testing.channel"
local core = require "moonwire.core"
local failing = require "moonwire.testing.failing"
local fakes = require "moonwire.testing.fakes"
local files = require "moonwire.internal.config.files"
local ffi = require "ffi"
local nearest = require "moonwire.internal.nearest"
local project = require "moonwire.internal.config.project"
local publish = require "moonwire.internal.api.publish"
local records = require "moonwire.testing.records"
local redis = require "moonwire.testing.redis"
local turn = require "moonwire.testing.turn"
local wait = require "moonwire.internal.wait"

local M = {}

local LEVELS = { debug = 0, info = 1, warn = 2, error = 3, silent = 4 }
local FAULTS = { "fail_publish", "fail_settle", "lose_ack", "hold_ack", "duplicate", "reorder", "delay_ms" }

---@class moonwire.TestApp
local App = {}
App.__index = App

local apps = setmetatable({}, { __mode = "k" }) -- those that run: they share the loop, and so its clock

local function limit_of(self) return self.clock == "real" and turn.REAL_LIMIT or turn.VIRTUAL_LIMIT end

local function await(self, fn, what, level) return turn.await(fn, self.clock, what, level + 1) end

--- Between two steps of the loop: the project's requests are answered, its log lines taken over.
turn.after_step = function()
  for self in pairs(apps) do
    local problem = self.fake and fakes.serve(self.fake) or self.redis_fake and redis.serve(self.redis_fake)
    if problem then
      self.problem = problem
      error(problem, 0)
    end
  end
  records.take(apps)
end

-- ---- starting ----

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

--- The project that a spec belongs to: the nearest folder above it with a moonwire.lua.
local function project_above()
  for level = 3, 30 do
    local info = debug.getinfo(level, "S")
    if not info then break end
    local dir = info.source:match "^@(.*)/[^/]*_spec%.lua$"
    while dir do
      if exists(dir .. "/moonwire.lua") then return dir end
      dir = dir:match "^(.+)/[^/]*$"
    end
  end
  if exists "moonwire.lua" then return "." end
  error("testing.start: no moonwire.lua in the folders above the spec; name one: testing.start { dir = … }", 3)
end

local OPTIONS = { dir = "string", env = "table", log = "string", clock = "string", now = "number" }

local function check_options(options)
  for name, value in pairs(options) do
    local expected = OPTIONS[name]
    if not expected then
      local near = nearest(tostring(name), { "dir", "env", "log", "clock", "now" })
      error(("testing.start: unknown option %q%s"):format(tostring(name),
        near and ("; did you mean %q?"):format(near) or "; it takes dir, env, log, clock and now"), 3)
    elseif type(value) ~= expected then
      error(("testing.start: %s must be a %s, got a %s"):format(name, expected, type(value)), 3)
    end
  end
  if options.log and not LEVELS[options.log] then
    error("testing.start: log must be debug, info, warn, error or silent", 3)
  end
  local clock = options.clock or "virtual"
  if clock ~= "virtual" and clock ~= "real" then error("testing.start: clock must be virtual or real", 3) end
  if clock == "real" and options.now then error("testing.start: now needs the virtual clock", 3) end
  for other in pairs(apps) do
    if other.clock ~= clock then
      error(("testing.start: an app still runs on the %s clock: stop it first"):format(other.clock), 3)
    end
  end
end

--- The app reads the project in a state of its own; this one reads it too, to know which channel is on which
--- connection.
local function look(self, level)
  local given = files.given_for(self.dir)
  local read = project.read(self.dir, { rewrite = self.rewrite, overrides = self.env,
    files = given and files.unpack(given) })
  if #read.problems > 0 then error(("%s:\n%s"):format(self.dir, table.concat(read.problems, "\n")), level) end
  self.places, self.readers, self.links, self.pipelines = {}, {}, {}, {}
  local failure = ffi.new "mw_failure"
  for _, connection in ipairs(read.connections) do
    if C.mw_vm_link_open(connection.link, failure) ~= 0 then error(ffi.string(failure.text), level) end
    self.links[#self.links + 1] = { link = connection.link, url = connection.url, given = connection.given }
  end
  for _, p in ipairs(read.pipelines) do
    local channel = p.from.name
    self.pipelines[p.name] = { channel = channel, dead = p.dead.name, dead_link = p.dead:link_of() }
    self.places[channel] = self.places[channel] or p.from:link_of()
    self.readers[channel] = self.readers[channel] or p.name
  end
  for _, p in ipairs(read.pipelines) do
    self.places[p.dead.name] = self.places[p.dead.name] or p.dead:link_of()
  end
end

local function load(self, level)
  local options = { dir = self.dir, rewrite = self.rewrite, files = files.given_for(self.dir) }
  for name, value in pairs(self.env) do options["env." .. name] = tostring(value) end
  local app = core.app()
  local ok, err = app:load(options)
  if ok then ok, err = app:start() end
  if not ok then
    app:close()
    error(("%s:\n%s"):format(self.dir, err), level)
  end
  self.app = app
end

local started = 0

local function leave(self)
  apps[self] = nil
  if self.fake then C.mw_http_fake(false) end
  if self.redis_fake then C.mw_redis_fake(false) end
  if next(apps) then return end
  records.finish()
  C.mw_vm_virtual(wait.vm, false)
end

--- Starts a project. Every connection of it becomes a memory broker that belongs to this call alone.
---@param options moonwire.TestOptions|nil
---  dir: the project's folder (default: the one above the spec); env: settings for mw.env, over .env and environment;
---  log: the least level that is logged (default: silent); clock: virtual (default) or real; now: the time it begins
---  at, seconds since 1970
---@return moonwire.TestApp
function M.start(options)
  options = options or {}
  if type(options) ~= "table" then error("testing.start: expected a table of options", 2) end
  check_options(options)
  started = started + 1
  C.mw_log_setup(0, LEVELS[options.log or os.getenv "MOONWIRE_TEST_LOG" or "silent"] or LEVELS.silent)
  local self = setmetatable({
    dir = options.dir or project_above(), env = {}, rewrite = ("memory:moonwire-test-%d"):format(started),
    clock = options.clock or "virtual", lines = {},
  }, App)
  for name, value in pairs(options.env or {}) do self.env[name] = tostring(value) end
  assertions.register()
  C.mw_vm_virtual(wait.vm, self.clock == "virtual")
  if options.now then C.mw_vm_set_now(wait.vm, options.now) end
  self.started = turn.now()
  records.take(apps)
  records.begin()
  apps[self] = true
  local ok, err = pcall(function()
    look(self, 0)
    load(self, 0)
  end)
  if not ok then
    leave(self)
    error(err, 2)
  end
  return self
end

local function running(self)
  if not self.app then error("the app is stopped", 3) end
  if fakes.serving then error("an answer to a request cannot run the app", 3) end
  return self.app
end

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
  running(self)
  local rest = {}
  for name, value in pairs(options or {}) do rest[name] = value end
  local link = link_for(self, channel, rest.on, 2)
  rest.on = nil
  local made, err = publish.message(body, rest)
  if not made then error("publish: " .. err, 2) end
  hold(self, true)
  local ok, why = pcall(await, self, function()
    local sent, problem = publish.now(link, channel, made, rest.delay)
    if not sent then error(problem, 0) end
  end, "the confirm of a publish to " .. channel, 0)
  hold(self, false)
  if not ok then error(why, 2) end
end

--- What stands in a channel now, oldest first, without taking it.
---@param channel string
---@param on string|nil the URL of the connection, when the first one that has such a channel is not meant
---@return moonwire.TestMessage[]
function App:messages(channel, on)
  running(self)
  local link = link_for(self, channel, on, 2)
  return await(self, function() return browse(link, channel) end, "a look into " .. tostring(channel), 2)
end

--- What was published to a channel that no pipeline of the project reads.
---@param channel string
---@param on string|nil as for messages
---@return moonwire.TestMessage[]
function App:published(channel, on)
  running(self)
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
  running(self)
  local pipeline = self.pipelines[name]
  if not pipeline then return self:messages(name) end
  local link, channel = pipeline.dead_link, pipeline.dead
  return await(self, function() return browse(link, channel) end, "a look into " .. channel, 2)
end

-- ---- state ----

local function unknown_pipeline(self, name, level)
  local names = {}
  for known in pairs(self.pipelines) do names[#names + 1] = known end
  table.sort(names)
  local near = nearest(tostring(name), names)
  error(("no pipeline %q%s"):format(tostring(name), near and ("; did you mean %q?"):format(near)
    or "; there are " .. table.concat(names, ", ")), level + 1)
end

--- The counters of a pipeline: received, handled, retried, dead, dropped, deduped, fenced, published, parked,
--- released, in_flight, running.
---@param name string
---@return table<string, number>
function App:status(name)
  for _, status in ipairs(running(self):status()) do
    if status.name == name then return status end
  end
  unknown_pipeline(self, name, 2)
end

--- How many messages of the pipeline were handled (acked by the handler).
---@param name string
---@return integer
function App:handled(name)
  running(self)
  if not self.pipelines[name] then unknown_pipeline(self, name, 2) end
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
  running(self)
  turn.run(function() return busy_text(self) end, 2)
end

--- Lets so much time pass, timer by timer: what is due runs in its order, and all that comes of it before time goes on.
---@param seconds number
function App:advance(seconds)
  running(self)
  need_virtual(self, "advance")
  if type(seconds) ~= "number" or seconds < 0 or seconds ~= seconds or seconds == math.huge then
    error("advance: expected a number of seconds", 2)
  end
  turn.advance(seconds, function() return busy_text(self) end, 2)
end

--- Runs until nothing is left to do, and lets time pass for retries and delays. An error when that takes longer.
---@param seconds number|nil on the app's clock: 30 days, or 10 s on the real one
function App:settle(seconds)
  local app = running(self)
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
  turn.until_true(settled, self.clock, seconds or limit_of(self), function() return busy_text(self) end, 2)
end

--- Runs until fn() is true, and returns what it returned. Time passes as far as that needs.
---@param fn fun(): any
---@param seconds number|nil on the app's clock: 30 days, or 10 s on the real one
---@param what string|nil for the error
function App:wait(fn, seconds, what)
  running(self)
  return turn.until_true(function() return fn() end, self.clock, seconds or limit_of(self), what or "a condition", 2)
end

--- What is left to do, as text; nil when nothing is.
---@return string|nil
function App:left()
  local app = running(self)
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
  if not self.pipelines[pipeline] then unknown_pipeline(self, pipeline, 2) end
  records.take(apps)
  return records.retries(self.lines, pipeline)
end

--- The lines that the project logged with mw.log, of every level; `all = true`: the runtime's too.
---@param options { all: boolean|nil }|nil
---@return { at: number, level: string, text: string, fields: table<string, string|number> }[]
function App:logs(options)
  local list = {}
  records.take(apps)
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
  running(self)
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
  running(self)
  self.redis_fake = answers ~= nil and redis.new(answers) or nil
  C.mw_redis_fake(self.redis_fake ~= nil)
end

--- The Redis commands that were answered, since redis was called.
---@return string[][]
function App:commands() return self.redis_fake and self.redis_fake.commands or {} end

-- ---- trouble ----

--- Makes the brokers misbehave: `fail_publish`, `fail_settle`, `lose_ack`, `duplicate` and `reorder` strike so many
--- times, `delay_ms` delays every answer while it is set.
---@param what string
---@param amount number
function App:fault(what, amount)
  running(self)
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
  running(self)
  if not self.pipelines[pipeline] then unknown_pipeline(self, pipeline, 2) end
  if count ~= nil and (type(count) ~= "number" or count < 0 or count % 1 ~= 0) then
    error("fail: expected a number of attempts", 2)
  end
  failing.plan(self.rewrite, pipeline, count or 1, class or "transient")
end

--- The broker takes back what is being handled, as when a connection is lost: late verdicts are discarded.
function App:cut()
  running(self)
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
  local app = running(self)
  if when == "before_ack" then
    self:fault("hold_ack", 1e9) -- none gets through any more
    turn.until_true(function() return ack_held(self) end, self.clock, limit_of(self), "an ack to crash before", 2)
    self:fault("hold_ack", 0)
  elseif when ~= nil and when ~= "now" then
    error("crash: expected now or before_ack", 2)
  end
  app:kill()
  self.app = nil
  load(self, 2)
end

--- Ends the app: handlers that still run may finish within a second.
function App:stop()
  if not self.app then return end
  local app = running(self)
  self.app, self.problem = nil, nil
  app:drain()
  pcall(turn.until_true, function() return app:done() end, self.clock, 1, "the end", 0)
  app:close()
  leave(self)
  if self.problem then error(self.problem, 0) end -- a request that nobody foresaw, at the very end
end

return M
