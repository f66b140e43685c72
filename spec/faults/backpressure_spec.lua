-- A broker that does not read: what handlers published waits in memory, and only as much as the buffer allows.
local process = require "spec.support.process"
local project = require "spec.support.project"
local servers = require "spec.support.servers.redis"
local wait = require "spec.support.wait"

local MANY, SIZE = 1500, 100000

local MAIN = [[
local mw = require "moonwire"
local from, to = mw.connect(mw.env "FROM"), mw.connect(mw.env "TO")
local out = to:channel "out"
mw.pipeline "p" {
  from = from:channel "in", concurrency = 200, buffer = { bytes = 4194304, count = 2000 },
  handler = function(msg) mw.publish(out, ("x"):rep(%d), { key = msg.id }) end,
}
]]

-- How many different keys there are in the stream, told by the server.
local DISTINCT = [[
  local seen, n, from = {}, 0, "-"
  while true do
    local page = redis.call("XRANGE", "out", from, "+", "COUNT", 20)
    for _, entry in ipairs(page) do
      from = "(" .. entry[1]
      for i = 1, #entry[2], 2 do
        if entry[2][i] == "key" and not seen[entry[2][i + 1] ] then seen[entry[2][i + 1] ], n = true, n + 1 end
      end
    end
    if #page == 0 then return n end
  end
]]

describe("a Redis server that is stopped", function()
  local server, url, dir, child
  before_each(function()
    server, dir = servers.start { extra = { "--appendonly", "no" } }, process.tmpdir()
    url = "redis://127.0.0.1:" .. server.port
    project.write(dir .. "/moonwire.lua", MAIN:format(SIZE))
  end)
  after_each(function()
    if child then child:kill "KILL" child:wait(5) end
    server.child:kill "CONT"
    server:kill()
    child = nil
  end)

  local function start(from)
    child = process.spawn { { os.getenv "MOONWIRE_BIN", "run", "--workers", "0" }, cwd = dir, stderr = dir .. "/log",
      env = { FROM = from, TO = url } }
    wait.until_(function() return server:call("XLEN", "out") >= 20 end, 30, "the first of them")
  end

  local function stays_small()
    local before, most = process.rss(child.pid), 0
    server.child:kill "STOP"
    for _ = 1, 50 do
      wait.sleep(0.1)
      most = math.max(most, process.rss(child.pid) - before)
    end
    server.child:kill "CONT"
    wait.until_(function() return server:call("XLEN", "out") >= MANY end, 60, "all of them")
    assert.equal(MANY, server:call("EVAL", DISTINCT, 0))
    assert(most < 60 * 2 ^ 20, ("it grew by %.0f MB"):format(most / 2 ^ 20))
    local log = assert(io.open(dir .. "/log")):read "*a"
    assert.is_nil(log:find("dead letter", 1, true), log)
  end

  it("holds up what reads from it and writes to it", function()
    local fill = [[for i = 1, tonumber(ARGV[1]) do redis.call("XADD", "in", "*", "id", "m" .. i, "body", "x") end]]
    server:call("EVAL", fill, 0, MANY)
    start(url)
    stays_small()
  end)

  it("holds up what reads from another broker and writes to it", function()
    local lines = {}
    for i = 1, MANY do lines[i] = "m" .. i end
    local sent = process.run { { os.getenv "MOONWIRE_BIN", "publish", "-b", "embedded:data", "in", "--lines" },
      cwd = dir, env = { FROM = "embedded:data", TO = url }, stdin = table.concat(lines, "\n") .. "\n", timeout = 60 }
    assert.equal(0, sent.code, sent.stderr)
    start "embedded:data"
    stays_small()
  end)
end)
