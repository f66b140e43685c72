-- Handlers in a generation of their own, on the memory broker: what becomes of the answers that people give by
-- accident.
local C = require "moonwire.internal.cdef"
local clock = require "spec.support.wait"
local core = require "moonwire.core"
local ffi = require "ffi"
local process = require "spec.support.process"
local publish = require "moonwire.internal.api.publish"
local runtime = require "moonwire.internal.runtime"
local shared = require "moonwire.shared" -- the handlers' mw.shared: one per process
local wait = require "moonwire.internal.wait"

local number = 0

-- Runs `handler` (the text of a handler table) on these bodies until all is settled; the pipeline's status.
local function run(handler, settings, bodies, urls)
  number = number + 1
  local url = "memory:run-spec-" .. number
  local dir = process.tmpdir()
  local file = assert(io.open(dir .. "/moonwire.lua", "w"))
  file:write('local mw = require "moonwire"\n', urls or "", ('local b = mw.connect "%s"\n'):format(url),
    'mw.pipeline "p" { from = b:channel "in", retry = { attempts = 2, backoff = { 0 } }, ', settings, " handler = ",
      handler, " }\n")
  file:close()
  local app = core.app()
  assert(app:load { dir = dir })
  assert(app:start())
  local failure = ffi.new "mw_failure"
  local link = C.mw_vm_link(wait.vm, url, failure)
  assert(C.mw_vm_link_open(link, failure) == 0)
  local sent
  runtime.spawn(function()
    for i, body in ipairs(bodies) do
      assert(publish.now(link, "in", assert(publish.message(body, { id = "m" .. i }))))
    end
  end, nil, function(err) sent = err or true end)
  local status
  for _ = 1, 400 do
    core.step(10)
    status = app:status()[1]
    if sent and status.received >= #bodies and app:idle() then break end
  end
  assert.is_true(sent)
  assert.equal(0, status.running, "a handler is stuck")
  assert.equal(0, status.in_flight, "a message is stuck")
  app:drain()
  for _ = 1, 100 do
    if app:done() then break end
    core.step(10)
  end
  assert.is_true(app:done())
  app:close()
  return status
end

local function brief(s) return { handled = s.handled, retried = s.retried, dead = s.dead, dropped = s.dropped,
  deduped = s.deduped } end
local function counts(more)
  local all = { handled = 0, retried = 0, dead = 0, dropped = 0, deduped = 0 }
  for name, value in pairs(more) do all[name] = value end
  return all
end

