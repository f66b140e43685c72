--- Makes a generation: reads the project in this state, opens its connections, and ties its pipelines to their
--- handlers.
local C = require "moonwire.internal.cdef"
local fault = require "moonwire.internal.api.fault"
local fields = require "moonwire.internal.config.fields"
local files = require "moonwire.internal.config.files"
local ffi = require "ffi"
local json = require "moonwire.json"
local message = require "moonwire.internal.api.message"
local project = require "moonwire.internal.config.project"
local runtime = require "moonwire.internal.runtime"
local token = require "moonwire.internal.token"
local topology = require "moonwire.internal.config.topology"
local verdict = require "moonwire.internal.api.verdict"
local wait = require "moonwire.internal.wait"
local worker = require "moonwire.internal.worker"

string.dump = nil -- luacheck: ignore 122; reachable through any string otherwise

message.invalid = function(text) error(fault.new { class = "invalid", text = text }, 0) end

-- ---- the way of a message through router, schema and dedupe to the handler ----

local function with_schema(run, check)
  return function(msg)
    local ok, text = check(msg.data)
    if not ok then return verdict.reject("schema: " .. text, "invalid") end
    return run(msg)
  end
end

local CLAIM = { [0] = "yours", "busy", "seen" }

-- A store that is away is not the message's fault: no handler has run, so no attempt is counted.
local function claim(delivery, key)
  local task, waiter = wait.current, wait.begin "dedupe"
  C.mw_vm_claim(wait.vm, delivery, key, #key, waiter)
  task.claiming = true
  local value, _, err = wait.yield(waiter, function() end)
  task.claiming = nil
  if err then error(fault.new { class = "outage", text = "dedupe: " .. err }, 0) end
  return CLAIM[value]
end

local DUPLICATE, BUSY = { kind = "duplicate" }, { kind = "busy" }
setmetatable(DUPLICATE, getmetatable(verdict.drop "x"))
setmetatable(BUSY, getmetatable(DUPLICATE))

local function dedupe_key(key)
  if key == nil then return function(msg) return msg.id end end
  if type(key) == "function" then return key end
  return function(msg) return (msg:get(key)) end
end

local function with_dedupe(run, settings)
  local key_of = dedupe_key(settings.key)
  return function(msg)
    local key = key_of(msg)
    if key == nil or key == json.null then return run(msg) end -- messages without one are not each other's twins
    if type(key) == "table" or type(key) == "function" then -- no two of them are the same
      local text = ("dedupe: the key must be a text or a number, got a %s"):format(type(key))
      error(fault.new { class = "invalid", text = text }, 0)
    end
    local state = claim(wait.current.delivery, tostring(key))
    if state == "seen" then return DUPLICATE end
    if state == "busy" then return BUSY end
    return run(msg)
  end
end

local function failed(err)
  err = verdict.out_of_memory(err) or err
  if fault.is(err) then return verdict.retry { reason = err.text, class = err.class, after = err.after } end
  return verdict.retry { reason = fault.text(err) }
end

--- For batches: what the checks refuse never reaches handle_batch; its verdicts are put back into their places.
local function batch_with_checks(run_batch, check)
  if not check then return run_batch end
  return function(messages)
    local verdicts, good, places = {}, {}, {}
    for i, msg in ipairs(messages) do
      local ok, text = pcall(function()
        local fine, why = check(msg.data)
        if not fine then return "schema: " .. why end
      end)
      local refused = not ok and fault.text(text) or text
      if refused then
        verdicts[i] = verdict.reject(refused, "invalid")
        wait.current.verdict = nil
      else
        good[#good + 1], places[#good + 1] = msg, i
      end
    end
    if #good == 0 then return verdicts end
    local ok, a, b = pcall(run_batch, good)
    if not ok then
      a = failed(a)
    elseif a == nil and b == nil then
      a = wait.current.verdict -- made, but not returned
    elseif a == nil or a == false then
      a = failed(b or "the handler answered false")
    elseif type(a) == "table" and not verdict.is(a) then
      a, b = verdict.by_place(a, good)
      a = a or failed(b)
    end
    for k, place in ipairs(places) do
      verdicts[place] = verdict.is(a) and a or type(a) == "table" and a[k] or nil
    end
    wait.current.verdict = nil
    return verdicts
  end
end

local function build(p, rewrite)
  local failure = ffi.new "mw_failure"
  local handle = C.mw_vm_pipeline(wait.vm, p.spec, failure)
  if handle == nil then return nil, ffi.string(failure.text) end
  local built = {
    name = p.name, channel = p.from.name, handle = handle, link = p.from:link_of(), timeout = p.settings.timeout,
    batch_size = p.batch_size, key = p.key,
  }
  local loaded = p.loaded
  local run = loaded.handle_batch or loaded.handle
  if rewrite then run = require "moonwire.testing.failing".wrap(rewrite, p.name, run) end
  if loaded.handle_batch then
    built.run_batch = batch_with_checks(run, loaded.check)
  else
    if loaded.check then run = with_schema(run, loaded.check) end
    if p.dedupe then run = with_dedupe(run, p.dedupe) end
    built.run = run
  end
  worker.attach(built)
  runtime.pipelines[#runtime.pipelines + 1] = built
  return true
end

local function open(read)
  local failure = ffi.new "mw_failure"
  local function need(link) -- twice is once
    if C.mw_vm_link_open(link, failure) == 0 then return true end
    return nil, ("%s: %s"):format(ffi.string(C.mw_link_url(link)), ffi.string(failure.text))
  end
  for _, connection in ipairs(read.connections) do
    local ok, err = need(connection.link)
    if not ok then return nil, err end
  end
  for _, p in ipairs(read.pipelines) do
    local ok, err = true, nil
    if p.dedupe then ok, err = need(p.dedupe.link) end
    if not ok then return nil, err end
  end
  local function declare(link, name, list, age, count)
    local settings = ffi.new("mw_setting[?]", #list)
    for i, s in ipairs(list) do settings[i - 1].name, settings[i - 1].value = s.name, s.value end
    if C.mw_vm_declare(link, name, age, count, settings, #list, failure) == 0 then return true end
    return nil, ("channel %q: %s"):format(name, ffi.string(failure.text))
  end
  for _, r in ipairs(topology.recipes(read)) do -- first: a channel may say more about its queue
    local ok, err = declare(r.connection.link, r.name, r.settings, 0, 0)
    if not ok then return nil, err end
  end
  for _, d in ipairs(read.declared) do
    local age, count = math.floor((d.retain.age or 0) * 1000), d.retain.count or 0
    local ok, err = declare(d.channel:link_of(), d.channel.name, d.settings, age, count)
    if not ok then return nil, err end
  end
  return true
end

--- Called by C: `dir`, and `check = true` to stop before anything is opened. `sources = true`: with the settings come
--- the files that were read, packed; `files`: such a text, to read instead of the folder.
---@return boolean|nil ok, string|table error or the settings; a text with "!" in front is about a broker
return function(options)
  if options.jit == "off" then jit.off() end
  jit.opt.start("maxtrace=4000", "maxmcode=16384")
  local overrides = { BROKER_URL = options.broker }
  for name, value in pairs(options) do -- only plain values cross from one state to another
    local variable = type(name) == "string" and name:match "^env%.(.+)$"
    if variable then overrides[variable] = value end
  end
  local read = project.read(options.dir, {
    rewrite = options.rewrite, overrides = overrides, files = options.files and files.unpack(options.files),
  })
  if #read.problems > 0 then return nil, table.concat(read.problems, "\n") end
  if options.check then return true, #read.pipelines end
  local memory = fields.bytes(read.settings.memory)
  C.mw_vm_limits(wait.vm, read.settings.watchdog, memory)
  verdict.memory_limit = memory
  local ok, err = open(read)
  if not ok then return nil, "!" .. err end
  for _, p in ipairs(read.pipelines) do
    ok, err = build(p, options.rewrite)
    if not ok then return nil, ("%s:%d: %s: %s"):format(p.where.file, p.where.line, p.where.what, err) end
  end
  if not options.rewrite then token.serve(read.connections) end
  if options.sources then read.settings.sources = files.pack(read.sandbox.files) end
  return true, read.settings
end
