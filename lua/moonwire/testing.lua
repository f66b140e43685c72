--- For specs: runs a project in the real core, on memory brokers of its own. See docs/testing.md.
---
---   local testing = require "moonwire.testing"
---   local app = testing.start()
---   app:publish("orders", { id = 7 }, { key = "7" })
---   app:settle()
---   assert.equal(1, app:handled "orders")
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local ffi = require "ffi"
local json = require "moonwire.json"
local message = require "moonwire.internal.message"
local nearest = require "moonwire.internal.nearest"
local project = require "moonwire.internal.project"
local publish = require "moonwire.internal.publish"
local runtime = require "moonwire.internal.runtime"
local wait = require "moonwire.internal.wait"

local M = {}

local LIMIT = 10 -- seconds for everything that waits
local LEVELS = { debug = 0, info = 1, warn = 2, error = 3, silent = 4 }
local FAULTS = { "fail_publish", "fail_settle", "lose_ack", "duplicate", "reorder", "delay_ms" }

---@class moonwire.TestApp
local App = {}
App.__index = App

local function now() return C.mw_vm_mono(wait.vm) end

--- Turns the loop until fn() is true. `what` is a text, or a function that makes one.
local function turn_until(fn, seconds, what, level)
  core.step(0)
  local deadline = now() + seconds
  while true do
    local value = fn()
    if value then return value end
    if now() >= deadline then
      error(("waited %g s for %s"):format(seconds, type(what) == "function" and what() or what), level + 1)
    end
    core.step(5)
  end
end

--- Runs fn in a task of this state, so that it may wait; returns what it returns.
local function await(fn, what, level)
  local result, failed, over
  runtime.spawn(function() result = fn() end, nil, function(err) failed, over = err, true end)
  turn_until(function() return over end, LIMIT, what, level + 1)
  if failed then error(tostring(failed), level + 1) end
  return result
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

local OPTIONS = { dir = "string", env = "table", log = "string" }

local function check_options(options)
  for name, value in pairs(options) do
    local expected = OPTIONS[name]
    if not expected then
      local near = nearest(tostring(name), { "dir", "env", "log" })
      error(("testing.start: unknown option %q%s"):format(tostring(name),
        near and ("; did you mean %q?"):format(near) or "; it takes dir, env and log"), 3)
    elseif type(value) ~= expected then
      error(("testing.start: %s must be a %s, got a %s"):format(name, expected, type(value)), 3)
    end
  end
  if options.log and not LEVELS[options.log] then
    error("testing.start: log must be debug, info, warn, error or silent", 3)
  end
end

--- The app reads the project in a state of its own; this one reads it too, to know which channel is on which
--- connection.
local function look(self, level)
  local read = project.read(self.dir, { rewrite = self.rewrite, overrides = self.env })
  if #read.problems > 0 then error(("%s:\n%s"):format(self.dir, table.concat(read.problems, "\n")), level + 1) end
  self.places, self.readers, self.links, self.pipelines = {}, {}, {}, {}
  local failure = ffi.new "mw_failure"
  for _, connection in ipairs(read.connections) do
    if C.mw_vm_link_open(connection.link, failure) ~= 0 then error(ffi.string(failure.text), level + 1) end
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
  local options = { dir = self.dir, rewrite = self.rewrite }
  for name, value in pairs(self.env) do options["env." .. name] = tostring(value) end
  local app = core.app()
  local ok, err = app:load(options)
  if ok then ok, err = app:start() end
  if not ok then
    app:close()
    error(("%s:\n%s"):format(self.dir, err), level + 1)
  end
  self.app = app
end

local started = 0

--- Starts a project. Every connection of it becomes a memory broker that belongs to this call alone.
---@param options { dir: string|nil, env: table<string, string>|nil, log: string|nil }|nil
---  dir: the project's folder (default: the one above the spec); env: settings for mw.env, over .env and environment;
---  log: the least level that is logged (default: silent)
---@return moonwire.TestApp
function M.start(options)
  options = options or {}
  if type(options) ~= "table" then error("testing.start: expected a table of options", 2) end
  check_options(options)
  started = started + 1
  C.mw_log_setup(0, LEVELS[options.log or os.getenv "MOONWIRE_TEST_LOG" or "silent"] or LEVELS.silent)
  local self = setmetatable({
    dir = options.dir or project_above(), env = {}, rewrite = ("memory:moonwire-test-%d"):format(started),
  }, App)
  for name, value in pairs(options.env or {}) do self.env[name] = tostring(value) end
  look(self, 2)
  load(self, 2)
  return self