describe("an answer of a handler", function()
  setup(function() C.mw_log_setup(1, 4) end)
  teardown(function()
    C.mw_log_setup(1, 1)
    process.cleanup()
  end)

  for _, case in ipairs {
    { "nothing", "return", { handled = 1 } }, { "true", "return true", { handled = 1 } },
    { "something odd", "return 'odd'", { handled = 1 } }, { "false", "return false", { retried = 1, dead = 1 } },
    { "nil and a text", "return nil, 'no'", { retried = 1, dead = 1 } },
      { "an error", "error 'no'", { retried = 1, dead = 1 } },
    { "an error without a text", "error()", { retried = 1, dead = 1 } },
    { "an error object that cannot be shown", "error(setmetatable({}, { __tostring = function() error 'x' end }))",
      { retried = 1, dead = 1 } },
    { "an error object that shows as a number", "error(setmetatable({}, { __tostring = function() return 5 end }))",
      { retried = 1, dead = 1 } },
    { "an error of class invalid", "error(mw.error('invalid', 'x'))", { dead = 1 } },
    { "nil and an error object", "return nil, mw.error('invalid', 'x')", { dead = 1 } },
    { "a rejection", "return mw.reject 'no'", { dead = 1 } }, { "a forgotten return", "mw.reject 'no'", { dead = 1 } },
    { "a forgotten return in mw.all", "mw.all { function() mw.sleep(0) mw.reject 'no' end }", { dead = 1 } },
    { "a drop", "return mw.drop 'no'", { dropped = 1 } }, { "a verdict that true overrules",
      "mw.reject 'no' return true", { handled = 1 } },
    { "a body that is not JSON", "return msg.data", { dead = 1 } },
    { "an own coroutine", "return coroutine.wrap(function() coroutine.yield(true) end)()", { handled = 1 } },
    { "a yield", "coroutine.yield()", { retried = 1, dead = 1 } }, { "a yield of true", "coroutine.yield(true)",
      { retried = 1, dead = 1 } },
    { "a yield of idle", "coroutine.yield 'idle'", { retried = 1, dead = 1 } },
    { "a stack overflow", "local function f() return 1 + f() end f()", { retried = 1, dead = 1 } },
    { "an error that is a table", "error { code = 5 }", { retried = 1, dead = 1 } },
    { "a publish that is wrong", "mw.publish('', 'x')", { retried = 1, dead = 1 } },
    { "a publish to a name with a zero byte", "mw.publish('a\\0b', 'x')", { retried = 1, dead = 1 } },
    { "a publish with an empty id", "mw.publish('a', 'x', { id = '' })", { retried = 1, dead = 1 } },
    { "a publish with a now that is none", "mw.publish('a', 'x', { now = 1 })", { retried = 1, dead = 1 } },
    { "a publish of a batch that is none", "mw.publish('a', 'x', { of = 5 })", { retried = 1, dead = 1 } },
    { "a publish of its own message", "mw.publish('a', 'x', { of = msg })", { handled = 1 } },
    { "a change of the library", "mw.publish = nil", { retried = 1, dead = 1 } },
    { "an addition to the library", "mw.own = 5", { retried = 1, dead = 1 } },
    { "a change of a part of it", "mw.log.info = nil", { retried = 1, dead = 1 } },
    { "a change of mw.http", "mw.http.get = nil", { retried = 1, dead = 1 } },
    { "a change of a module", "require 'moonwire.json'.decode = nil", { retried = 1, dead = 1 } },
    { "what is in it", "mw.log.debug 'x' assert(mw.http.get and mw.json.null)", { handled = 1 } },
    { "code with a world of its own", "local e = {} load('x = 1', 'x', 't', e)() assert(e.x == 1)", { handled = 1 } },
    { "code with a world that is none", "load('x = 1', 'x', 't', 5)", { retried = 1, dead = 1 } },
    { "an error of two megabytes", "error(('x'):rep(2e6))", { retried = 1, dead = 1 } },
  } do
    it(case[1], function()
      assert.same(counts(case[3]), brief(run("function(msg) " .. case[2] .. " end", "", { "no JSON" })))
    end)
  end

  it("that comes too late is a timeout", function()
    local s = run("function() mw.sleep(5) end", "timeout = 0.03,", { "x" })
    assert.same(counts { retried = 1, dead = 1 }, brief(s))
    s = run("function() mw.all { function() mw.sleep(5) end, function() mw.sleep(6) end } end", "timeout = 0.03,",
      { "x" })
    assert.same(counts { retried = 1, dead = 1 }, brief(s))
  end)

  it("waits as long as it says, however long it worked before", function()
    local before = clock.now()
    run("function() local t = os.clock() while os.clock() - t < 0.06 do end mw.sleep(0.06) end", "", { "x" })
    assert.is_true(clock.now() - before >= 0.119, "the work counted as sleep")
  end)
end)

