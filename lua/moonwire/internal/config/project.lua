--- Reads a project: `.env`, `moonwire.lua`, the handlers it names and their schemas. Everything that can be checked
--- without a broker is checked here;
--- all problems are collected, so that one look shows them all.
local C = require "moonwire.internal.cdef"
local address = require "moonwire.internal.config.address"
local channels = require "moonwire.internal.config.channels"
local env = require "moonwire.internal.config.env"
local exchange = require "moonwire.internal.config.exchange"
local fields = require "moonwire.internal.config.fields"
local ffi = require "ffi"
local handler = require "moonwire.internal.config.handler"
local nearest = require "moonwire.internal.nearest"
local policy = require "moonwire.internal.config.policy"
local sealed = require "moonwire.internal.sealed"
local sandbox = require "moonwire.internal.config.sandbox"
local token = require "moonwire.internal.token"
local topology = require "moonwire.internal.config.topology"
local wait = require "moonwire.internal.wait"

local M = {}

local ORDERS = { none = 0, key = 1, source = 2 }
-- as in core/driver.h
local CAN_DEDUPE = 16
local START_TIME, START_OFFSET = 1, 2
local ON_DEAD = { continue = 0, hold_key = 1, dead_key = 2 }

local PIPELINE = {
  from = { kind = "any", required = 'name the channel it reads, such as broker:channel "orders"' },
  handler = { kind = "any", required = 'name the module, such as "handlers.orders"' },
  options = { kind = "table" },
  order = { kind = "choice", of = { "key", "source", "none" }, default = "key" },
  key = { kind = "any" },
  concurrency = { kind = "integer", min = 1, max = 100000, default = 64 },
  timeout = { kind = "seconds", min = 0.001, default = 30 },
  retry = { kind = "table" },
  dead = { kind = "any" },
  on_dead = { kind = "choice", of = { "continue", "hold_key", "dead_key" }, default = "continue" },
  dedupe = { kind = "any" },
  group = { kind = "name" },
  start = { kind = "any", default = "oldest" },
  buffer = { kind = "table" },
  batch = { kind = "table" },
  lease = { kind = "seconds", min = 1, default = 30 },
  exactly_once = { kind = "boolean", default = false },
}
local BUFFER = {
  count = { kind = "integer", min = 1, max = 10000000 },
  bytes = { kind = "integer", min = 1024, max = 2 ^ 40, default = 64 * 1024 * 1024 },
}
local BATCH = {
  size = { kind = "integer", min = 1, max = 100000, default = 100 },
  wait = { kind = "seconds", default = 0.05 },
}
local START = {
  time = { kind = "number", min = 0, max = 1e11 },
  offset = { kind = "integer", min = 0, max = 2 ^ 47 },
}
local DEDUPE = {
  ttl = { kind = "seconds", min = 0.001, default = 600 },
  key = { kind = "any" },
  store = { kind = "any" },
}
local SETTINGS = {
  drain = { kind = "seconds", default = 25 },
  workers = { kind = "integer", min = 1, max = 256 },
  crash_attempts = { kind = "integer", min = 1, max = 1000, default = 3 },
  watchdog = { kind = "boolean", default = true },
  memory = { kind = "bytes", min = 16 * 1024 * 1024, default = "1GB" },
  gate = { kind = "choice", of = { "none", "spec" }, default = "none" },
  gate_limit = { kind = "seconds", min = 0.1, default = 60 },
}

--- Where in the project the caller's caller stands.
local function position(self, what)
  for level = 3, 8 do
    local info = debug.getinfo(level, "Sl")
    if not info then break end
    local file = info.source:match "^@(.*)"
    if file and self.sandbox.files[file] then
      return { file = file, line = info.currentline, source = self.sandbox.files[file], what = what }
    end
  end
  return { file = "moonwire.lua", line = 1, what = what }
end

-- ---- connections and channels ----

local Connection, Channel = {}, {}
Connection.__index, Channel.__index = Connection, Channel

-- A misspelt method is nil otherwise, and calling it says nothing about the right one.
setmetatable(Connection, { __index = function(_, name)
  local near = type(name) == "string" and nearest(name, { "channel", "exchange", "topology" })
  if near then error(("a connection has no %q; did you mean %q?"):format(name, near), 2) end
end })

