-- app:http of moonwire.testing: what the project asks for is answered by the spec.
local project = require "spec.support.project"
local process = require "spec.support.process"
local testing = require "moonwire.testing"

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect "embedded:data"
mw.pipeline "stock" {
  from = broker:channel "stock", handler = "handlers.stock", timeout = 300,
  retry = { attempts = 3, backoff = { 3600, 7200 }, jitter = 0 },
}
mw.pipeline "hook" { from = broker:channel "hook", handler = "webhook", retry = { attempts = 3, base = 60, jitter = 0 },
  options = { url = "https://shop.example/hook", timeout = 5 } }
]]

local STOCK = [[
local mw = require "moonwire"
return {
  handle = function(msg)
    local reply = mw.http.post("https://stock.example/reserve?item=" .. msg.data.item, { n = msg.data.n },
      { headers = { ["X-Trace"] = msg.id } })
    if not reply.ok then error("stock says " .. reply.status, 0) end
    mw.publish("reserved", { item = msg.data.item, left = reply:json().left, took = reply.elapsed,
      from = reply.headers["X-From"] })
  end,
}
]]

describe("app:http", function()
  local dir = process.tmpdir()
  process.run { "mkdir", "-p", dir .. "/handlers" }
  project.write(dir .. "/moonwire.lua", MAIN)
  project.write(dir .. "/handlers/stock.lua", STOCK)
  local app

  before_each(function() app = testing.start { dir = dir } end)
  after_each(function() app:stop() end)
  teardown(function() process.cleanup() end)

  it("answers with a function", function()
    app:http(function(request)
      assert(request.method == "POST" and request.headers["x-trace"] == "m-1", request.url)
      return { body = { left = 10 - request.data.n }, headers = { ["X-From"] = "spec" }, delay = 2.5 }
    end)
    app:publish("stock", { item = "cup", n = 3 }, { id = "m-1" })
    app:settle()
    assert.published(app, "reserved", { { item = "cup", left = 7, took = 2.5, from = "spec" } })
    assert.equal(2.5, app:now())
    assert.equal("https://stock.example/reserve?item=cup", app:requests()[1].url)
    assert.equal("application/json", app:requests()[1].headers["Content-Type"])
  end)

  it("answers by pattern, one after the other", function()
    app:http {
      ["POST https://stock.example/*"] = { 503, { status = 500, body = "no" }, { body = { left = 1 } } },
      ["https://shop.example/hook"] = function() return 204 end,
    }
    app:publish("stock", { item = "cup", n = 3 })
    app:publish("hook", { n = 1 })
    app:settle()
    assert.handled(app, "hook", 1)
    assert.handled(app, "stock", 1)
    assert.retried(app, "stock", { 3600, 7200 }, 0)
    assert.equal("stock says 500", app:retries("stock")[2].error)
    assert.equal(4, #app:requests())
  end)

  it("can fail, and keep silent", function()
    app:http { ["https://stock.example/*"] = { { error = "connection refused", kind = "connect" }, { timeout = true },
      { body = { left = 0 } } } }
    app:publish("stock", { item = "cup", n = 3 })
    app:settle()
    local retries = app:retries "stock"
    assert.matches("POST stock.example: connection refused", retries[1].error)
    assert.matches("timed out waiting for the response %(after 30.000 s%)", retries[2].error)
    assert.equal(3600 + 30, retries[2].at)
    assert.handled(app, "stock", 1)
  end)

  it("fails the test for a request that nobody foresaw", function()
    app:http { ["GET https://stock.example/*"] = 200 }
    local ok, err = pcall(function()
      app:publish("stock", { item = "cup", n = 3 })
      app:settle()
    end)
    assert.is_false(ok)
    assert.equal("unexpected request: POST https://stock.example/reserve?item=cup; "
      .. "answered are GET https://stock.example/*", err)
  end)

  it("fails the test when a fake fails, or answers nonsense", function()
    local function problem(answers)
      app:stop()
      app = testing.start { dir = dir }
      app:http(answers)
      local ok, err = pcall(function()
        app:publish("stock", { item = "cup", n = 3 })
        app:settle()
      end)
      assert.is_false(ok)
      return tostring(err)
    end
    assert.matches("testing_http_spec.lua:%d+: oh no", problem(function() error "oh no" end))
    assert.matches("an answer to a request cannot run the app", problem(function() app:crash() end))
    assert.matches('a reply has no field "stats"', problem { ["*"] = { stats = 200 } })
    assert.matches("the reply's status must be a number, got a string", problem { ["*"] = { status = "200" } })
    assert.matches("expected a reply %(a table, a status or a body%), got a boolean", problem { ["*"] = true })
    assert.matches("expected a function or a table, got a number", select(2, pcall(app.http, app, 5)))
  end)

  it("survives a crash and a cancelled request", function()
    app:http { ["*"] = { { timeout = true }, { delay = 50, body = "x" }, { body = { left = 0 } } } }
    app:publish("stock", { item = "cup", n = 3 })
    app:run()
    app:crash()
    app:run()
    app:crash()
    app:settle()
    assert.handled(app, "stock", 1)
  end)

  it("goes back to the network", function()
    app:http { ["*"] = 500 }
    app:http(nil)
    assert.same({}, app:requests())
  end)
end)
