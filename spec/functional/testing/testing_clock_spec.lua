-- The virtual clock of moonwire.testing, and what it shows: hours in milliseconds, in the order of the real thing.
local project = require "spec.support.project"
local process = require "spec.support.process"
local testing = require "moonwire.testing"

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect "embedded:data"
mw.pipeline "orders" {
  from = broker:channel "orders", handler = "handlers.orders", dedupe = { ttl = 600 }, timeout = 30,
  retry = { attempts = 6, backoff = { 60, 600, 3600, 3600, 7200 }, jitter = 0,
    classes = { outage = { pause = 300, cap = 600, jitter = 0 } } },
}
mw.pipeline "batches" {
  from = broker:channel "lines", handler = "handlers.batches", batch = { size = 3, wait = 20 },
}
mw.pipeline "held" {
  from = broker:channel "held", handler = "handlers.orders", on_dead = "hold_key", retry = { attempts = 1 },
}
]]

local ORDERS = [[
local mw = require "moonwire"
return {
  handle = function(msg)
    local d = msg.data
    if d.sleep then mw.sleep(d.sleep) end
    if d.outage and msg.time + d.outage > mw.now() then error(mw.error("outage", "the service is down")) end
    if d.fails and msg.attempt <= d.fails then error("not yet: " .. msg.attempt, 0) end
    mw.log.info("done", { order = d.id, colour = "red" })
    mw.publish("done", { id = d.id, at = mw.now(), os = os.time(), day = os.date("!%Y", nil) })
  end,
}
]]

