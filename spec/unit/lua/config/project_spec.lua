-- Reading a project in a state of its own, as `moonwire check` does: every mistake has its text and its place.
local core = require "moonwire.core"
local process = require "spec.support.process"

local HANDLER = "return { handle = function() end }"
local dir

-- Reads a project of these files; true, or the problems.
local function check(files)
  dir = process.tmpdir()
  if type(files) == "string" then files = { ["moonwire.lua"] = files } end
  files["handlers/ok.lua"] = files["handlers/ok.lua"] or HANDLER
  for path, text in pairs(files) do
    local folder = path:match "^(.*)/"
    if folder then assert(process.run({ "mkdir", "-p", dir .. "/" .. folder }).code == 0) end
    local file = assert(io.open(dir .. "/" .. path, "wb"))
    file:write(text)
    file:close()
  end
  local app = core.app()
  local ok, err = app:load { dir = dir, check = true }
  app:close()
  return ok or err
end

local HEAD = 'local mw = require "moonwire"\nlocal b = mw.connect "memory:spec"\n'

-- One pipeline with these settings, from line 3 on.
local function pipeline(settings, files)
  files = files or {}
  files["moonwire.lua"] = HEAD .. 'mw.pipeline "p" {\n' .. settings .. "\n}\n"
  return check(files)
end

local function has(expected, problems)
  assert.is_string(problems)
  assert(problems:find(expected, 1, true), ("expected %q in:\n%s"):format(expected, problems))
end

local OK = 'from = b:channel "in", handler = "handlers.ok",\n'

