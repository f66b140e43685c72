-- A worker that does not move: its handler sits in a C function, it was stopped, or its own watchdog is off. The
-- supervisor ends it from outside; the message it computed on is to blame, and nobody else.
local broker = require "spec.support.broker"
local clock = require "spec.support.wait"
local process = require "spec.support.process"
local project = require "spec.support.project"
local supervised = require "spec.support.supervised"
local C = require "moonwire.internal.cdef"

local late = supervised.late
local GRACE = 5 -- as in runtime/supervisor/vigil.h

C.mw_log_setup(0, 4)

local HANDLER = [[
function M.handle(msg)
  trace("begin", msg)
  if msg.body == "stuck" then
    local text = ("a"):rep(1e5)
    text:find(".-.-.-.-b")
  elseif msg.body == "spin" then
    while true do end
  elseif msg.body == "spin twice" and msg.attempt <= 2 then
    local till = os.clock() + 3
    while os.clock() < till do end
  elseif msg.body == "waits" and msg.attempt == 1 then
    mw.sleep(60)
  end
  trace("done", msg)
end]]

describe("a worker that is stuck", function()
  teardown(function() process.cleanup() end)

  it("is killed; its message is given up as timeout, the others are handled once more, in order", function()
    local s = supervised.scene { flags = { "--workers", "2" }, handler = HANDLER,
      settings = "timeout = 0.5, retry = { attempts = 2 }, lease = 10," }
    local list = { { "stuck", id = "bad", key = "bad key" } }
    for i = 1, 40 do list[#list + 1] = { "fine", id = "m" .. i, key = "k" .. i % 8 } end
    list[#list + 1] = { "fine", id = "after", key = "bad key" }
    local b = broker.open(s.url)
    b:publish("in", list)
    local began = clock.now()
    s:start()
    broker.turn_until(function()
      for _, line in ipairs(s.trace:of "begin") do
        if line.id == "bad" then return true end
      end
    end, 15 * late, "it to begin")
    -- Meanwhile: what can be known is told, and says who is stuck on what.
    local status = clock.until_(function()
      local found = s:status()
      for _, w in ipairs(found.workers) do
        if w.stale and w.id == "bad" and w.pipeline == "p" and w.still > 1 then return found end
      end
    end, 10 * late, "status to show the stuck worker")
    assert.equal(2, #status.workers)
    local text = s:ask("status").stdout
    assert(text:find "worker %d: stuck for [%d.]+s, handling message bad of pipeline p", text)
    for _, what in ipairs { "bad", "bad key" } do -- its id, and its key
      local explained = s:ask("explain", what)
      assert.equal(0, explained.code, explained.stdout .. explained.stderr)
      assert(explained.stdout:find "^Message bad is in pipeline p %(worker %d, process %d+%): a handler has it%.\n",
        explained.stdout)
      assert(explained.stdout:find "worker %d does not answer: its handler has computed on message bad of pipeline p",
        explained.stdout)
    end
    s:see('a handler is stuck past its timeout: its worker is killed" worker=%d pid=%d+ pipeline=p id=bad', 20)
    assert.is_true(clock.now() - began >= 0.5 + GRACE, "too early")
    broker.turn_until(function() return b:is_empty "in" end, 60 * late, "all to be settled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    local dead = b:messages "in.dead"
    assert.equal(1, #dead, s.child:stderr())
    assert.equal("bad", dead[1].id)
    assert.equal("timeout", dead[1].headers["mw-dead-class"])
    assert.equal("stuck past its timeout 2 times, and its worker was ended", dead[1].headers["mw-dead-reason"])
    assert.equal("2", dead[1].headers["mw-dead-attempts"])
    assert.equal(2, s:count "because=stuck", s.child:stderr())
    local last, seen = {}, 0
    for _, line in ipairs(s.trace:of "done") do
      local i = tonumber(line.id:match "^m(%d+)")
      if i then
        assert.is_true(i > (last[i % 8] or 0), line.id .. " is out of order")
        last[i % 8], seen = i, seen + 1
      end
    end
    assert.equal(40, seen)
  end)

  it("leaves handlers that merely waited in the same worker unsuspected", function()
    local s = supervised.scene { handler = HANDLER, settings = "timeout = 1, retry = { attempts = 2, base = 0.01 }," }
    local b = broker.open(s.url)
    b:publish("in", { { "waits", id = "w1" }, { "waits", id = "w2" }, { "stuck", id = "bad" } })
    s:start()
    broker.turn_until(function() return b:is_empty "in" end, 60 * late, "all to be settled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    local dead = b:messages "in.dead"
    assert.equal(1, #dead, s.child:stderr())
    assert.equal("bad", dead[1].id)
    assert.equal(1, s:count "suspect runs alone", s.child:stderr())
    assert.equal(0, s:count "suspect runs alone[^\n]*id=w")
    assert.equal(2, s.trace:count "done") -- each once: what has ended stands before the suspect begins
  end)

  it("is killed with the watchdog off as well, whatever loop it is in", function()
    local s = supervised.scene { handler = HANDLER, more = "mw.settings { watchdog = false }",
      settings = "timeout = 0.3, retry = { attempts = 1 }," }
    local b = broker.open(s.url)
    b:publish("in", { { "spin", id = "bad" }, { "fine", id = "m1" } })
    s:start()
    broker.turn_until(function() return b:is_empty "in" end, 60 * late, "all to be settled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    assert.equal("timeout", b:messages "in.dead"[1].headers["mw-dead-class"])
    assert.equal(1, s.trace:count "done")
  end)

  it("is killed and replaced when somebody stopped it; its message is handled", function()
    local s = supervised.scene { flags = { "--workers", "2" }, handler = HANDLER,
      settings = "timeout = 5, lease = 10," }
    local b = broker.open(s.url)
    s:start()
    s:see "all workers started"
    b:publish("in", { { "spin twice", id = "m1" } })
    broker.turn_until(function() return s.trace:count "begin" == 1 end, 10 * late, "it to begin")
    local worker = clock.until_(function()
      for _, w in ipairs(s:status().workers) do
        if w.id == "m1" then return w.worker end
      end
    end, 5 * late, "the worker that has it")
    s:kill_worker(worker, "STOP")
    s:see("its worker is killed\" worker=" .. worker, 30)
    broker.turn_until(function() return b:is_empty "in" end, 60 * late, "it to be settled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    assert.equal(0, #b:messages "in.dead")
    assert.equal(1, s:count "because=stuck")
  end)

  it("is killed when it was stopped outside of any handler, and nobody is blamed", function()
    local s = supervised.scene { handler = HANDLER, settings = "timeout = 90, lease = 60, retry = { attempts = 1 }," }
    local b = broker.open(s.url)
    s:start()
    b:publish("in", { { "waits", id = "w1" }, { "waits", id = "w2" } })
    broker.turn_until(function() return s.trace:count "begin" == 2 end, 10 * late, "them to begin")
    s:kill_worker(1, "STOP")
    s:see('msg="a worker hangs: it is killed" worker=1', 40)
    broker.turn_until(function() return b:is_empty "in" end, 60 * late, "them to be settled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    assert.equal(0, #b:messages "in.dead", s.child:stderr())
    assert.equal(2, s.trace:count "done")
  end)

  it("is not what a project becomes that never ends being read: the old code keeps running", function()
    local s = supervised.scene { handler = HANDLER }
    s:start()
    s:see "all workers started"
    local endless = "while true do pcall(function() while true do end end) end"
    project.write(s.dir .. "/handlers/p.lua", project.handler(endless))
    local refused = s:ask "reload"
    assert.equal(78, refused.code, refused.stdout)
    assert(refused.stderr:find "worker 1: [^\n]*handlers/p.lua:%d+: still not read after 10 s", refused.stderr)
    s:publish { { id = "m1" } }
    clock.until_(function() return s.trace:count "done" == 1 end, 15 * late, "the message")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    assert.equal(1, s:count "worker begins", s.child:stderr())
  end)
end)
