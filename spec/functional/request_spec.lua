-- mw.request and mw.reply on brokers without a way back of their own, in specs with the virtual clock and in processes.
local process = require "spec.support.process"
local project = require "spec.support.project"

local binary = os.getenv "MOONWIRE_BIN"

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "embedded:data"))
mw.pipeline "prices" { from = broker:channel "prices", order = "none", handler = function(msg)
  if msg.data.item == "silent" then return end
  mw.sleep(2)
  mw.reply({ price = #msg.data.item, to = msg.reply_to }, { headers = { by = "prices" } })
end }
mw.pipeline "orders" { from = broker:channel "orders", retry = { attempts = 1 }, handler = function(msg)
  local reply = mw.request("prices", { item = msg.body }, { timeout = 5 })
  mw.publish("priced", { item = msg.body, price = reply.data.price, by = reply.headers.by })
end }
mw.pipeline "impolite" { from = broker:channel "impolite", retry = { attempts = 1 },
  handler = function() mw.reply "to nobody" end }
mw.pipeline "strict" { from = broker:channel "strict", retry = { attempts = 1 },
  handler = function() mw.request("prices", {}, { timeout = 0 }) end }
]]

local SPEC = [[
local testing = require "moonwire.testing"

describe("requests", function()
  local app
  before_each(function() app = testing.start() end)
  after_each(function() app:stop() end)

  it("are answered, each with its own reply", function()
    for i = 1, 20 do app:publish("orders", ("x"):rep(i)) end
    app:settle()
    local priced = app:published "priced"
    assert.equal(20, #priced)
    for _, m in ipairs(priced) do
      assert.equal(#m.data.item, m.data.price)
      assert.equal("prices", m.data.by)
    end
  end)

  it("give up in time", function()
    app:publish("orders", "silent")
    app:settle()
    local dead = app:dead "orders"
    assert.equal(1, #dead)
    assert.matches("request to prices: no reply in time", dead[1].headers["mw-dead-last-error"])
  end)

  it("say what is wrong", function()
    app:publish("impolite", "x")
    app:publish("strict", "x")
    app:settle()
    assert.matches("asks for no reply", app:dead("impolite")[1].headers["mw-dead-last-error"])
    assert.matches("timeout must be seconds", app:dead("strict")[1].headers["mw-dead-last-error"])
  end)
end)
]]

describe("requests and replies", function()
  teardown(function() process.cleanup() end)

  it("work in the specs of a project", function()
    local dir = process.tmpdir()
    process.run { "mkdir", "-p", dir .. "/spec" }
    project.write(dir .. "/moonwire.lua", MAIN)
    project.write(dir .. "/spec/requests_spec.lua", SPEC)
    local result = process.run { { binary, "test", dir }, timeout = 60 }
    assert.equal(0, result.code, result.stdout .. result.stderr)
    assert.matches("3 successes", result.stdout)
  end)

  it("work on the embedded broker", function()
    local dir = process.tmpdir()
    project.write(dir .. "/moonwire.lua", (MAIN:gsub("mw.sleep%(2%)", "")))
    local env = { BROKER_URL = "embedded:data" }
    for _, body in ipairs { "tea", "cup" } do
      local sent = process.run { { binary, "publish", "orders", body }, cwd = dir, env = env }
      assert.equal(0, sent.code, sent.stderr)
    end
    local result = process.run { { binary, "run", dir, "--once" }, timeout = 60 }
    assert.equal(0, result.code, result.stderr)
    local seen = process.run { { binary, "tail", "priced", "--no-follow" }, cwd = dir, env = env }
    assert.matches('"price":3', seen.stdout)
    assert.equal(2, select(2, seen.stdout:gsub("prices", "")))
  end)
end)
