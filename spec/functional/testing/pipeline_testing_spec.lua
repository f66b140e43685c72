-- `moonwire test` and moonwire.testing, as a user's project uses them.
local process = require "spec.support.process"
local project = require "spec.support.project"

local binary = os.getenv "MOONWIRE_BIN"

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "embedded:data"))
local other = mw.connect "memory:another"
mw.pipeline "orders" {
  from = broker:channel "order.created", handler = "handlers.orders", dedupe = { store = "memory" },
  retry = { attempts = 3, base = 0.02 }, on_dead = "hold_key",
}
mw.pipeline "mirror" { from = other:channel "order.created", handler = "log", options = { text = "mirrored" } }
]]

local HANDLER = [[
local mw = require "moonwire"
return {
  handle = function(msg)
    if msg.data.sleep then mw.sleep(msg.data.sleep) end
    if msg.data.fails and msg.attempt <= msg.data.fails then error "not yet" end
    mw.publish("emails", { to = msg.data.id, greeting = mw.env("GREETING", "hello") }, { key = msg.key })
  end,
}
]]

local SPEC = [[
local testing = require "moonwire.testing"

describe("orders", function()
  local app
  before_each(function() app = testing.start { env = { GREETING = "moin" } } end)
  after_each(function() app:stop() end)

  it("sends an email", function()
    app:publish("order.created", { id = 7 }, { key = "7" })
    app:settle()
    assert.equal(1, app:handled "orders")
    local mails = app:published "emails"
    assert.equal(1, #mails)
    assert.same({ to = 7, greeting = "moin" }, mails[1].data)
    assert.equal("7", mails[1].key)
    assert.same({}, app:dead "orders")
    assert.equal(0, app:status("mirror").received) -- the same name on another connection is another channel
    app:publish("order.created", "x", { on = "memory:another" })
    app:settle()
    assert.equal(1, app:status("mirror").received)
    assert.equal(1, app:status("orders").received)
  end)

  it("begins with an empty broker", function()
    assert.same({}, app:messages "emails")
    assert.equal(0, app:status("orders").received)
    app:publish("order.created", { id = 7 }, { id = "same in every test" })
    app:settle()
    assert.equal(1, app:handled "orders")
  end)

  it("begins with no dedupe records", function()
    app:publish("order.created", { id = 7 }, { id = "same in every test" })
    app:publish("order.created", { id = 7 }, { id = "same in every test" })
    app:settle()
    assert.equal(1, app:handled "orders")
    assert.equal(1, app:status("orders").deduped)
  end)

  it("retries, and gives up", function()
    app:publish("order.created", { id = 1, fails = 2 }, { key = "a" })
    app:publish("order.created", { id = 2, fails = 9 }, { key = "b" })
    app:publish("order.created", { id = 3 }, { key = "b" })
    app:settle() -- what waits behind a dead key is not left to do
    assert.equal(1, app:handled "orders")
    assert.equal(4, app:status("orders").retried)
    local dead = app:dead "order.created.dead"
    assert.equal(2, dead[1].data.id)
    assert.matches("not yet", dead[1].headers["mw-dead-last-error"])
    assert.equal(1, #app:messages "order.created")
  end)

  it("survives faults and crashes", function()
    app:fault("fail_settle", 1)
    app:publish("order.created", { id = 1 })
    app:settle()
    assert.equal(1, #app:published "emails")
    app:publish("order.created", { id = 2, sleep = 0.2 })
    app:wait(function() return app:status("orders").running == 1 end)
    app:crash()
    app:settle()
    assert.equal(2, #app:published "emails")
  end)

  it("handles delays", function()
    app:publish("order.created", { id = 1 }, { delay = 0.1 })
    assert.is_number(app:messages("order.created")[1].due)
    app:settle()
    assert.equal(1, app:handled "orders")
  end)

  it("has readable errors", function()
    local function text(fn) return select(2, pcall(fn)) end
    assert.matches('no pipeline "order"; did you mean "orders"%?', text(function() app:handled "order" end))
    assert.matches('read by pipeline "orders"', text(function() app:published "order.created" end))
    assert.matches('unknown option "kee"', text(function() app:publish("x", "y", { kee = 1 }) end))
    assert.matches('unknown option "direct"', text(function() testing.start { direct = "x" } end))
    assert.matches('no fault "fail_publsh"; did you mean "fail_publish"%?',
      text(function() app:fault("fail_publsh", 1) end))
    app:publish("order.created", { id = 1, sleep = 5 })
    assert.matches("waited 0.1 s for everything to be settled; left are orders: 1 running",
      text(function() app:settle(0.1) end))
    app:stop()
    assert.matches("the app is stopped", text(function() app:settle() end))
  end)

  it("can require the project's own modules", function()
    assert.is_function(require("handlers.orders").handle)
  end)
end)
]]

local function make(spec)
  local dir = process.tmpdir()
  process.run { "mkdir", "-p", dir .. "/handlers", dir .. "/spec" }
  project.write(dir .. "/moonwire.lua", MAIN)
  project.write(dir .. "/handlers/orders.lua", HANDLER)
  if spec then project.write(dir .. "/spec/orders_spec.lua", spec) end
  return dir
end

local function test(...)
  local argv = { binary, "test", ... }
  return process.run { argv, timeout = 60 }
end

describe("moonwire test", function()
  local dir = make(SPEC)

  teardown(function() process.cleanup() end)

  it("runs a project's specs inside the core", function()
    local result = test(dir)
    assert.equal(0, result.code, result.stdout .. result.stderr)
    assert.matches("8 successes / 0 failures / 0 errors / 0 pending", result.stdout)
  end)

  it("leaves nothing in the project", function()
    test(dir)
    assert.equal("", process.run({ "find", dir, "-name", "data*" }).stdout)
  end)

  it("takes the current folder, one file, and a filter", function()
    local here = process.run { { binary, "test" }, cwd = dir, timeout = 60 }
    assert.matches("8 successes", here.stdout)
    assert.matches("1 success ", test(dir .. "/spec/orders_spec.lua", "--filter", "delays").stdout)
  end)

  it("writes TAP and JUnit", function()
    assert.matches("1%.%.8", test(dir, "-o", "tap").stdout)
    assert.matches("<testsuite", test(dir, "-o", "junit").stdout)
  end)

  it("fails when a spec fails, has an error, or does not load", function()
    assert.equal(1, test(make [[it("fails", function() assert.equal(1, 2) end)]]).code)
    assert.equal(1, test(make [[it("raises", function() error "x" end)]]).code)
    local broken = test(make [[it("is broken", function()]])
    assert.equal(1, broken.code)
    assert.matches("orders_spec.lua", broken.stdout)
  end)

  it("says what is missing", function()
    local none = test(make())
    assert.equal(1, none.code)
    assert.matches("No test files found", none.stdout)
    assert.equal(1, test("/nonexistent").code)
    assert.equal(64, test(dir, "-o", "xml").code)
  end)

  it("shows the problems of a project that cannot start", function()
    local bad = make [[
      it("starts", function() require("moonwire.testing").start() end)]]
    project.write(bad .. "/moonwire.lua", (MAIN:gsub("attempts = 3", "attemps = 3")))
    local result = test(bad)
    assert.equal(1, result.code)
    assert.matches('unknown field "retry.attemps"; did you mean "attempts"%?', result.stdout)
  end)
end)
