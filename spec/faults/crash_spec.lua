-- A message that kills its worker: found, isolated, dead-lettered. Those that ran beside it are handled.
local broker = require "spec.support.broker"
local cgroup = require "spec.support.cgroup"
local clock = require "spec.support.wait"
local process = require "spec.support.process"
local supervised = require "spec.support.supervised"
local C = require "moonwire.internal.cdef"

local late = supervised.late
local INNOCENTS = 20
-- A sanitizer would take a signal of ours for a fault of the program.
local asan = (os.getenv "ASAN_OPTIONS" or "") .. ":handle_segv=0"

C.mw_log_setup(0, 4)

-- The sandbox has nothing that ends a process: the spec does it when the poison has begun.
local HANDLER = [[
function M.handle(msg)
  trace("begin", msg)
  if msg.body == "poison" then
    mw.log.info("poison begun")
    mw.sleep(50)
  end
  mw.sleep(msg.attempt == 1 and msg.body == "slow" and 20 or 0.01)
  trace("done", msg)
end]]

describe("a message that kills its worker", function()
  teardown(function() process.cleanup() end)

  local function publish(s, innocents)
    local list = { { "poison", id = "poison", key = "bad" } }
    for i = 1, INNOCENTS do list[#list + 1] = { innocents, id = "m" .. i, key = "k" .. i } end
    for i = 1, INNOCENTS do list[#list + 1] = { "next", id = "n" .. i, key = "k" .. i } end
    list[#list + 1] = { "next", id = "n-bad", key = "bad" }
    local b = broker.open(s.url)
    b:publish("in", list)
    return b
  end

  -- Kills the worker that runs the poison, each time it begins it.
  local function strike(s, times)
    for n = 1, times do
      clock.until_(function() return s:count "poison begun" == n end, 20 * late, "poison to begin, time " .. n)
      local worker
      for k in s.child:stderr():gmatch "poison begun[^\n]* worker=(%d+)\n" do worker = k end
      if n == 1 and s.ready then s.ready() end
      s:kill_worker(worker, s.signal) -- as a crash of its own would end it
    end
  end

  local function check(s, b, deaths)
    broker.turn_until(function() return b:is_empty "in" end, 40 * late, "all to be settled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    local dead = b:messages "in.dead"
    assert.equal(1, #dead, s.child:stderr())
    assert.equal("poison", dead[1].id)
    assert.equal("crash", dead[1].headers["mw-dead-class"])
    assert.equal(("killed its worker %d times"):format(deaths), dead[1].headers["mw-dead-reason"])
    assert.equal(tostring(deaths), dead[1].headers["mw-dead-attempts"])
    assert.equal(deaths, s:count "poison begun")
    local done, at = {}, 0
    for _, line in ipairs(s.trace:of "done") do
      at = at + 1
      done[line.id] = done[line.id] or at -- again: its worker was killed before the ack stood
    end
    for i = 1, INNOCENTS do assert.is_true(done["m" .. i] < done["n" .. i], "key k" .. i .. " is out of order") end
    assert(done["n-bad"])
  end

  it("is given up after three, and the twenty beside it are handled, one at a time, in order", function()
    local s = supervised.scene { flags = { "--workers", "1" }, settings = "timeout = 60, retry = { attempts = 1 },",
                                 handler = HANDLER, env = { ASAN_OPTIONS = asan } }
    s.signal = "SEGV"
    s.ready = function()
      clock.until_(function() return s.trace:count "begin" == INNOCENTS + 1 end, 10 * late, "all to begin")
    end
    local b = publish(s, "slow")
    s:start()
    strike(s, 3)
    check(s, b, 3)
    local alone -- each suspect ends, or kills, before anything else begins
    for _, line in ipairs(s.trace:read()) do
      if alone and line.event == "begin" then
        assert(alone.id == "poison", line.id .. " began beside " .. alone.id)
      end
      if line.event == "begin" then
        alone = line.attempt > 1 and line or nil
        assert.is_true(line.attempt <= 2 or line.id == "poison", line.id)
      else
        alone = nil
      end
    end
    assert.equal(INNOCENTS + 2, s:count "suspect runs alone")
  end)

  it("is found with several workers too, by a limit of the project's own", function()
    local s = supervised.scene {
      settings = "timeout = 60, retry = { attempts = 1 },", handler = HANDLER,
      more = "mw.settings { workers = 3, crash_attempts = 2 }",
    }
    s.signal = "ABRT"
    local b = publish(s, "quick")
    s:start()
    strike(s, 2)
    check(s, b, 2)
  end)

  -- Two of them: while the letter of the first is on its way, the second kills the worker. What is known of the first
  -- must outlive that, or it would be tried all over again. They compute, so nothing ends them but the signal.
  it("is one of two that compute: each kills as often as it may, and no more", function()
    local s = supervised.scene {
      flags = { "--workers", "1" }, settings = "timeout = 60, retry = { attempts = 1 },", env = { ASAN_OPTIONS = asan },
      handler = [[
        function M.handle(msg)
          trace("begin", msg)
          if msg.body:find "^poison" then
            mw.log.info("poison begun")
            local ends = os.clock() + 50
            while os.clock() < ends do end
          end
          trace("done", msg)
        end]],
    }
    local list = { { "poison", id = "p1", key = "a" }, { "poison", id = "p2", key = "b" } }
    for i = 1, INNOCENTS do list[#list + 1] = { "good", id = "m" .. i, key = "k" .. i } end
    local b = broker.open(s.url)
    b:publish("in", list)
    s:start()
    for n = 1, 6 do -- its line is there, though it was the last thing that the worker did
      clock.until_(function() return s:count "poison begun" == n end, 20 * late, "poison to begin, time " .. n)
      s:kill_worker(1, "SEGV")
    end
    broker.turn_until(function() return b:is_empty "in" end, 40 * late, "all to be settled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    local dead, begun = {}, {}
    for _, letter in ipairs(b:messages "in.dead") do
      dead[letter.id] = letter.headers["mw-dead-class"] .. ": " .. letter.headers["mw-dead-reason"]
    end
    assert.same({ p1 = "crash: killed its worker 3 times", p2 = "crash: killed its worker 3 times" }, dead)
    for _, line in ipairs(s.trace:of "begin") do begun[line.id] = (begun[line.id] or 0) + 1 end
    assert.equal(3, begun.p1)
    assert.equal(3, begun.p2)
    local done = {}
    for _, line in ipairs(s.trace:of "done") do done[line.id] = true end
    for i = 1, INNOCENTS do assert.is_true(done["m" .. i], "m" .. i .. " is lost") end
  end)

  it("is not blamed for a drain that was cut short", function()
    local s = supervised.scene { flags = { "--workers", "1", "--drain", "0.2" }, settings = "timeout = 60,",
                                 handler = HANDLER }
    broker.open(s.url):publish("in", { { "poison", id = "poison" } })
    s:start()
    s:see "poison begun"
    s.child:kill "TERM"
    assert.equal(0, (s.child:wait(10 * late)))
    assert.equal(0, s:count "suspect")
  end)
end)

-- The kernel kills with the signal that everybody else uses, too. Only its count of such kills tells them apart.
describe("a message that takes all the memory there is", function()
  local MB = 1024 * 1024
  local group = cgroup.new((late > 1 and 700 or 100) * MB)

  teardown(function()
    process.cleanup()
    if group then group:remove() end
  end)

  if not group then
    it("is a crash by the rule; there is no memory cgroup here to see the kernel do it", function()
      local ffi = require "ffi"
      ffi.cdef "int mw_death_of(int status, bool ours, bool stuck, bool hungry);"
      local function death(signal, hungry) return ffi.C.mw_death_of(signal, false, false, hungry) end
      assert.equal(death(9, false), death(15, false))
      assert.equal(death(9, true), death(11, false))
      assert.not_equal(death(9, true), death(9, false))
    end)
    return
  end

  it("has its worker killed by the kernel, twice, and is a dead letter; the others are handled", function()
    local s = supervised.scene {
      group = group, flags = { "--workers", "2" }, settings = "timeout = 60, retry = { attempts = 1 },",
      more = "mw.settings { crash_attempts = 2, memory = '8GB' }",
      handler = [[
        function M.handle(msg)
          trace("begin", msg)
          local hoard = {}
          for i = 1, msg.body == "poison" and 4000 or 0 do hoard[i] = ("x"):rep(1024 * 1024 + i) end
          trace("done", msg)
        end]],
    }
    local list = { { "poison", id = "poison", key = "bad" } }
    for i = 1, INNOCENTS do list[#list + 1] = { "good", id = "m" .. i, key = "k" .. i } end
    local b = broker.open(s.url)
    b:publish("in", list)
    s:start()
    broker.turn_until(function() return b:is_empty "in" end, 60 * late, "all to be settled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    assert.equal(2, s:count 'signal=9 because="out of memory"', s.child:stderr())
    local dead = b:messages "in.dead"
    assert.equal(1, #dead, s.child:stderr())
    assert.equal("poison", dead[1].id)
    assert.equal("crash", dead[1].headers["mw-dead-class"])
    assert.equal("killed its worker 2 times", dead[1].headers["mw-dead-reason"])
    local done = {}
    for _, line in ipairs(s.trace:of "done") do done[line.id] = true end
    for i = 1, INNOCENTS do assert.is_true(done["m" .. i], "m" .. i .. " is lost") end
  end)
end)

describe("workers killed from outside", function()
  teardown(function() process.cleanup() end)

  -- Somebody kills at random, all the time: nobody is to blame, and nobody is blamed.
  it("bury nobody: thousands of messages, dozens of kills, all handled, in order", function()
    local workers, count, keys, kills = 4, late > 1 and 1500 or 4000, 50, late > 1 and 16 or 24
    local s = supervised.scene {
      flags = { "--workers", tostring(workers) },
      handler = [[function M.handle(msg) mw.sleep(0.004) trace("done", msg) end]],
      settings = "retry = { attempts = 1 }, concurrency = 16, buffer = { count = 256 },",
    }
    local list = {}
    for i = 1, count do list[i] = { id = "m" .. i, key = "k" .. i % keys } end
    s:publish(list)
    s:start()
    s:see "all workers started"
    local done, random = 0, 12345
    for n = 1, kills do
      random = (random * 1103515245 + 12345) % 2 ^ 31
      local worker = 1 + math.floor(random / 2 ^ 16) % workers
      local enough = math.min(count, done + math.floor(count / (kills + 4)))
      clock.until_(function() return s.trace:count "done" >= enough end, 60 * late, "some work, " .. n)
      done = s.trace:count "done"
      s:kill_worker(worker, n % 3 == 0 and "STOP" or "KILL")
      if n % 3 == 0 then s:kill_worker(worker, "KILL") end
    end
    clock.until_(function() return s:left "in" == 0 end, 120 * late, "all to be handled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    assert.equal(0, s:count "dead letter", s.child:stderr())
    assert.is_true(s:count "signal=9" >= kills / 2, "too few kills hit")
    local seen, last = {}, {}
    for _, line in ipairs(s.trace:of "done") do
      local i = tonumber(line.id:match "%d+")
      if not seen[i] then
        assert.is_true(i > (last[i % keys] or 0), line.id .. " is out of order")
        last[i % keys] = i
      end
      seen[i] = true
    end
    for i = 1, count do assert.is_true(seen[i], "m" .. i .. " is lost") end
  end)
end)

describe("a crash", function()
  teardown(function() process.cleanup() end)

  -- What is on the stack is destroyed from within the process: it ends with the next return.
  local CRASH = [[
function M.handle()
  mw.log.info("last words", { n = 42 })
  for line in io.lines "/proc/self/maps" do
    local from, to = line:match "^(%x+)-(%x+) .*%[stack%]"
    if from then
      from, to = tonumber(from, 16), tonumber(to, 16)
      local memory = io.open("/proc/self/mem", "r+b")
      memory:setvbuf "no"
      memory:seek("set", from)
      memory:write(("\1"):rep(to - from))
    end
  end
end]]

  for workers = 0, 1 do
    it("leaves the lines that were logged right before it, with --workers " .. workers, function()
      local s = supervised.scene { flags = { "--workers", tostring(workers) }, handler = CRASH,
                                   env = { ASAN_OPTIONS = asan } }
      s:publish { { id = "m1" } }
      s:start()
      s:see 'msg="last words"[^\n]* n=42'
      if workers == 0 then
        s.child:wait(20 * late)
        assert.equal(1, s:count "last words")
      else
        s.child:stop(20 * late)
      end
    end)
  end
end)