describe("a project", function()
  teardown(function() process.cleanup() end)

  it("is read", function()
    assert.is_true(pipeline(OK))
    assert.is_true(pipeline(OK .. [[order = "key", key = "customer.id", concurrency = 1, timeout = 0.5, group = "g",
      retry = { attempts = 2, classes = { x = "dead" } }, dead = b:channel "d", dedupe = { ttl = 5, key = "id" },
      start = "newest", buffer = { count = 5, bytes = 1024 }, lease = 1 ]]))
    assert.is_true(pipeline(OK .. 'on_dead = "hold_key", dead = "elsewhere", dedupe = true'))
    assert.is_true(pipeline(OK .. 'key = function(msg) return msg.id end, dedupe = { store = "memory" }'))
  end)

  it("must be there and declare something", function()
    has("there is no moonwire.lua; `moonwire new` makes a project", check {})
    has("moonwire.lua: declares no pipeline: write mw.pipeline", check 'local mw = require "moonwire"')
    has("moonwire.lua:2:", check "local x = 1\nlocal =")
    has('moonwire.lua:2: "x" would become a global', check "local y\nx = 1")
    has("moonwire.lua:1: mw.nothing does not exist", check 'local x = require("moonwire").nothing')
  end)

  it("names the nearest for what a connection has not, and wants a pipeline's name first", function()
    has('moonwire.lua:3: a connection has no "chanel"; did you mean "channel"?', check(HEAD .. 'b:chanel "x"'))
    has('moonwire.lua:3: mw.pipeline: the name comes first: mw.pipeline "orders" { … }, got a table',
      check(HEAD .. 'mw.pipeline { from = b:channel "in" }'))
    has("moonwire.lua: stack overflow", check "local function f() return 1 + f() end f()")
  end)

  it("does not lose messages, nor send them round", function()
    local lost = 'moonwire.lua:5: pipeline "p": dead = false would lose messages: leave it out, and they go to '
      .. "the channel's name + \".dead\""
    assert.equal(lost, pipeline(OK .. "dead = false"))
    for _, to in ipairs { '"in"', 'b:channel "in"', '{ "out", "in" }' } do
      has('forward would send each message back to "in", which it comes from',
        pipeline('from = b:channel "in", handler = "forward", options = { to = ' .. to .. " }"))
    end
    assert.is_true(pipeline [[from = b:channel "in", handler = "forward",
      options = { to = { "out", mw.connect "memory:other":channel "in" } }]])
  end)

  it("connects to brokers that exist", function()
    local function connect(url) return check(('local mw = require "moonwire"\n\nmw.connect(%s)'):format(url)) end
    has('moonwire.lua:3: mw.connect: unknown broker "memroy:"; did you mean "memory:"?', connect '"memroy:x"')
    has('moonwire.lua:3: mw.connect: unknown broker "gopher:"; this build has ', connect '"gopher:x"')
    has('mw.connect: "data" is not a broker URL', connect '"data"')
    has("moonwire.lua:3: mw.connect: expected a broker URL, such as embedded:data", connect "5")
  end)

  it("names channels", function()
    local function channel(arguments) return check(HEAD .. "b:channel(" .. arguments .. ")") end
    has("moonwire.lua:3: channel: the name must be a string that is not empty", channel '""')
    has("channel: the name must be a string that is not empty", channel "5")
    has("at most 249 bytes and no control characters", channel '("x"):rep(250)')
    has("at most 249 bytes and no control characters", channel '"a\\nb"')
    has("channel: the options must be a table", channel '"c", 5')
    has('moonwire.lua:3: channel "c": unknown field "retian"; did you mean "retain"?', channel '"c", { retian = {} }')
    has('channel "c": retain.age must be seconds, 0.001 or more, got 0', channel '"c", { retain = { age = 0 } }')
    has('channel "c": retain.count must be a whole number', channel '"c", { retain = { count = 0 } }')
  end)

  it("names pipelines, each once", function()
    local function named(name) return check(HEAD .. "mw.pipeline(" .. name
      .. ') { from = b:channel "in", handler = "handlers.ok" }') end
    for _, name in ipairs { '""', '"a b"', '("x"):rep(101)', "5", "nil" } do
      has("moonwire.lua:3: mw.pipeline: ", named(name))
    end
    has("is not a name: letters, digits, _ - . and at most 100 of them", named '"a/b"')
    assert.is_true(named '"a-b.c_1"')
    has('mw.pipeline: write mw.pipeline "p" { … }', check(HEAD .. 'mw.pipeline "p" (5)'))
    local twice = ('mw.pipeline "p" { from = b:channel "in", handler = "handlers.ok" }\n'):rep(2)
    has('moonwire.lua:4: mw.pipeline: there are two pipelines named "p"', check(HEAD .. twice))
  end)

  it("says what is wrong with a setting, and where", function()
    for settings, expected in pairs {
      ['handler = "handlers.ok"'] =
        '3: pipeline "p": from is missing: name the channel it reads, such as broker:channel "orders"',
      ['from = b:channel "in"'] = '3: pipeline "p": handler is missing: name the module, such as "handlers.orders"',
      ['from = "in", handler = "handlers.ok"'] =
        '4: pipeline "p": from must be a channel, such as broker:channel "orders", got a string',
      [OK .. "\ncuncurrency = 1"] = '6: pipeline "p": unknown field "cuncurrency"; did you mean "concurrency"?',
      [OK .. "concurrency = 0"] = '5: pipeline "p": concurrency must be a whole number from 1 to 100000, got 0',
      [OK .. 'order = "keys"'] =
        '5: pipeline "p": order must be one of "key", "source", "none", got "keys"; did you mean "key"?',
      [OK .. "timeout = 0"] = '5: pipeline "p": timeout must be seconds, 0.001 or more, got 0',
      [OK .. "lease = 0.5"] = '5: pipeline "p": lease must be seconds, 1 or more, got 0.5',
      [OK .. 'group = ""'] =
        '5: pipeline "p": group must be a string of 1 to 249 bytes without control characters, got ""',
      [OK .. 'start = "now"'] = '5: pipeline "p": start must be one of "oldest", "newest"',
      [OK .. "retry = 5"] = '5: pipeline "p": retry must be a table, got 5',
      [OK .. "retry = {\nattempts = 0 }"] =
        '6: pipeline "p": retry.attempts must be a whole number from 1 to 1000000, got 0',
      [OK .. "buffer = { cuont = 1 }"] = '5: pipeline "p": unknown field "buffer.cuont"; did you mean "count"?',
      [OK .. "buffer = { bytes = 1 }"] = '5: pipeline "p": buffer.bytes must be a whole number from 1024',
      [OK .. "key = 5"] =
        '5: pipeline "p": key must be a path into the data, such as "customer.id", or a function of the message',
      [OK .. 'order = "none",\nkey = "a"'] = '6: pipeline "p": key needs order = "key"',
      [OK .. "batch = { size = 5 }"] = '5: pipeline "p": batch needs a handler with handle_batch(messages)',
      [OK .. "dead = 5"] = '5: pipeline "p": dead must be a channel, such as broker:channel "orders", got a number',
      [OK .. "dead = false"] = '5: pipeline "p": dead = false would lose messages',
      [OK .. 'dead = "in"'] = '5: pipeline "p": dead letters would go back into the channel they came from',
      [OK .. "dedupe = 5"] = '5: pipeline "p": dedupe must be true or a table such as { ttl = 600 }',
      [OK .. "dedupe = { tll = 5 }"] = '5: pipeline "p": unknown field "dedupe.tll"; did you mean "ttl"?',
      [OK .. "dedupe = { key = 5 }"] =
        '5: pipeline "p": dedupe.key must be a path into the data, such as "order.id", or a function of the message',
      [OK .. "dedupe = { store = 5 }"] = '5: pipeline "p": dedupe.store must be "memory", a broker URL or a connection',
      [OK .. 'dedupe = { store = "gopher:x" }'] = '5: pipeline "p": dedupe.store: unknown broker "gopher:"',
      [OK .. 'order = "none", on_dead = "hold_key"'] = 'pipeline "p": on_dead holds keys, but order = "none" has none',
    } do
      has("moonwire.lua:" .. (expected:match "^%d" and expected or "3: " .. expected), pipeline(settings))
    end
  end)

  it("shows all problems at once", function()
    local problems = pipeline(OK .. 'concurrency = 0,\norder = "x",\nretry = { base = -1 },\nhandlr = 1')
    local _, lines = problems:gsub("\n", "\n")
    assert.equal(3, lines)
    local both = check(HEAD
      .. 'mw.pipeline "a" { from = 1, handler = "x" }\nmw.pipeline "b" { from = 1, handler = "x" }')
    has('pipeline "a"', both)
    has('pipeline "b"', both)
  end)

  it("has settings and an environment", function()
    has('moonwire.lua:3: settings: unknown field "drian"; did you mean "drain"?',
      check(HEAD .. "mw.settings { drian = 1 }"))
    has("settings: drain must be seconds, 0 or more, got -1", check(HEAD .. "mw.settings { drain = -1 }"))
    has("mw.settings: expected a table", check(HEAD .. "mw.settings(5)"))
    has("moonwire.lua:3: mw.env: NOT_THERE is not set", check(HEAD .. 'mw.env "NOT_THERE"'))
    has('.env:2: expected NAME=value, got "nonsense"', check { ["moonwire.lua"] = HEAD, [".env"] = "A=1\nnonsense" })
    assert.is_true(check {
      [".env"] = "CHANNEL=in", ["moonwire.lua"] = HEAD ..
        'mw.pipeline "p" { from = b:channel(mw.env "CHANNEL"), handler = "handlers.ok" }',
    })
  end)
end)