end

local function running(self)
  if not self.app then error("the app is stopped", 3) end
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

--- Publishes a message; the broker has it when this returns. Body and options are those of mw.publish.
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
  await(function()
    local ok, why = publish.now(link, channel, made, rest.delay)
    if not ok then error(why, 0) end
  end, "the confirm of a publish to " .. channel, 2)
end

---@class moonwire.TestMessage a message that stands in a channel
---@field id string
---@field body string
---@field data any the body, decoded
---@field key string|nil
---@field headers table<string, string>
---@field type string
---@field priority integer
---@field time number
---@field due number|nil when a delayed one is due, seconds since 1970

local View = {}
function View.__index(self, name)
  if name ~= "data" then return nil end
  local value, err = json.decode(self.body)
  if err then error("the body is not JSON: " .. err, 2) end
  return value
end

local FIELDS = { "id", "body", "key", "headers", "time", "type", "priority" }

local function view(record, due_ms)
  local wrapped = message.wrap(record, 1, {})
  local copy = { due = due_ms > 0 and due_ms / 1000 or nil }
  for _, name in ipairs(FIELDS) do copy[name] = wrapped[name] end
  message.seal(wrapped)
  return setmetatable(copy, View)
end

local function browse(link, channel)
  local list, after = {}, 0
  local position, due = ffi.new "double[1]", ffi.new "double[1]"
  while true do
    local waiter = wait.begin()
    C.mw_vm_browse(wait.vm, link, channel, after, 1000, false, waiter)
    local _, object, err = wait.yield(waiter, function() end)
    if err then error(err, 0) end
    local found = ffi.cast("struct mw_browsing *", object)
    local count = C.mw_browsing_count(found)
    for i = 0, count - 1 do
      local record = C.mw_browsing_entry(found, i, position, due)
      list[#list + 1] = view(record, due[0])
    end
    after = C.mw_browsing_last(found)
    C.mw_browsing_free(found)
    if count == 0 then return list end
  end
end

--- What stands in a channel now, oldest first, without taking it.
---@param channel string
---@param on string|nil the URL of the connection, when the first one that has such a channel is not meant
---@return moonwire.TestMessage[]
function App:messages(channel, on)
  running(self)
  local link = link_for(self, channel, on, 2)
  return await(function() return browse(link, channel) end, "a look into " .. tostring(channel), 2)
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
  return await(function() return browse(pipeline.dead_link, pipeline.dead) end, "a look into " .. pipeline.dead, 2)
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

local function busy_text(self)
  local parts = {}
  for _, s in ipairs(self.app:status()) do
    local waiting = #self:messages(s.channel)
    if s.in_flight > 0 or waiting > 0 then
      parts[#parts + 1] = ("%s: %d running, %d in flight, %d in its channel"):format(s.name, s.running, s.in_flight,
        waiting)
    end
  end
  return "everything to be settled; left are " .. (#parts > 0 and table.concat(parts, "; ") or "messages under way")
end

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

--- Runs until nothing is left to do: retries and delays included. An error when that takes longer.
---@param seconds number|nil 10
function App:settle(seconds)
  local app = running(self)
  local quiet, held = 0, 0
  turn_until(function()
    quiet = app:idle() and quiet + 1 or 0
    held = quiet == 0 and only_held(self) and held + 1 or 0
    return quiet >= 3 or held >= 5 -- what one pipeline published may be on its way to the next
  end, seconds or LIMIT, function() return busy_text(self) end, 2)
end

--- Runs until fn() is true, and returns what it returned.
---@param fn fun(): any
---@param seconds number|nil 10
---@param what string|nil for the error
function App:wait(fn, seconds, what)
  running(self)
  return turn_until(fn, seconds or LIMIT, what or "a condition", 2)
end

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

--- The broker takes back what is being handled, as when a connection is lost: late verdicts are discarded.
function App:cut()
  running(self)
  for _, entry in ipairs(self.links) do
    local name = entry.url:match "^memory:(.*)$"
    if name then C.mw_memory_cut(name) end
  end
end

--- Ends the worker as a crash would, and starts it again on the same brokers. Counters begin at 0.
function App:crash()
  running(self):kill()
  self.app = nil
  load(self, 2)
end

--- Ends the app: handlers that still run may finish within a second.
function App:stop()
  local app = self.app
  if not app then return end
  self.app = nil
  app:drain()
  local deadline = now() + 1
  repeat core.step(5) until app:done() or now() >= deadline
  app:close()
end

return M
