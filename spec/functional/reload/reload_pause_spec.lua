-- A pause is of a pipeline's name: it holds when a reload makes the pipeline read from elsewhere, when it has to wait
-- for the one before, and when its worker dies; and so does its end.
local clock = require "spec.support.wait"
local process = require "spec.support.process"
local project = require "spec.support.project"
local supervised = require "spec.support.supervised"

local late = supervised.late
local SLOW = 2 -- seconds: long enough to be in flight while the pipeline changes

local MAIN = [[
local mw = require "moonwire"
mw.pipeline "p" { from = mw.connect(mw.env "BROKER_URL"):channel "%s", handler = "handlers.p", order = "%s" }
]]
local HANDLER = [[
function M.handle(msg)
  trace("begin", msg)
  if msg.id == "slow" then mw.sleep(%g) end
  trace("done", msg)
end]]

describe("a paused pipeline", function()
  teardown(function() process.cleanup() end)

  local s
  after_each(function()
    if s.child:alive() then s.child:stop(20) end
  end)

  local function start(workers)
    s = supervised.scene { flags = { "--workers", tostring(workers) }, handler = HANDLER:format(SLOW * late) }
    project.write(s.dir .. "/moonwire.lua", MAIN:format("in", "key"))
    s:start()
    s:see(workers == 0 and "msg=started" or "all workers started")
    s:publish { { id = "slow" } }
    clock.until_(function() return s.trace:count "begin" == 1 end, 10 * late, "the slow one to begin")
  end

  local function ask(...)
    local result = s:ask(...)
    assert.equal(0, result.code, result.stderr)
  end

  local function change(channel, order)
    project.write(s.dir .. "/moonwire.lua", MAIN:format(channel, order))
    ask "reload"
  end

  local function publish(channel, id)
    local sent = process.run { supervised.binary, "publish", "--broker", s.url, channel, "x", "--id", id }
    assert.equal(0, sent.code, sent.stderr)
  end

  local function slow_ends()
    clock.until_(function() return s.trace:count "done" >= 1 end, 3 * SLOW * late, "the slow one to end")
  end

  it("is not taken for a folder without a word of how to name it", function()
    start(1)
    local result = s:ask("pause", "p")
    assert.equal(64, result.code)
    assert.matches('no folder "p"; pipelines stand after the folder: moonwire pause . p', result.stderr, 1, true)
  end)

  for workers = 0, 1 do
    it("is paused when it reads from elsewhere, with --workers " .. workers, function()
      start(workers)
      ask("pause", ".", "p")
      change("other", "key")
      local _, p = s:status()
      assert.same({ true, 1, false }, { p.paused, p.workers, p.draining }) -- the one from before drains
      publish("other", "m1")
      slow_ends()
      clock.sleep(0.5)
      assert.equal(1, s.trace:count "begin")
      ask("resume", ".", "p")
      clock.until_(function() return s.trace:count "done" == 2 end, 10 * late, "m1")
    end)

    it("is paused, or not, as it was told while it waited to start, with --workers " .. workers, function()
      for _, last in ipairs { "pause", "resume" } do
        start(workers)
        ask("pause", ".", "p")
        change("in", "source")
        if last == "resume" then ask("resume", ".", "p") end
        publish("in", "m1")
        slow_ends()
        s:see 'msg="pipeline started"'
        if last == "pause" then
          clock.sleep(0.5)
          assert.equal(1, s.trace:count "begin")
          ask("resume", ".", "p")
        end
        clock.until_(function() return s.trace:count "done" == 2 end, 10 * late, "m1 after " .. last)
        s.child:stop(20)
      end
    end)
  end

  it("stays so when its worker dies, after a reload has changed it", function()
    start(1)
    change("other", "key")
    slow_ends()
    clock.until_(function() return #s:status().pipelines == 1 end, 10 * late, "the one from before to end")
    ask("pause", ".", "p")
    local before = s:pid(1)
    s:kill_worker(1)
    local p
    clock.until_(function()
      p = select(2, s:status())
      return s:pid(1) ~= before and p.workers == 1
    end, 15 * late, "the next worker")
    assert.is_true(p.paused)
    publish("other", "m1")
    clock.sleep(0.5)
    assert.equal(1, s.trace:count "begin")
  end)
end)