describe("a handler", function()
  teardown(function() process.cleanup() end)

  local function with(text, more, files)
    files = files or {}
    files["handlers/h.lua"] = text
    return pipeline('from = b:channel "in", handler = "handlers.h", ' .. (more or ""), files)
  end
  local function inline(text,
    more) return pipeline('from = b:channel "in", handler = ' .. text .. ", " .. (more or "")) end

  it("is a module, a table, a function, made from options, or ready-made", function()
    assert.is_true(with "return { handle = function() end, description = 'x', _private = 1, helper = function() end }")
    assert.is_true(with "return function() end")
    assert.is_true(with("return { handle_batch = function() end }", "batch = { size = 2 }"))
    assert.is_true(with("return function(options) assert(options.url == 'x') return { handle = function() end } end",
      'options = { url = "x" }'))
    assert.is_true(with("return { new = function(o) return { handle = function() return o end } end }", "options = {}"))
    assert.is_true(with "return { new = function() return function() end end }")
    assert.is_true(inline "function() end")
    assert.is_true(inline "{ handle = function() end }")
    assert.is_true(inline('"webhook"', 'options = { url = "http://localhost/" }'))
    assert.is_true(check {
      ["webhook.lua"] = HANDLER,
        ["moonwire.lua"] = HEAD .. 'mw.pipeline "p" { from = b:channel "in", handler = "webhook" }',
    })
  end)

  it("is refused with the place and the reason", function()
    local start = 'moonwire.lua:4: pipeline "p": '
    has(start .. 'module "nowhere" not found: there is no nowhere.lua in the project', inline '"nowhere"')
    has(start .. 'module "forwad" not found: there is no forwad.lua in the project; did you mean "forward"?',
      inline '"forwad"')
    has('there is no handlers/ko.lua in the project; did you mean "handlers.ok"?', inline '"handlers.ko"')
    assert.is_nil(inline('"handlers.quux"'):find "did you mean")
    has(start .. "handlers/h.lua:2: unexpected symbol", with "local x =\n}")
    has(start .. "handlers/h.lua:1: on purpose", with "error 'on purpose'")
    has(start .. 'handler "handlers.h" must return a table with a function handle, got nothing', with "local x")
    has(start .. "handler in moonwire.lua must return a table with a function handle, got a number", inline "5")
    has(start .. 'handler "handlers.h" has an unknown field "schemas"; did you mean "schema"?',
      with "return { handle = function() end, schemas = {} }")
    has(start .. 'handler "handlers.h": handle must be a function, got a string', with "return { handle = 'x' }")
    has(start .. 'handler "handlers.h": handle_batch must be a function, got a table',
      with "return { handle_batch = {} }")
    has(start .. 'handler "handlers.h" has neither handle nor handle_batch; is "handel" meant?',
      with "return { handel = function() end }")
    has(start .. 'handler "handlers.h" has neither handle nor handle_batch', with "return {}")
    has(start .. 'handler "handlers.h" has both handle and handle_batch: one of them would never run',
      with "return { handle = function() end, handle_batch = function() end }")
    has(start .. 'handler "handlers.h" takes no options', with(HANDLER, "options = {}"))
    has('handler in moonwire.lua made no handler of its options: it must return a table with a function handle',
      inline("function(msg) end", "options = {}"))
    has(start .. 'handler "handlers.h": handlers/h.lua:1: no url', with("return function(o) error 'no url' end",
      "options = {}"))
    has(start .. 'handler "handlers.h" must return a table with a function handle, got a number',
      with("return function() return 5 end", "options = {}"))
  end)

  it("has a schema that can be read", function()
    local function schema(value, files) return with("return { handle = function() end, schema = " .. value .. " }",
      nil, files) end
    assert.is_true(schema '{ type = "object" }')
    assert.is_true(schema('"order.json"', { ["order.json"] = '{"type":"object"}' }))
    has('handler "handlers.h": schema: ', schema '"missing.json"')
    has("missing.json: No such file or directory", schema '"missing.json"')
    has("order.json: is not JSON: ", schema('"order.json"', { ["order.json"] = "{" }))
    has("schema must be the path of a JSON Schema, or the schema as a table", schema "5")
    has('handler "handlers.h": order.json', schema('"order.json"', { ["order.json"] = '{"type":"objekt"}' }))
  end)

  it("sees neither ffi nor internals, not even through a string", function()
    for name, expected in pairs {
      ["moonwire.core"] = "not found", ["moonwire.json.core"] = "not found", ["moonwire.internal.wait"] = "not found",
      ["moonwire.cli.main"] = "not found", ffi = "not found",
    } do
      has(expected, with(("require %q\n"):format(name) .. HANDLER))
    end
    has("attempt to call", with("(''):dump()\n" .. HANDLER))
    has("attempt to call", with("getmetatable('').__index.dump(print)\n" .. HANDLER))
    assert.is_true(with("require 'moonwire.json' require 'moonwire'\n" .. HANDLER))
  end)
end)
