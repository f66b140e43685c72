-- What a supervisor answers for its workers: all of them, none of them, and whoever knocks at its socket.
local bit = require "bit"
local clock = require "spec.support.wait"
local core = require "moonwire.core"
local ffi = require "ffi"
local process = require "spec.support.process"
local project = require "spec.support.project"
local supervised = require "spec.support.supervised"

local late = supervised.late

ffi.cdef [[
int mwt_connect(int fd, const void *address, unsigned len) __asm__("connect");
long mwt_send(int fd, const void *data, size_t len, int flags) __asm__("send");
long mwt_receive(int fd, void *data, size_t len, int flags) __asm__("recv");
]]

local QUICK = [[function M.handle(msg) trace("done", msg) end]]

local function running(given)
  local s = supervised.scene(given)
  s:start()
  s:see "all workers started"
  return s
end

local function generations(s)
  local list = {}
  for line in s:ask("status", "--each", "--json").stdout:gmatch "[^\n]+" do
    list[#list + 1] = tonumber(line:match '"generation":(%d+)')
  end
  return table.concat(list, " ")
end

describe("a reload of several workers", function()
  teardown(function() process.cleanup() end)

  it("changes all or none: one refuses, the others stay, and are told so", function()
    local reads = process.tmpdir() .. "/reads"
    local s = running { flags = { "--workers", "3" }, handler = QUICK, more = ([[
      local file = assert(io.open(%q, "a"))
      file:write "x"
      file:close()
      local n = #assert(io.open(%q)):read "*a"
      if n == 5 then error "not the fifth time" end]]):format(reads, reads) }
    local refused = s:ask "reload"
    assert.equal(78, refused.code, refused.stdout .. refused.stderr)
    assert.equal("", refused.stdout)
    assert(refused.stderr:find "worker %d: moonwire.lua:%d+: not the fifth time\n", refused.stderr)
    assert(refused.stderr:find "worker %d: refused: the old code keeps running\n", refused.stderr)
    local _, unchanged = refused.stderr:gsub("worker %d: unchanged, generation 1: another worker refused", "")
    assert.equal(2, unchanged, refused.stderr)
    assert.equal("1 1 1 1 1 1", (generations(s)):gsub("(%d+)", "%1 %1"):gsub(" $", ""))
    assert.equal(1, s:count "reload refused")
    local done = s:ask "reload"
    assert.equal(0, done.code, done.stderr)
    for k = 1, 3 do assert(done.stdout:find("worker " .. k .. ": generation 2: 1 kept", 1, true), done.stdout) end
    s:kill_worker(2)
    s:see "msg=started generation=2[^\n]*worker=2\n" -- a worker that starts again counts as the others do
    assert.equal("2 2 2", generations(s))
    s:publish { { id = "m1" } }
    clock.until_(function() return s.trace:count "done" == 1 end, 15 * late, "the message")
    assert.equal(0, (s.child:stop(15)), s.child:stderr())
  end)

  it("is asked for by a HUP to any worker, and comes one at a time", function()
    local s = running { flags = { "--workers", "2" }, handler = QUICK }
    s:kill_worker(2, "HUP")
    s:see "msg=reloaded generation=2[^\n]*worker=1"
    s:see "msg=reloaded generation=2[^\n]*worker=2"
    local children = {}
    for i = 1, 5 do children[i] = process.spawn { { supervised.binary, "reload", s.dir } } end
    for i = 1, 5 do assert.equal(0, (children[i]:wait(20 * late)), children[i]:stderr()) end
    assert.equal("7 7", generations(s))
    assert.equal(0, (s.child:stop(15)), s.child:stderr())
  end)

  it("does not wait for a worker that is down, which starts at once with the new code", function()
    local s = running { flags = { "--workers", "2" }, handler = QUICK }
    for i = 1, 5 do -- the pauses between its starts grow
      clock.until_(function() return s:count "msg=started[^\n]*worker=1\n" == i end, 15 * late, "start " .. i)
      s:kill_worker(1)
    end
    s:see "signal=9 restart_in=1.6"
    local status = s:ask("status").stdout
    assert(status:find "worker 1: down, starts in [%d.]+m?s %(%d restarts%)", status)
    assert(status:find "p +1 .* 1 of 2 +ok", status)
    project.write(s.dir .. "/handlers/p.lua", project.handler(QUICK))
    local done = s:ask "reload"
    assert.equal(0, done.code, done.stderr)
    assert(done.stdout:find("worker 1: starts anew, generation 2", 1, true), done.stdout)
    assert(done.stdout:find("worker 2: generation 2", 1, true), done.stdout)
    s:see "restart_in=1.6.*msg=started generation=2[^\n]*worker=1\n"
    assert.equal(0, (s.child:stop(15)), s.child:stderr())
  end)
end)

describe("what workers counted", function()
  teardown(function() process.cleanup() end)

  it("survives them, and so does a pause", function()
    local s = running { flags = { "--workers", "1" }, handler = QUICK }
    local list = {}
    for i = 1, 50 do list[i] = { id = "m" .. i } end
    s:publish(list)
    clock.until_(function() return select(2, s:status()).handled == 50 end, 15 * late, "fifty")
    assert.equal(0, s:ask("pause", s.dir).code)
    s:kill_worker(1)
    clock.until_(function() return s:count "msg=started" == 2 end, 15 * late, "the next one")
    s:publish { { id = "later" } }
    local status, p = s:status()
    assert.equal(50, p.handled)
    assert.is_true(p.p99 > 0, "its times are forgotten")
    assert.is_true(p.paused)
    assert.equal(1, status.workers[1].restarts)
    clock.sleep(0.3)
    assert.equal(50, s.trace:count "done")
    assert.equal(0, s:ask("resume", s.dir).code)
    clock.until_(function() return select(2, s:status()).handled == 51 end, 15 * late, "one more")
    assert.equal(0, (s.child:stop(15)), s.child:stderr())
  end)
end)

describe("the control socket", function()
  local AF_UNIX, SOCK_STREAM, MSG_NOSIGNAL, MSG_DONTWAIT = 1, 1, 0x4000, 0x40
  local s, path

  before_each(function()
    s = running { flags = { "--workers", "2" }, handler = QUICK }
    local found = assert(core.control_sockets(s.dir))
    assert.equal(1, #found, "one for all")
    path = found[1]
  end)
  after_each(function() assert.equal(0, (s.child:stop(15)), s.child:stderr()) end)
  teardown(function() process.cleanup() end)

  local function knock()
    local address = ffi.new "uint8_t[110]"
    ffi.cast("uint16_t *", address)[0] = AF_UNIX
    ffi.copy(address + 2, path)
    local fd = ffi.C.mwt_socket(AF_UNIX, SOCK_STREAM, 0)
    assert(fd >= 0 and ffi.C.mwt_connect(fd, address, 2 + #path + 1) == 0)
    return fd
  end

  it("is its user's alone", function()
    local folder = path:match "^(.*)/"
    assert.equal("600\n", process.run({ "stat", "-c", "%a", path }).stdout)
    assert(process.run({ "stat", "-c", "%a", folder }).stdout:find "^7[05][05]\n$")
  end)

  -- Whoever finds a socket that nobody listens on takes it away; one of a process that starts must not be taken.
  it("is not taken away from a process that starts, nor is the name of its link", function()
    local link = process.tmpdir() .. "/current"
    assert.equal(0, process.run({ "ln", "-s", s.dir, link }).code)
    for _ = 1, 10 do
      local child = process.spawn { { supervised.binary, "run", link }, env = { BROKER_URL = s.url } }
      local of_folder = core.control_path(s.dir):gsub("%d+$", child.pid)
      local of_link = core.control_path(link):gsub("%d+$", child.pid)
      clock.until_(function()
        for _ = 1, 100 do core.control_call(of_folder, "status", 1) end
        return core.control_call(of_link, "status", 1)
      end, 20 * late, "an answer by the link")
      assert(core.control_call(of_folder, "status", 10))
      assert.equal(0, (child:stop(15)), child:stderr())
      assert.is_nil((core.control_call(of_link, "status", 1)))
    end
  end)

  it("bears silence, half lines, floods, nonsense and those who never read", function()
    local before, fds = process.rss(s.child.pid), {}
    for i = 1, 300 do -- more than it lets in
      fds[i] = knock()
      if i % 3 == 0 then ffi.C.mwt_send(fds[i], "stat", 4, MSG_NOSIGNAL) end
      if i % 3 == 1 then ffi.C.mwt_send(fds[i], "explain =x\n", 11, MSG_NOSIGNAL) end -- and does not read
    end
    assert.equal(0, s:ask("status").code)
    for _, fd in ipairs(fds) do ffi.C.mwt_close(fd) end
    local flood = ffi.new("char[?]", 2 ^ 20)
    ffi.fill(flood, 2 ^ 20, 120)
    for _ = 1, 20 do
      local fd = knock()
      for _ = 1, 64 do
        if ffi.C.mwt_send(fd, flood, 2 ^ 20, bit.bor(MSG_NOSIGNAL, MSG_DONTWAIT)) <= 0 then break end
      end
      ffi.C.mwt_close(fd)
    end
    for _, line in ipairs { "nonsense", "", " ", "reload =", "status =%zz", ("\1\255"):rep(1000), "explain" } do
      local reply = core.control_call(path, line, 10)
      assert(reply and reply:find('"ok":', 1, true), line)
    end
    assert.equal(0, s:ask("status").code)
    local grown = process.rss(s.child.pid) - before
    assert.is_true(grown < 8e6 * late, ("the supervisor grew by %d bytes"):format(grown))
    assert.equal(0, s:count "worker ended")
  end)
end)