describe("an answer of a batch", function()
  setup(function() C.mw_log_setup(1, 4) end)
  teardown(function() C.mw_log_setup(1, 1) end)

  local SCHEMA = ' schema = { type = "object", required = { "n" } },'
  local BODIES = { { n = 1 }, { n = 2 }, { n = 3 } }
  for name, schema in pairs { ["without a schema"] = "", ["with a schema"] = SCHEMA } do
    for _, case in ipairs {
      { "nothing", "return", { handled = 3 } }, { "one verdict", "return mw.reject 'no'", { dead = 3 } },
      { "a table by position", "return { [2] = mw.reject 'no' }", { handled = 2, dead = 1 } },
      { "a table by message", "return { [msgs[2]] = mw.reject 'no' }", { handled = 2, dead = 1 } },
      { "a name", "return { a = mw.reject 'no' }", { retried = 3, dead = 3 } },
      { "a place that is not there", "return { [99] = mw.reject 'no' }", { retried = 3, dead = 3 } },
      { "half a place", "return { [1.5] = mw.reject 'no' }", { retried = 3, dead = 3 } },
      { "one message twice", "return { [msgs[1]] = mw.drop 'no', mw.reject 'no' }", { retried = 3, dead = 3 } },
      { "a forgotten return", "mw.reject 'no'", { dead = 3 } }, { "an error", "error 'no'", { retried = 3, dead = 3 } },
      { "nil and a text", "return nil, 'no'", { retried = 3, dead = 3 } },
      { "an error of class invalid", "error(mw.error('invalid', 'no'))", { dead = 3 } },
    } do
      it(name .. ": " .. case[1], function()
        local handler = "{" .. schema .. " handle_batch = function(msgs) " .. case[2] .. " end }"
        assert.same(counts(case[3]), brief(run(handler, "batch = { size = 3, wait = 0.2 },", BODIES)))
      end)
    end
  end

  it("is about those that passed the schema, in their places", function()
    shared.delete "seen"
    local handler = "{" .. SCHEMA .. [[ handle_batch = function(msgs)
      for _, m in ipairs(msgs) do mw.shared.incr("seen", m.data.n) end
      return { [2] = mw.drop "second of the good ones" }
    end }]]
    local s = run(handler, "batch = { size = 4, wait = 0.2 },", { { n = 1 }, { x = 1 }, { n = 10 }, "no JSON" })
    assert.same(counts { handled = 1, dropped = 1, dead = 2 }, brief(s))
    assert.equal(11, shared.get "seen")
  end)
end)

describe("a key of the pipeline", function()
  setup(function() C.mw_log_setup(1, 4) end)
  teardown(function() C.mw_log_setup(1, 1) end)

  it("is no table: no two of them are the same, and the order would be lost", function()
    for _, key in ipairs { "function() return {} end", "function() return print end", '"n"' } do
      local s = run("function() end", "key = " .. key .. ",", { { n = { 1 } } })
      assert.same({ 0, 1 }, { s.handled, s.dead })
    end
  end)
end)

describe("dedupe", function()
  setup(function() C.mw_log_setup(1, 4) end)
  teardown(function() C.mw_log_setup(1, 1) end)

  it("skips what was handled, by the key", function()
    local s = run("function() end", 'dedupe = { key = "n" },', { { n = 1 }, { n = 2 }, { n = 1 } })
    assert.same(counts { handled = 2, deduped = 1 }, brief(s))
  end)

  it("takes no table for a key: no two of them are the same", function()
    local s = run("function() end", "dedupe = { key = function() return {} end },", { "x" })
    assert.same(counts { dead = 1 }, brief(s))
    s = run("function() end", 'dedupe = { key = "n" },', { { n = { 1 } } })
    assert.same(counts { dead = 1 }, brief(s))
  end)

  it("takes messages without a key for different ones, null too", function()
    local s = run("function() end", 'dedupe = { key = "n" },', { {}, {}, '{"n":null}', '{"n":null}' })
    assert.same(counts { handled = 4 }, brief(s))
  end)
end)

describe("connections", function()
  setup(function() C.mw_log_setup(1, 4) end)
  teardown(function() C.mw_log_setup(1, 1) end)

  it("are all opened, also those that differ in the password only", function()
    local more = [[
      local one, two = mw.connect "memory://u:one@h/run-spec-pw", mw.connect "memory://u:two@h/run-spec-pw"
    ]]
    local handler = [[function()
      mw.publish(one:channel "x", "1", { now = true })
      mw.publish(two:channel "x", "2", { now = true })
    end]]
    assert.same(counts { handled = 1 }, brief(run(handler, "", { "x" }, more)))
  end)
end)
