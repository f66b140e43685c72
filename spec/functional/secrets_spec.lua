-- A secret in a broker's address is shown nowhere: not in logs, in figures, in dead letters, in what commands say.
local process = require "spec.support.process"
local project = require "spec.support.project"
local servers = require "spec.support.servers.redis"
local wait = require "spec.support.wait"

local SECRET = "hunter2"

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect(mw.env "BROKER_URL")
local r = mw.redis(mw.env "BROKER_URL")
mw.pipeline "p" {
  from = broker:channel "in",
  handler = function(msg)
    r:incr "seen"
    if msg.body == "slow" then mw.sleep(30) end
    error("no", 0)
  end,
  retry = { attempts = 1 }, dedupe = { ttl = 60 }, timeout = 40,
}
]]

describe("a secret in an address", function()
  local server, dir, said
  lazy_setup(function()
    server = servers.start()
    server:call("CONFIG", "SET", "requirepass", SECRET)
  end)
  lazy_teardown(function() server:kill() end)
  before_each(function()
    dir, said = process.tmpdir(), {}
    project.write(dir .. "/moonwire.lua", MAIN)
    server:call("AUTH", SECRET)
    server:call "FLUSHALL"
  end)

  local function note(what, text)
    said[#said + 1] = text
    assert.is_nil(text:find(SECRET, 1, true), what .. " tells it: " .. text)
  end

  local function moonwire(url, ...)
    local result = process.run { { os.getenv "MOONWIRE_BIN", ... }, env = { BROKER_URL = url }, cwd = dir,
      timeout = 60 }
    note(table.concat({ ... }, " "), result.stdout .. result.stderr)
    return result
  end

  it("is left out by everything that works", function()
    local url = ("redis://%s@127.0.0.1:%d/0"):format(SECRET, server.port)
    assert.equal(0, moonwire(url, "check").code)
    moonwire(url, "publish", "in", "bad", "--id", "m1")
    moonwire(url, "publish", "in", "slow", "--id", "m2")
    local child = process.spawn { { os.getenv "MOONWIRE_BIN", "run", "--log-level", "debug" }, cwd = dir,
      env = { BROKER_URL = url }, stderr = dir .. "/log", stdout = dir .. "/log" }
    finally(function() child:kill "KILL" child:wait(5) end)
    wait.until_(function() return server:call("XLEN", "in.dead") == 1 and server:call("GET", "seen") == "2" end, 20,
      "a dead letter, and one that runs")
    for _, command in ipairs {
      { "status" }, { "status", "--json" }, { "status", "--each" }, { "explain", "m1" }, { "explain", "m2", "--json" },
      { "explain", "nowhere", "--json" }, { "tail", "in", "--from", "start", "--count", "1", "--json" },
      { "dlq", "ls", "in.dead" }, { "dlq", "ls", "in.dead", "--json" }, { "dlq", "show", "in.dead", "m1" },
      { "dlq", "show", "in.dead", "m1", "--json" }, { "dlq", "spec", "in.dead", "m1" }, { "groups", "ls", "in" },
      { "topology", "plan", "--json" }, { "reload" }, { "dlq", "replay", "in.dead", "m1", "--yes" },
    } do
      moonwire(url, unpack(command))
    end
    for _, entry in ipairs(server:call("XRANGE", "in.dead", "-", "+")) do
      note("a dead letter", table.concat(entry[2], " "))
    end
    child:kill "TERM"
    child:kill "TERM"
    child:wait(15)
    local log = assert(io.open(dir .. "/log")):read "*a"
    note("the log", log)
    assert.truthy(log:find(("redis://127.0.0.1:%d/0"):format(server.port), 1, true), log)
  end)

  it("is left out of complaints, whatever the broker", function()
    local port, children = process.free_port(), {}
    for _, url in ipairs {
      ("redis://%s@127.0.0.1:%d?timeout=1"):format(SECRET, port),
      ("redis://%s@127.0.0.1:%d/x"):format(SECRET, port),
      ("redis://:%s@127.0.0.1:%d?timout=1"):format(SECRET, port),
      ("redis://:%s/x@127.0.0.1:%d"):format(SECRET, port),
      ("redis://:x?%s@127.0.0.1:%d"):format(SECRET, port),
      ("redis://127.0.0.1:%d?sentinel=m&sentinel_password=%s&timeout=1"):format(port, SECRET),
      ("rediss://:%s@127.0.0.1:%d?ca=nowhere.pem"):format(SECRET, port),
      ("amqp://me:%s@127.0.0.1:%d/v"):format(SECRET, port),
      ("amqp://%s@127.0.0.1:%d/v"):format(SECRET, port),
      ("amqp://me:%s/x@127.0.0.1:%d/v"):format(SECRET, port),
      ("kafka://me:%s@127.0.0.1:%d"):format(SECRET, port),
      ("kafka://127.0.0.1:%d?security.protocol=sasl_plaintext&sasl.username=me&sasl.password=%s"):format(port, SECRET),
      ("kafka://127.0.0.1:%d?sasl.password=%s"):format(port, SECRET),
      ("kafka://127.0.0.1:%d?ssl.key.pem=%s&security.protocol=ssl"):format(port, SECRET),
      ("nats://%s@127.0.0.1:%d"):format(SECRET, port),
      SECRET .. "@127.0.0.1",
    } do
      for _, command in ipairs { { "check" }, { "run", "--once" }, { "dlq", "ls", "in.dead" } } do
        local log = ("%s/log%d"):format(dir, #children)
        local child = process.spawn { { os.getenv "MOONWIRE_BIN", unpack(command) }, cwd = dir, stderr = log,
          stdout = log, env = { BROKER_URL = url } }
        children[#children + 1] = { child = child, log = log, what = table.concat(command, " ") .. " " .. url }
      end
    end
    local patience = wait.now() + 15 -- a worker waits for its broker
    for _, c in ipairs(children) do
      c.child:wait(math.max(0, patience - wait.now()))
      c.child:kill "KILL"
      c.child:wait(5)
      local text = assert(io.open(c.log)):read "*a"
      said[#said + 1] = text
      assert.is_nil(text:find(SECRET, 1, true), c.what .. " tells it: " .. text)
    end
    assert.is_true(#table.concat(said) > 1000)
  end)
end)
