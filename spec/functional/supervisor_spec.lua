-- run --workers: a supervisor keeps worker processes running, passes signals on, and tells systemd.
local bit = require "bit"
local clock = require "spec.support.wait"
local ffi = require "ffi"
local process = require "spec.support.process"
local project = require "spec.support.project"
local supervised = require "spec.support.supervised"

local binary, late = supervised.binary, supervised.late

ffi.cdef [[long mwt_recv(int fd, void *buffer, size_t size, int flags) __asm__("recv");]]

local SLOW = [[function M.handle(msg) trace("begin", msg) mw.sleep(30) end]]

describe("run --workers", function()
  teardown(function() process.cleanup() end)

  it("shares the work, and replaces a worker that is killed: nothing is lost, keys keep their order", function()
    local s = supervised.scene {
      flags = { "--workers", "3" }, settings = "retry = { attempts = 1 }, buffer = { count = 64 }, concurrency = 8,",
      handler = [[function M.handle(msg) mw.sleep(0.01) mw.log.info("done") trace("done", msg) end]],
    }
    local list = {}
    for i = 1, 600 do list[i] = { id = "m" .. i, key = "k" .. i % 40 } end
    s:start()
    s:see "all workers started"
    s:publish(list)
    local victim = s:see "msg=done[^\n]* worker=(%d)\n"
    s:kill_worker(victim)
    s:see('msg="worker ended" worker=' .. victim .. " pid=%d+ signal=9")
    local started = "msg=started[^\n]*worker=" .. victim .. "\n"
    s:see(started .. ".*" .. started)
    clock.until_(function() return s:left "in" == 0 end, 30 * late, "all to be handled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    local seen, last = {}, {}
    for _, line in ipairs(s.trace:of "done") do
      local n = tonumber(line.id:match "%d+")
      if not seen[n] then -- the first time: what a dead worker had done may be done once more
        assert.is_true(n > (last[n % 40] or 0), line.id .. " is out of order")
        last[n % 40] = n
      end
      seen[n] = true
    end
    for i = 1, 600 do assert.is_true(seen[i], "m" .. i .. " is lost") end
    local busy = 0
    for k = 1, 3 do busy = busy + math.min(1, s:count("msg=done[^\n]* worker=" .. k .. "\n")) end
    assert.is_true(busy >= 2, "one worker did it all")
    assert.equal(0, s:count "dead letter")
  end)

  it("waits longer before each restart", function()
    local s = supervised.scene { flags = { "--workers", "1" }, handler = "function M.handle() end" }
    s:start()
    for i, wait in ipairs { "0.1", "0.2", "0.4" } do
      clock.until_(function() return s:count "msg=started" == i end, 15 * late, "start " .. i)
      s:kill_worker(1)
      s:see("signal=9 restart_in=" .. wait .. "\n")
    end
    s:see "restart_in=0.4\n.*msg=started"
    assert.equal(0, (s.child:stop(10)))
  end)

  it("drains all workers on TERM, within the limit", function()
    local s = supervised.scene { flags = { "--workers", "2", "--drain", "0.5" }, handler = SLOW }
    s:publish { { id = "m1" } }
    s:start()
    s:see "all workers started"
    clock.until_(function() return s.trace:count "begin" == 1 end, 10 * late, "the handler to begin")
    s.child:kill "TERM"
    assert.equal(0, (s.child:wait(10 * late)), s.child:stderr())
    assert.equal(2, s:count 'msg="worker ended" worker=%d pid=%d+ code=0')
    assert.equal(1, s:left "in")
  end)

  it("drains as well when a process manager signals everybody at once", function()
    local s = supervised.scene { flags = { "--workers", "2" }, handler = [[
      function M.handle(msg) trace("begin", msg) mw.sleep(1) trace("done", msg) end]] }
    s:publish { { id = "m1", key = "a" }, { id = "m2", key = "b" }, { id = "m3", key = "c" } }
    s:start()
    s:see "all workers started"
    clock.until_(function() return s.trace:count "begin" == 3 end, 10 * late, "the handlers to begin")
    for k = 1, 2 do s:kill_worker(k, "TERM") end
    s.child:kill "TERM"
    assert.equal(0, (s.child:wait(15 * late)), s.child:stderr())
    assert.equal(3, s.trace:count "done", s.child:stderr())
    assert.equal(0, s:left "in")
  end)

  it("ends at once on a second signal, with 1, and leaves nobody behind", function()
    local s = supervised.scene { flags = { "--workers", "2" }, handler = SLOW }
    s:publish { { id = "m1" } }
    s:start()
    s:see "all workers started"
    clock.until_(function() return s.trace:count "begin" == 1 end, 10 * late, "the handler to begin")
    s.child:kill "TERM"
    s:see "draining all workers"
    s.child:kill "INT"
    assert.equal(1, (s.child:wait(5 * late)))
    assert.is_false(supervised.alive(s:pid(1)))
    assert.is_false(supervised.alive(s:pid(2)))
  end)

  it("takes its workers with it when it is killed", function()
    local s = supervised.scene { flags = { "--workers", "2" }, handler = "function M.handle() end" }
    s:start()
    s:see "all workers started"
    s.child:kill "KILL"
    s.child:wait(5)
    clock.until_(function() return not supervised.alive(s:pid(1)) and not supervised.alive(s:pid(2)) end, 5 * late,
      "the workers to be gone")
  end)

  it("gives HUP to all, but code that does not load to none", function()
    local s = supervised.scene { flags = { "--workers", "2" }, handler = "function M.handle() end" }
    s:start()
    s:see "all workers started"
    s.child:kill "HUP"
    s:see "msg=reloaded[^\n]*worker=1"
    s:see "msg=reloaded[^\n]*worker=2"
    project.write(s.dir .. "/handlers/p.lua", "return {")
    s.child:kill "HUP"
    assert(s:see 'msg="reload refused"[^\n]*':find("handlers/p.lua:1", 1, true))
    assert.equal(0, (s.child:stop(10)))
    assert.equal(1, s:count "reload refused")
    assert.equal(2, s:count "msg=reloaded")
  end)

  it("watches for its workers", function()
    local s = supervised.scene { flags = { "--workers", "2", "--watch" }, handler = "function M.handle() end" }
    s:start()
    s:see "all workers started"
    project.write(s.dir .. "/handlers/p.lua", project.handler "function M.handle() return true end")
    s:see "files changed"
    s:see "msg=reloaded[^\n]*worker=1"
    s:see "msg=reloaded[^\n]*worker=2"
    assert.equal(0, (s.child:stop(10)))
    assert.equal(1, s:count "files changed")
  end)

  it("answers reload, status and drain for each worker", function()
    local s = supervised.scene { more = "mw.settings { workers = 2 }", handler = "function M.handle() end" }
    s:start()
    s:see "all workers started"
    local function ask(...) return process.run { binary, ... } end
    for _, command in ipairs { { "reload", s.dir }, { "status", s.dir, "--each", "--json" }, { "drain", s.dir } } do
      local answer = ask(unpack(command))
      assert.equal(0, answer.code, answer.stderr)
      for k = 1, 2 do
        assert(answer.stdout:find("worker 1: generation 2", 1, true) or answer.stdout:find('"worker":' .. k, 1, true)
          or answer.stdout:find("worker " .. k .. ": draining", 1, true), answer.stdout .. answer.stderr)
      end
    end
    assert.equal(0, (s.child:wait(10 * late)), s.child:stderr())
  end)

  it("ends with 0 with --once, when everything is settled", function()
    local s = supervised.scene { flags = { "--workers", "2", "--once" }, handler = [[
      function M.handle(msg) mw.sleep(0.05) trace("done", msg) end]] }
    local list = {}
    for i = 1, 20 do list[i] = { id = "m" .. i, key = "k" .. i } end
    s:publish(list)
    assert.equal(0, (s:start():wait(20 * late)), s.child:stderr())
    assert.equal(20, s.trace:count "done")
  end)

  it("ends with the worker's code when nobody ever served, and tells why once", function()
    local broken = supervised.scene { flags = { "--workers", "2" }, handler = "return {" }
    assert.equal(78, (broken:start():wait(15 * late)), broken.child:stderr())
    assert.equal(1, broken:count "handlers/p.lua:5", broken.child:stderr())
    assert.equal(1, broken:count "\n", broken.child:stderr())
    local unreachable = supervised.scene { handler = "function M.handle() end" }
    unreachable.url = "embedded:/proc/nothing"
    assert.equal(69, (unreachable:start():wait(15 * late)), unreachable.child:stderr())
  end)

  it("starts a worker again with the code that the others run, whatever stands in the folder", function()
    local s = supervised.scene { flags = { "--workers", "2" }, handler = "function M.handle() end" }
    s:start()
    s:see "all workers started"
    project.write(s.dir .. "/handlers/p.lua", "return {")
    s:kill_worker(1)
    s:see "worker=1 pid=%d+ signal=9.*msg=started generation=1[^\n]*worker=1\n"
    assert.equal(0, s:count "code=78", s.child:stderr())
    assert.equal(0, (s.child:stop(10)), s.child:stderr())
  end)

  it("says in its log when a worker cannot start again, and goes on trying", function()
    local s = supervised.scene { flags = { "--workers", "2", "--log", "json" }, handler = "function M.handle() end",
                                 more = 'assert(io.open(mw.env "SECRET"))' }
    local secret = s.dir .. "/secret"
    s.given.env = { SECRET = secret }
    project.write(secret, "x")
    s:start()
    s:see "all workers started"
    os.remove(secret)
    s:see '"pid":%d+'
    process.run { "kill", "-KILL", s.child:stderr():match '"worker begins","worker":1,"pid":(%d+)' }
    s:see '"level":"error","msg":"cannot start","error":"[^\n]*moonwire.lua'
    for line in s.child:stderr():gmatch "[^\n]+" do assert.equal("{", line:sub(1, 1), line) end
    project.write(secret, "x")
    s:see 'cannot start.*"msg":"started"[^\n]*"worker":1}'
    assert.equal(0, (s.child:stop(10)), s.child:stderr())
  end)

  it("drains by command although a worker is waiting to be started again", function()
    local s = supervised.scene { flags = { "--workers", "2" }, handler = "function M.handle() end" }
    s:start()
    s:see "all workers started"
    for i = 1, 5 do
      clock.until_(function() return s:count "msg=started[^\n]*worker=1\n" == i end, 15 * late, "start " .. i)
      s:kill_worker(1)
    end
    s:see "restart_in=1.6"
    assert.equal(0, process.run({ binary, "drain", s.dir }).code)
    assert.equal(0, (s.child:wait(10 * late)), s.child:stderr())
    assert.equal(5, s:count "msg=started[^\n]*worker=1\n")
  end)

  it("refuses what cannot be: a broken project, odd numbers, a slot from outside", function()
    local s = supervised.scene { flags = { "--workers", "2" }, handler = "return {" }
    for _, flag in ipairs { "--workers=-1", "--workers=257", "--workers=x", "--slot=1" } do
      assert.equal(64, process.run({ binary, "run", s.dir, flag }).code, flag)
    end
    local t = supervised.scene { more = "mw.settings { workers = 0 }", handler = "function M.handle() end" }
    assert.equal(78, (t:start():wait(10 * late)))
    assert(t.child:stderr():find("workers must be a whole number from 1 to 256", 1, true), t.child:stderr())
  end)
end)

describe("systemd", function()
  local AF_UNIX, SOCK_DGRAM_NONBLOCK, MSG_DONTWAIT = 1, bit.bor(2, 0x800), 0x40
  local path, fd, heard, told

  before_each(function()
    path, heard, told = process.tmpdir() .. "/notify", {}, {}
    local address = ffi.new("uint8_t[110]")
    ffi.cast("uint16_t *", address)[0] = AF_UNIX
    ffi.copy(address + 2, path)
    fd = ffi.C.mwt_socket(AF_UNIX, SOCK_DGRAM_NONBLOCK, 0)
    assert(fd >= 0 and ffi.C.mwt_bind(fd, address, 2 + #path + 1) == 0)
  end)
  after_each(function() ffi.C.mwt_close(fd) end)
  teardown(function() process.cleanup() end)

  local buffer = ffi.new "char[512]"
  local function hear(word)
    clock.until_(function()
      local n = tonumber(ffi.C.mwt_recv(fd, buffer, 512, MSG_DONTWAIT))
      if n <= 0 then return false end
      local text = ffi.string(buffer, n):match "^[^\n]+"
      heard[#heard + 1], told[text] = text, true
      return text == word
    end, 10 * late, word .. " from the notify socket")
  end

  local function tells(flags)
    return function()
      local s = supervised.scene { flags = flags, handler = "function M.handle() end",
                                   env = { NOTIFY_SOCKET = path, WATCHDOG_USEC = "200000" } }
      s:start()
      hear "READY=1"
      assert(s.child:stderr():find(flags[2] ~= "0" and "all workers started" or "msg=started"))
      hear "WATCHDOG=1"
      hear "WATCHDOG=1"
      s.child:kill "HUP"
      hear "RELOADING=1"
      assert(ffi.string(buffer):find "\nMONOTONIC_USEC=%d+")
      hear "READY=1"
      s.child:kill "TERM"
      hear "STOPPING=1"
      if flags[2] ~= "0" then hear "STATUS=draining: 2 of 2 workers serve, generation 2" end
      assert.equal(0, (s.child:wait(10 * late)))
      local ready = 0
      for _, text in ipairs(heard) do ready = ready + (text == "READY=1" and 1 or 0) end
      assert.equal(2, ready, table.concat(heard, " "))
      if flags[2] == "0" then return end
      for _, text in ipairs { "1 of 2 workers serve, generation 1", "2 of 2 workers serve, generation 1",
        "2 of 2 workers serve, generation 2" } do
        local status = "STATUS=" .. text
        assert(told[status], status .. " is not in " .. table.concat(heard, " "))
      end
    end
  end

  it("is told by one process", tells { "--workers", "0" })
  it("is told by the supervisor, for all workers", tells { "--workers", "2" })
end)