---@class moonwire.Channel
---@field name string
function Channel:link_of() return self.connection.link end

---@class moonwire.Connection

--- A named place on this connection: a queue, stream or topic, by its name as it is.
---@param name string
---@param options table|nil see config/channels.lua
---@return moonwire.Channel
function Connection:channel(name, options)
  if type(name) ~= "string" or name == "" then error("channel: the name must be a string that is not empty", 2) end
  if not fields.is_name(name) then
    error("channel: the name must have at most 249 bytes and no control characters", 2)
  end
  local project = self.project
  local channel = setmetatable({ name = name, connection = self }, Channel)
  if options ~= nil then
    if type(options) ~= "table" then error("channel: the options must be a table", 2) end
    channels.declare(project, channel, options, position(project, ("channel %q"):format(name)))
  end
  return channel
end

--- An exchange of RabbitMQ, to publish to: `mw.publish(orders, body, { routing_key = "order.new" })`.
---@param name string
---@param options table|nil mandatory = false: a message that no queue takes is no error
---@return moonwire.Exchange
function Connection:exchange(name, options) return exchange.new(self, name, options) end

--- What must exist at the broker: `moonwire topology plan | apply` compares and makes it.
---@param given table see config/topology.lua
function Connection:topology(given)
  if type(given) ~= "table" then error("topology: expected a table, such as { topics = { … } }", 2) end
  topology.declare(self.project, self, given, position(self.project, "topology"))
end

--- For specs: every broker of the project becomes one of its own, named after `prefix` and its place.
local function rewriter(prefix)
  local known, count = {}, 0
  return function(url)
    if not known[url] then
      count = count + 1
      known[url] = count == 1 and prefix or ("%s.%d"):format(prefix, count)
    end
    return known[url]
  end
end

