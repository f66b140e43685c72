-- Many processes on one store, and processes that end at any instant.
local broker = require "spec.support.broker"
local clock = require "spec.support.wait"
local process = require "spec.support.process"
local project = require "spec.support.project"
local C = require "moonwire.internal.cdef"

local binary = os.getenv "MOONWIRE_BIN"
local late = binary:find "asan" and 3 or 1
local scale = tonumber(os.getenv "MW_SCALE") or (late > 1 and 0.2 or 1)

C.mw_log_setup(0, 4)

local function scene(given)
  local dir = process.tmpdir()
  local self = { url = "embedded:" .. dir .. "/store?size=4GB", trace = project.trace(dir .. "/trace"), count = 0 }
  function self.start()
    self.count = self.count + 1
    local name = "w" .. self.count
    project.make(dir .. "/" .. name, given, self.trace.path, name)
    return process.spawn { { binary, "run", dir .. "/" .. name, "--workers", "0" }, env = { BROKER_URL = self.url } }
  end
  return self
end

local function wait_empty(b, channel, seconds)
  broker.turn_until(function() return b:is_empty(channel) end, seconds * late, "channel " .. channel .. " to be empty")
end

describe("SIGKILL at any instant", function()
  teardown(function() process.cleanup() end)

  it("loses nothing and doubles nothing between two stages of a pipeline", function()
    local n = math.max(500, math.floor(5000 * scale))
    local s = scene {
      settings = "buffer = { count = 128 }, retry = { attempts = 1000, base = 0.01 },",
      more = [[mw.pipeline "q" { from = broker:channel "mid", handler = "handlers.q", buffer = { count = 128 } }]],
      handler = [[function M.handle(msg) mw.publish("mid", msg.body, { id = msg.id, key = msg.key }) end]],
      files = { ["handlers/q.lua"] = [[
        local mw = require "moonwire"
        return { handle = function(msg) mw.publish("out", msg.body, { id = msg.id, key = msg.key }) end }]] },
    }
    local b = broker.open(s.url)
    local list = {}
    for i = 1, n do list[i] = { tostring(i), id = "m" .. i, key = "k" .. i % 20 } end
    b:publish("in", list)
    local kills = 0
    local child = s.start()
    local deadline = clock.now() + 60 * late
    while clock.now() < deadline and kills < 12 do
      clock.sleep(0.05 * late + math.random() * 0.1 * late)
      child:kill "KILL"
      child:wait(10)
      kills = kills + 1
      child = s.start()
    end
    wait_empty(b, "in", 60)
    wait_empty(b, "mid", 60)
    clock.until_(function() return child:stderr():find "started" end, 10 * late, "the last worker to start")
    assert.equal(0, child:stop(20))
    local seen, order = {}, {}
    for _, m in ipairs(b:messages "out") do
      assert.is_nil(seen[m.id], m.id .. " arrived twice")
      seen[m.id] = true
      assert.is_true(tonumber(m.body) > (order[m.key] or 0), "key " .. m.key .. " is out of order")
      order[m.key] = tonumber(m.body)
    end
    for i = 1, n do assert.is_true(seen["m" .. i], "m" .. i .. " is lost") end
  end)
end)

describe("many processes on one store", function()
  teardown(function() process.cleanup() end)

  it("publish, consume and look at once: each message once, none lost", function()
    local n, publishers = math.max(200, math.floor(2000 * scale)), 3
    local s = scene { settings = "concurrency = 8,", handler = [[function M.handle(msg) trace("done", msg) end]] }
    local workers = { s.start(), s.start() }
    local children = {}
    for p = 1, publishers do
      local lines = {}
      for i = 1, n do lines[i] = ('{"id":"p%d-%d","k":"k%d"}'):format(p, i, i % 30) end
      children[p] = process.spawn {
        { binary, "publish", "--broker", s.url, "in", "--lines", "--id-path", "id", "--key-path", "k" },
        stdin = table.concat(lines, "\n") .. "\n",
      }
    end
    clock.until_(function() return workers[1]:stderr():find "msg=started" end, 15 * late, "the store to be there")
    for _ = 1, 5 do
      local look = process.run { binary, "tail", "--broker", s.url, "in", "--no-follow" }
      assert.equal(0, look.code, look.stderr)
    end
    for _, child in ipairs(children) do assert.equal(0, child:wait(30 * late), child:stderr()) end
    clock.until_(function() return s.trace:count "done" >= n * publishers end, 30 * late, "all to be handled")
    wait_empty(broker.open(s.url), "in", 10)
    for _, child in ipairs(workers) do assert.equal(0, child:stop(20)) end
    local seen, last = {}, {}
    for _, line in ipairs(s.trace:of "done") do
      assert.is_nil(seen[line.id], line.id .. " was handled twice")
      seen[line.id] = true
      local publisher, number = line.id:match "^p(%d+)%-(%d+)$"
      local lane = publisher .. " " .. tonumber(number) % 30
      assert.is_true(tonumber(number) > (last[lane] or 0), line.id .. " is out of order")
      last[lane] = tonumber(number)
    end
    assert.equal(n * publishers, s.trace:count "done")
  end)
end)

describe("signals", function()
  teardown(function() process.cleanup() end)

  local SLOW = { drain = 1, settings = "timeout = 60,", handler = [[
    function M.handle(msg) trace("begin", msg) mw.sleep(30) trace("done", msg) end]] }

  local function begun(given)
    local s = scene(given)
    broker.open(s.url):publish("in", { { "x", id = "m1" } })
    local child = s.start()
    clock.until_(function() return s.trace:count "begin" == 1 end, 10 * late, "the handler to begin")
    return child, s
  end

  it("a second one ends it now, with exit code 1", function()
    local child, s = begun(SLOW)
    child:kill "TERM"
    clock.until_(function() return child:stderr():find "draining" end, 5 * late, "the drain to begin")
    child:kill "INT"
    assert.equal(1, child:wait(5 * late))
    assert.equal(1, #broker.open(s.url):messages "in")
  end)

  it("a drain ends at its limit, and what still ran comes again", function()
    local child, s = begun(SLOW)
    child:kill "TERM"
    local before = clock.now()
    assert.equal(0, child:wait(10 * late))
    assert.is_true(clock.now() - before > 0.9)
    assert.equal(1, #broker.open(s.url):messages "in")
  end)

  it("before the first message, INT and TERM end it with 0", function()
    for _, signal in ipairs { "INT", "TERM" } do
      local s = scene { handler = "function M.handle() end" }
      local child = s.start()
      clock.until_(function() return child:stderr():find "started" end, 10 * late, "the start")
      child:kill(signal)
      assert.equal(0, child:wait(10 * late), child:stderr())
    end
  end)
end)
