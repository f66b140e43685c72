-- A dedupe store that is away: no handler has run, so the messages wait for it and no attempt is counted.
local process = require "spec.support.process"
local project = require "spec.support.project"
local servers = require "spec.support.servers.redis"
local wait = require "spec.support.wait"

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect "embedded:data"
mw.pipeline "p" {
  from = broker:channel "in", dedupe = { ttl = 60, store = mw.connect %q }, timeout = %d, concurrency = 4,
  retry = { attempts = 2, base = 0.05, cap = 0.05, classes = { outage = { pause = 0.3, cap = 0.3 } } },
  handler = function(msg)
    local file = io.open("handled", "a")
    file:write(msg.id, " ", msg.attempt, "\n")
    file:close()
  end,
}
]]

describe("a dedupe store that is away", function()
  local server, dir, child
  before_each(function()
    server, dir = servers.start(), process.tmpdir()
  end)
  after_each(function()
    if child then child:kill "KILL" child:wait(5) end
    server.child:kill "CONT"
    server:kill()
    child = nil
  end)

  local function publish(id)
    local result = process.run { { os.getenv "MOONWIRE_BIN", "publish", "-b", "embedded:data", "in", "x", "--id", id },
      cwd = dir, timeout = 20 }
    assert.equal(0, result.code, result.stderr)
  end

  local function handled()
    local list, file = {}, io.open(dir .. "/handled")
    if not file then return list end
    for line in file:lines() do list[#list + 1] = line end
    file:close()
    table.sort(list)
    return list
  end

  local function log() return assert(io.open(dir .. "/log")):read "*a" end

  local function run(of_handler, of_store)
    local url = ("redis://127.0.0.1:%d?timeout=%d"):format(server.port, of_store)
    project.write(dir .. "/moonwire.lua", MAIN:format(url, of_handler))
    child = process.spawn { { os.getenv "MOONWIRE_BIN", "run", "--log-level", "debug" }, cwd = dir,
      stderr = dir .. "/log" }
    publish "m0"
    wait.until_(function() return #handled() == 1 end, 15, "the first message")
  end

  local function outlives(away, back, says)
    away()
    for i = 1, 5 do publish("m" .. i) end
    wait.until_(function() return select(2, log():gsub("source paused", "")) >= 4 end, 25, "several pauses")
    assert.matches(says, log())
    assert.same({ "m0 1" }, handled())
    back()
    wait.until_(function() return #handled() == 6 end, 25, "all messages")
    assert.same({ "m0 1", "m1 1", "m2 1", "m3 1", "m4 1", "m5 1" }, handled())
    assert.is_nil(log():find("dead letter", 1, true), log())
  end

  it("stopped and started again", function()
    run(10, 1)
    outlives(function() server:kill() end, function() server:start() end, "class=outage [^\n]*error=\"dedupe: redis: ")
  end)

  it("silent, for longer than a handler may take", function()
    run(1, 3)
    outlives(function() server.child:kill "STOP" end, function() server.child:kill "CONT" end,
      "dedupe: the store did not answer within 1 s")
  end)
end)