--- A table of options is the same as options in the URL, without the escapes.
local function with_options(url, options)
  local names = {}
  for name, value in pairs(options) do
    local kind = type(value)
    local plain = kind == "string" or kind == "number" or kind == "boolean"
    if type(name) ~= "string" or not plain and not (name == "token" and kind == "function") then
      error("mw.connect: options are names and texts, numbers or booleans; " .. tostring(name) .. " is not", 4)
    end
    names[#names + 1] = name
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local value = options[name]
    local text = type(value) == "number" and ("%.14g"):format(value) or tostring(value)
    if type(value) == "function" then text = "function" end -- it stays here; the driver knows that there is one
    text = text:gsub("[^%w._~/:,-]", function(c) return ("%%%02X"):format(c:byte()) end)
    url = url .. (url:find("?", 1, true) and "&" or "?") .. name .. "=" .. text
  end
  return url
end

--- The link to a broker, and its URL; nil: `failure` says why not. In specs it is a memory broker that stands for the
--- one that was given, and refuses what that one would.
local function link_to(self, given, failure)
  local url = self.rewrite and self.rewritten(given) or given
  local link = C.mw_vm_link(wait.vm, address.resolve(url, self.dir), failure)
  if link ~= nil and self.rewrite then C.mw_vm_link_stand_for(link, given:match "^([%w+.-]+):" or "") end
  return link, url
end

--- Called as the tail of mw.connect, so that level 2 is the line of the user.
local function connect(self, url, options)
  if type(url) ~= "string" then error("mw.connect: expected a broker URL, such as embedded:data", 3) end
  if options ~= nil and type(options) ~= "table" then error("mw.connect: the options must be a table", 3) end
  local token_of = options and type(options.token) == "function" and options.token or nil
  if options then url = with_options(url, options) end
  if not token_of and token.named(url) then
    error("mw.connect: option token must be a function: mw.connect(url, { token = function() … end })", 3)
  end
  local failure = ffi.new "mw_failure"
  local link, used = link_to(self, url, failure)
  if link == nil then error("mw.connect: " .. ffi.string(failure.text), 3) end
  local connection = setmetatable({ url = used, given = url, link = link, project = self, token = token_of },
    Connection)
  self.connections[#self.connections + 1] = connection
  return connection
end

local function is_channel(value) return getmetatable(value) == Channel end

-- ---- pipelines ----

local function declare(self, name, settings)
  local what = ("pipeline %q"):format(tostring(name))
  if type(name) ~= "string" or not name:match "^[%w_%-%.]+$" or #name > 100 then
    error(("mw.pipeline: %q is not a name: letters, digits, _ - . and at most 100 of them"):format(tostring(name)), 3)
  end
  if type(settings) ~= "table" then error(('mw.pipeline: write mw.pipeline "%s" { … }'):format(name), 3) end
  if self.by_name[name] then error(("mw.pipeline: there are two pipelines named %q"):format(name), 3) end
  local where = position(self, what)
  self.by_name[name] = true
  self.pipelines[#self.pipelines + 1] = { name = name, given = settings, where = where }
end

local function complain(self, p, field, text)
  local line = fields.line_of(p.where.source, p.where.line, field)
  self.problems[#self.problems + 1] = ("%s:%d: %s: %s"):format(p.where.file, line, p.where.what, text)
end

local function channel_or_name(self, p, field, value, from)
  if is_channel(value) then return value end
  if type(value) == "string" and from and not fields.is_name(value) then
    local text = "%s must name a channel with 1 to 249 bytes and no control characters, got %q"
    complain(self, p, field, text:format(field, value))
    return nil
  end
  if type(value) == "string" and from then
    return setmetatable({ name = value, connection = from.connection }, Channel)
  end
  local text = "%s must be a channel, such as broker:channel \"orders\", got a %s"
  complain(self, p, field, text:format(field, type(value)))
  return nil
end

local function dedupe_of(self, p, settings, from)
  if settings == nil or settings == false then return nil end
  if settings == true then settings = {} end
  if type(settings) ~= "table" then
    complain(self, p, "dedupe", "dedupe must be true or a table such as { ttl = 600 }")
    return nil
  end
  local d = fields.check(settings, DEDUPE, p.where, self.problems, "dedupe")
  if d.key ~= nil and not fields.is_path(d.key) and type(d.key) ~= "function" then
    complain(self, p, "dedupe",
      "dedupe.key must be a path into the data, such as \"order.id\", or a function of the message")
  end
  local store = d.store
  if store == nil then
    d.link = from.connection.link
    if bit.band(C.mw_vm_link_can(d.link), CAN_DEDUPE) == 0 then store = "memory" end
  end
  if store == "memory" then store = "memory:moonwire-dedupe" end
  if type(store) == "string" then
    local failure = ffi.new "mw_failure"
    d.link = link_to(self, store, failure)
    if d.link == nil then complain(self, p, "store", "dedupe.store: " .. ffi.string(failure.text)) return nil end
  elseif getmetatable(store) == Connection then
    d.link = store.link
  elseif store ~= nil then
    complain(self, p, "store", 'dedupe.store must be "memory", a broker URL or a connection')
  end
  return d
end

local function lane_key(self, p, key)
  if key == nil then return nil end
  if type(key) == "function" then return key end
  if fields.is_path(key) then return function(msg) return (msg:get(key)) end end
  complain(self, p, "key", "key must be a path into the data, such as \"customer.id\", or a function of the message")
  return nil
end

--- "oldest", "newest", { time = seconds since 1970 } or { offset = number }
local function check_start(self, p, start)
  if start == "oldest" or start == "newest" then return end
  if type(start) == "table" then
    local before = #self.problems
    local s = fields.check(start, START, p.where, self.problems, "start")
    if (s.time == nil) == (s.offset == nil) and #self.problems == before then
      complain(self, p, "start", "start takes either time or offset")
    end
    return
  end
  local near = type(start) == "string" and nearest(start, { "oldest", "newest" })
  complain(self, p, "start", ('start must be one of "oldest", "newest", { time = seconds } or { offset = n }, got %s%s')
    :format(type(start) == "string" and ("%q"):format(start) or "a " .. type(start),
      near and ("; did you mean %q?"):format(near) or ""))
end

--- The ready-made handler `forward`, back to where the message came from: it would go round for ever.
local function check_forward(self, p, s, from)
  local to = s.handler == "forward" and type(s.options) == "table" and s.options.to
  for _, target in ipairs(type(to) == "table" and not is_channel(to) and to or { to }) do
    local name = is_channel(target) and target.connection.link == from.connection.link and target.name or target
    if name == from.name then
      complain(self, p, "options", ("forward would send each message back to %q, which it comes from"):format(name))
    end
  end
end

--- Everything about one pipeline, checked; nil when it cannot be built.
local function settle_pipeline(self, p)
  local s = fields.check(p.given, PIPELINE, p.where, self.problems)
  if s.from == nil or s.handler == nil then return end
  local from = channel_or_name(self, p, "from", s.from)
  local dead
  if s.dead == false then
    complain(self, p, "dead",
      "dead = false would lose messages: leave it out, and they go to the channel's name + \".dead\"")
  elseif s.dead ~= nil then
    dead = channel_or_name(self, p, "dead", s.dead, from)
  elseif from then
    dead = setmetatable({ name = from.name .. ".dead", connection = from.connection }, Channel)
  end
  local loaded, err = handler.load(self, s.handler, s.options)
  if not loaded then complain(self, p, "handler", err) end
  local fill_policies = policy.prepare(s.retry, p.where, self.problems, self.rewrite ~= nil)
  local buffer = fields.check(s.buffer or {}, BUFFER, p.where, self.problems, "buffer")
  local batch = fields.check(s.batch or {}, BATCH, p.where, self.problems, "batch")
  local key = lane_key(self, p, s.key)
  check_start(self, p, s.start)
  if key and s.order ~= "key" then complain(self, p, "key", 'key needs order = "key"') end
  if s.batch and loaded and not loaded.handle_batch then
    complain(self, p, "batch", "batch needs a handler with handle_batch(messages)")
  end
  if from then check_forward(self, p, s, from) end
  if not (from and dead and loaded) then return end
  if from.name == dead.name and from.connection == dead.connection then
    complain(self, p, "dead", "dead letters would go back into the channel they came from")
    return
  end
  p.from, p.dead, p.loaded, p.key, p.settings, p.rewrite = from, dead, loaded, key, s, self.rewrite
  p.dedupe = dedupe_of(self, p, s.dedupe, from)
  if #self.problems > 0 then return end -- a setting that was refused has no value to go on with
  p.batch_size = loaded.handle_batch and batch.size or 1
  p.batch_wait = batch.wait
  p.buffer_bytes, p.fill_policies = buffer.bytes, fill_policies
  p.buffer_count = buffer.count or math.max(1024, 4 * s.concurrency, 2 * p.batch_size)
  return true
end

local function spec_of(p)
  local s, spec = p.settings, ffi.new "mw_pipeline_spec"
  local keep = { p.name, p.from.name, s.group or p.name, p.dead.name }
  spec.name, spec.channel, spec.group, spec.dead_channel = keep[1], keep[2], keep[3], keep[4]
  spec.from, spec.dead = p.from:link_of(), p.dead:link_of()
  if p.dedupe then
    spec.dedupe, spec.dedupe_ttl_ms = p.dedupe.link, math.floor(p.dedupe.ttl * 1000)
  end
  spec.order, spec.own_key = ORDERS[s.order], p.key ~= nil
  spec.from_start = s.start ~= "newest"
  spec.exactly_once = s.exactly_once
  if type(s.start) == "table" then
    spec.start_kind = s.start.time and START_TIME or START_OFFSET
    spec.start_at = s.start.time and math.floor(s.start.time * 1000) or s.start.offset
  end
  spec.concurrency, spec.buffer_count, spec.buffer_bytes = s.concurrency, p.buffer_count, p.buffer_bytes
  spec.timeout_ms, spec.lease_ms = math.floor(s.timeout * 1000), math.floor(s.lease * 1000)
  spec.on_dead = ON_DEAD[s.on_dead]
  spec.batch_size, spec.batch_wait_ms = p.batch_size, math.floor(p.batch_wait * 1000)
  p.fill_policies(spec)
  return spec, keep
end

local function check_spec(self, p)
  local failure = ffi.new "mw_failure"
  local spec, keep = spec_of(p)
  p.spec, p.keep = spec, keep -- the texts must live as long as the struct that points at them
  if C.mw_vm_pipeline_check(spec, failure) ~= 0 then complain(self, p, "name", ffi.string(failure.text)) end
end

-- ---- reading ----

local function read_env(self)
  local text, err, missing = self.sandbox.read ".env"
  local values = missing and {}
  if text then values, err = env.parse(text, ".env") end
  if not values then self.problems[#self.problems + 1] = err end
  return values or {}
end

local function api(self)
  local mw = require "moonwire"
  mw.env, self.settings_seen = env.reader(read_env(self), self.overrides)
  -- What is declared later belongs to nothing: a connection would never be opened, a pipeline never run.
  local function only_while_read(what)
    if self.sandbox.reading then return end
    error(what .. ": only while the project is read: do it in moonwire.lua, and use the result in the handler", 3)
  end
  mw.connect = function(url, options)
    only_while_read "mw.connect"
    local connection = connect(self, url, options) -- no tail call: errors name the caller's line
    return connection
  end
  mw.pipeline = function(name)
    only_while_read "mw.pipeline"
    if type(name) ~= "string" then
      error(('mw.pipeline: the name comes first: mw.pipeline "orders" { … }, got a %s'):format(type(name)), 2)
    end
    local begun = { name = name, where = position(self, "mw.pipeline") }
    self.begun[begun] = true
    return function(settings)
      self.begun[begun] = nil
      declare(self, name, settings)
    end
  end
  mw.settings = function(settings)
    only_while_read "mw.settings"
    if type(settings) ~= "table" then error("mw.settings: expected a table", 2) end
    self.settings = fields.check(settings, SETTINGS, position(self, "settings"), self.problems)
    C.mw_vm_read_memory(wait.vm, fields.bytes(self.settings.memory)) -- it holds for the rest of the file too
  end
  return sealed.library(mw)
end

local function run_main(self)
  local chunk, err = self.sandbox.load_file "moonwire.lua"
  if not chunk then
    local _, _, missing = self.sandbox.read "moonwire.lua"
    if missing then
      err = ("%s: there is no moonwire.lua; `moonwire new` makes a project"):format(self.dir)
    end
    self.problems[#self.problems + 1] = err
    return
  end
  local ok, why = pcall(chunk)
  if not ok then self.problems[#self.problems + 1] = sandbox.raised(why, "moonwire.lua") end
  for begun in pairs(ok and self.begun or {}) do -- mw.pipeline "name", and nothing behind it
    self.problems[#self.problems + 1] = ("%s:%d: mw.pipeline: write mw.pipeline %q { … }"):format(begun.where.file,
      begun.where.line, tostring(begun.name))
  end
end

--- Reads and checks a project.
---@param dir string
---@param options { rewrite: string|nil, overrides: table<string, string>|nil, files: table|nil }|nil
---@return table project its `problems` say what is wrong with it
function M.read(dir, options)
  options = options or {}
  local self = {
    dir = dir, rewrite = options.rewrite, overrides = options.overrides, problems = {}, connections = {},
    pipelines = {}, begun = {}, by_name = {}, declared = {}, topologies = {},
    settings = { drain = 25, crash_attempts = 3, watchdog = true, memory = "1GB", gate = "none", gate_limit = 60 },
    rewritten = options.rewrite and rewriter(options.rewrite),
  }
  local mw
  self.sandbox = sandbox.new(dir, function(name)
    if name == "moonwire" then return mw end
    local private = name:match "^moonwire%.internal" or name:match "^moonwire%.cli" or name:match "%.core$"
    if name:match "^moonwire%." and not private then
      local ok, module = pcall(require, name)
      if ok and type(module) == "table" then return sealed.seal(name, module) end
      return ok and module or nil
    end
  end, options.files)
  mw = api(self)
  self.sandbox.reading = true
  run_main(self)
  if #self.problems == 0 and #self.pipelines == 0 then
    self.problems[1] = 'moonwire.lua: declares no pipeline: write mw.pipeline "name" { from = …, handler = … }'
  end
  for _, p in ipairs(self.pipelines) do
    if settle_pipeline(self, p) and #self.problems == 0 then check_spec(self, p) end
  end
  self.sandbox.reading = false
  return self
end

return M