local BATCHES = [[
local mw = require "moonwire"
return { handle_batch = function(msgs) mw.publish("sizes", { n = #msgs, at = mw.now() }) end }
]]

local function make()
  local dir = process.tmpdir()
  process.run { "mkdir", "-p", dir .. "/handlers" }
  project.write(dir .. "/moonwire.lua", MAIN)
  project.write(dir .. "/handlers/orders.lua", ORDERS)
  project.write(dir .. "/handlers/batches.lua", BATCHES)
  return dir
end

local function why(fn)
  local ok, err = pcall(fn)
  assert.is_false(ok)
  return tostring(err)
end

describe("the virtual clock", function()
  local dir = make()
  local app, began

  before_each(function()
    began = os.time()
    app = testing.start { dir = dir, now = 1e9 }
  end)
  after_each(function() app:stop() end)
  teardown(function() process.cleanup() end)

  it("lets hours of backoff pass in no time", function()
    app:publish("orders", { id = 1, fails = 4 }, { id = "m-1" })
    app:settle()
    assert.equal(7860, app:now())
    assert.is_true(os.time() - began <= 3)
    assert.equal(1, app:handled "orders")
    assert.same({ { id = 1, at = 1e9 + 7860, os = 1e9 + 7860, day = "2001" } },
      { app:published("done")[1].data })
    local retries = app:retries "orders"
    assert.equal(4, #retries)
    assert.same({ id = "m-1", attempt = 1, at = 0, delay = 60, error = "not yet: 1", class = "transient" }, retries[1])
    assert.same({ id = "m-1", attempt = 3, at = 660, delay = 3600, error = "not yet: 3", class = "transient" },
      retries[3])
    assert.retried(app, "orders", { 60, 600, 3600, 3600 }, 0)
  end)

  it("stands still until it is moved", function()
    app:publish("orders", { id = 1, fails = 1 })
    app:run()
    assert.equal(1, #app:retries "orders")
    assert.equal(0, app:now())
    app:advance(59.9)
    assert.equal(59.9, app:now())
    assert.equal(0, app:handled "orders")
    assert.is_not.settled(app)
    app:advance(0.1)
    assert.equal(1, app:handled "orders")
    assert.settled(app)
    app:advance(1000)
    assert.equal(1060, app:now())
  end)

  it("runs what is due in its order", function()
    app:publish("orders", { id = "c" }, { delay = 3 * 3600 })
    app:publish("orders", { id = "a" }, { delay = 3600 })
    app:publish("orders", { id = "b", fails = 1 }, { delay = 3600 + 1 })
    assert.equal(1e9 + 3 * 3600, app:messages("orders")[1].due or app:messages("orders")[3].due)
    app:advance(86400)
    local seen = {}
    for i, m in ipairs(app:published "done") do seen[i] = m.data.id .. (m.data.at - 1e9) end
    assert.same({ "a3600", "b3661", "c10800" }, seen)
    assert.equal(1e9 + 3600, app:published("done")[1].time)
  end)

  it("is the clock of sleeps and deadlines", function()
    app:publish("orders", { id = 1, sleep = 20 }, { key = "a" })
    app:publish("orders", { id = 2, sleep = 40 }, { key = "b" })
    app:advance(20)
    assert.equal(1, app:handled "orders")
    app:advance(9.999)
    assert.same({}, app:retries "orders")
    app:advance(0.001)
    assert.equal("timeout", app:retries("orders")[1].class)
    app:settle()
    assert.dead(app, "orders", { class = "timeout", attempts = 6 })
  end)

  it("is the clock of dead letters", function()
    app:publish("orders", { id = 1, fails = 9 })
    app:settle()
    local letter = app:dead("orders")[1]
    assert.equal(1e9 + 60 + 600 + 3600 + 3600 + 7200, letter.time)
    assert.matches("^2001%-09%-09T", letter.headers["mw-dead-time"])
  end)

  it("is the clock of dedupe records", function()
    app:publish("orders", { id = 1 }, { id = "same" })
    app:advance(599)
    app:publish("orders", { id = 2 }, { id = "same" })
    app:run()
    assert.equal(1, app:status("orders").deduped)
    app:advance(2)
    app:publish("orders", { id = 3 }, { id = "same" })
    app:settle()
    assert.equal(2, app:handled "orders")
  end)

  it("is the clock of batches", function()
    app:publish("lines", { n = 1 })
    app:publish("lines", { n = 2 })
    app:advance(19.9)
    assert.published(app, "sizes", 0)
    app:advance(0.1)
    assert.published(app, "sizes", { { n = 2, at = 1e9 + 20 } })
  end)

  it("is the clock of the breaker, and of the broker's answers", function()
    app:publish("orders", { id = 1, outage = 650 })
    app:settle()
    assert.equal(1, app:handled "orders")
    assert.is_true(app:now() >= 650 and app:now() < 1600, app:now())
    for _, r in ipairs(app:retries "orders") do assert.equal("outage", r.class) end
    app:fault("delay_ms", 5000)
    local before = app:now()
    app:publish("orders", { id = 2 })
    assert.equal(5, app:now() - before)
  end)

  it("goes on after a crash", function()
    app:publish("orders", { id = 1, fails = 2 })
    app:advance(100)
    assert.equal(100, app:now())
    app:crash()
    app:settle()
    assert.equal(1, app:handled "orders")
    assert.is_true(app:now() >= 660)
  end)

  it("knows when nothing more can happen, and has limits", function()
    app:publish("held", { id = 1, fails = 9 }, { key = "k" })
    app:publish("held", { id = 2 }, { key = "k" })
    app:settle() -- held until somebody replays the first
    assert.settled(app)
    assert.matches("nothing more can happen, however much time passes; waited for a sunny day",
      why(function() app:wait(function() return false end, nil, "a sunny day") end))
    app:publish("orders", { id = 1 }, { delay = 40 * 86400 })
    assert.matches("waited 30 days for everything to be settled; left are orders",
      why(function() app:settle() end))
    app:settle(41 * 86400)
    assert.equal(1, app:handled "orders")
  end)

  it("waits for a condition as long as that needs", function()
    app:publish("orders", { id = 1, sleep = 25 })
    app:wait(function() return app:status("orders").running == 1 end)
    assert.equal(0, app:now())
    app:wait(function() return app:handled "orders" == 1 end)
    assert.equal(25, app:now())
  end)

  it("keeps what the project logs", function()
    app:publish("orders", { id = 7, sleep = 3 }, { id = "m-7" })
    app:settle()
    assert.same({
      { at = 3, level = "info", text = "done", project = true,
        fields = { order = 7, colour = "red", pipeline = "orders", id = "m-7", attempt = 1 } },
    }, app:logs())
    app:publish("orders", { id = 7, fails = 1 })
    app:run()
    assert.equal(1, #app:logs())
    local texts = {} -- a connection of an earlier spec may log as well
    for _, line in ipairs(app:logs { all = true }) do
      if line.fields.pipeline == "orders" then texts[#texts + 1] = line.text end
    end
    assert.same({ "done", "the handler raised an error", "failed, will retry" }, texts) -- the second with its trace
  end)

  it("crashes between the handler and its ack", function()
    app:publish("orders", { id = 1 }, { id = "m-1" })
    app:crash "before_ack"
    assert.same({}, app:published "done") -- they go with the ack
    assert.equal(0, app:handled "orders")
    app:settle()
    assert.handled(app, "orders", 1) -- once more: the dedupe record goes with the ack, too
    assert.published(app, "done", 1)
    assert.equal(2, #app:logs())
  end)

  it("delivers again, twice, and in the wrong order", function()
    app:publish("orders", { id = 1, sleep = 5 })
    app:run()
    app:redeliver()
    app:settle()
    assert.equal(1, app:status("orders").fenced)
    app:duplicate(1)
    app:publish("held", { id = 2 })
    app:settle()
    assert.handled(app, "held", 2)
    app:reorder(1)
    app:settle()
  end)

  it("can be real", function()
    app:stop()
    app = testing.start { dir = dir, clock = "real" }
    app:publish("orders", { id = 1, sleep = 0.05 })
    app:settle()
    assert.is_true(app:now() >= 0.05)
    assert.equal(1, app:handled "orders")
    assert.is_true(math.abs(app:published("done")[1].data.at - os.time()) < 5)
    assert.matches("runs on the real clock", why(function() app:advance(1) end))
    assert.matches("an app still runs on the real clock", why(function() testing.start { dir = dir } end))
    assert.matches("clock must be virtual or real", why(function() testing.start { dir = dir, clock = "x" } end))
  end)

  it("has readable assertions", function()
    app:publish("orders", { id = 1, fails = 9 }, { id = "m-1" })
    app:publish("orders", { id = 2 }, { id = "m-2" })
    app:settle()
    assert.handled(app, "orders", 1)
    assert.dead(app, "orders", { id = "m-1", class = "transient", error = "not yet" })
    assert.dead(app, "orders.dead", 1)
    assert.published(app, "done", 1)
    local text = why(function() assert.handled(app, "orders", 2) end)
    assert.matches('pipeline "orders" handled 1, expected 2', text)
    assert.matches('m%-1: class transient, 6 attempts, "not yet: 6"', text)
    assert.matches('no dead letter with {"class":"invalid"}\nits dead letters:\n  m%-1: class transient',
      why(function() assert.dead(app, "orders", { class = "invalid" }) end))
    assert.matches('expected retries after 1, 2 s %(within 20 %%%).-m%-1 attempt 1 at 0 s: "not yet: 1"',
      why(function() assert.retried(app, "orders", { 1, 2 }) end))
    assert.matches('{"id":3} was expected\nthat is in channel "done":\n  {"at":',
      why(function() assert.published(app, "done", { id = 3 }) end))
    for _, asked in ipairs { function() assert.handled(app, "order", 1) end,
      function() assert.is_not.handled(app, "order", 1) end } do -- at the line of the spec, not at one of ours
      local told = why(asked)
      assert.matches('no pipeline "order"; did you mean "orders"%?', told)
      assert.is_nil(told:find("moonwire/testing", 1, true), told)
    end
    assert.matches("not expected: everything is settled", why(function() assert.is_not.settled(app) end))
    app:publish("orders", { id = 2 }, { delay = 5 })
    assert.matches("not settled: left are orders: 0 running, 0 in flight, 1 in its channel",
      why(function() assert.settled(app) end))
  end)
end)
