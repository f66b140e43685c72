-- The helpers that other specs trust: waiting, child processes, folders, ports.
local ffi = require "ffi"
local process = require "spec.support.process"
local wait = require "spec.support.wait"

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

local function shell(text, more)
  local opts = more or {}
  opts.argv = { "sh", "-c", text }
  return opts
end

describe("wait", function()
  it("sleeps for the time asked, on a clock that only goes forward", function()
    local before = wait.now()
    wait.sleep(0.03)
    local took = wait.now() - before
    assert.is_true(took >= 0.03 and took < 2, "took " .. took)
    wait.sleep(0)
    wait.sleep(-1)
  end)

  it("returns the first true value", function()
    local n = 0
    assert.equal(3, wait.until_(function() n = n + 1; return n == 3 and n end, 5, "three"))
  end)

  it("names what it waited for and the last value", function()
    local ok, err = pcall(wait.until_, function() return false, "still 2 of 3" end, 0.02, "all messages")
    assert.is_false(ok)
    assert.matches("waited 0.02 s for all messages; last value: false, \"still 2 of 3\"", err, 1, true)
  end)

  it("keeps asking after an error and reports the last one", function()
    local n = 0
    local function refuse() n = n + 1; error("refused " .. (n > 1 and "again" or "once")) end
    local ok, err = pcall(wait.until_, refuse, 0.05, "the port")
    assert.is_false(ok)
    assert.matches("refused again", err, 1, true)
  end)
end)

describe("process", function()
  local dir
  setup(function() dir = process.tmpdir() end)
  teardown(function() process.cleanup() end)

  it("runs a command: code, both outputs, input", function()
    local r = process.run(shell("cat; echo problem >&2; exit 3", { stdin = "a\nb" }))
    assert.same({ code = 3, timeout = false, stdout = "a\nb", stderr = "problem\n" }, r)
  end)

  it("takes the command as plain items, too, without a shell in between", function()
    assert.equal("$HOME `x` ''\n", process.run { "printf", "%s\n", "$HOME `x` ''" }.stdout)
  end)

  it("has no input unless given", function()
    assert.equal("", process.run { "cat" }.stdout)
  end)

  it("carries more output than a pipe holds", function()
    local r = process.run(shell "head -c 3000000 /dev/zero; head -c 200000 /dev/zero >&2")
    assert.equal(3000000, #r.stdout)
    assert.equal(200000, #r.stderr)
  end)

  it("sets the folder and changes the environment", function()
    local r = process.run(shell("pwd; echo ${MW_SPEC_A-unset} ${HOME-unset}",
                                { cwd = dir, env = { MW_SPEC_A = "x y", HOME = false } }))
    assert.equal(dir .. "\nx y unset\n", r.stdout)
  end)

  it("finds a relative program even when the child starts elsewhere", function()
    local r = process.run { "./dev", "help", cwd = dir }
    assert.equal(0, r.code)
  end)

  it("appends to a file and shows only this run's part of it", function()
    local path = dir .. "/log"
    process.run(shell("echo first", { stdout = path }))
    local r = process.run(shell("echo second; echo third >&2", { stdout = path, stderr = "stdout" }))
    assert.equal("second\nthird\n", r.stdout)
    assert.equal("first\nsecond\nthird\n", process.run { "cat", path }.stdout)
  end)

  it("shows the output so far of a child that still runs", function()
    local child = process.spawn(shell "echo ready; exec sleep 60")
    assert.is_truthy(wait.until_(function() return child:stdout():find "ready" end, 5, "the ready line"))
    assert.is_true(child:alive())
    assert.same({ n = 2, nil, "timeout" }, { n = 2, child:wait(0.01) })
    assert.is_true(child:kill "TERM")
    local code, why, sig = child:wait(5)
    assert.same({ nil, "signal", 15 }, { code, why, sig })
    assert.is_false(child:alive())
    assert.is_false(child:kill())
    assert.equal("ready\n", child:stdout())
  end)

  it("ends a command that takes too long", function()
    local before = wait.now()
    local r = process.run { "sleep", "60", timeout = 0.05 }
    assert.same({ true, 9 }, { r.timeout, r.signal })
    assert.is_true(wait.now() - before < 5)
  end)

  it("stops a child that ignores TERM", function()
    local child = process.spawn(shell "trap '' TERM; echo up; while :; do sleep 0.05; done")
    wait.until_(function() return child:stdout() == "up\n" end, 5, "the trap")
    local _, why, sig = child:stop(0.1)
    assert.same({ "signal", 9 }, { why, sig })
  end)

  it("refuses a missing program, folder or signal at once", function()
    assert.has_error(function() process.spawn { "no-such-program" } end, "process: no such program: no-such-program")
    assert.error_matches(function() process.spawn { "true", cwd = dir .. "/none" } end, "No such file")
    local child = process.spawn { "sleep", "60" }
    assert.error_matches(function() child:kill "TREM" end, "unknown signal: TREM")
    child:stop()
  end)

  it("leaves no open file behind", function()
    local function open_files()
      collectgarbage()
      collectgarbage() -- what others forgot to close is not ours
      local n = 0
      for fd = 0, 1023 do
        if ffi.C.mwt_access("/proc/self/fd/" .. fd, 0) == 0 then n = n + 1 end
      end
      return n
    end
    local before = open_files()
    for _ = 1, 20 do process.run { "true" } end
    pcall(process.spawn, { "true", cwd = dir .. "/none" })
    assert.equal(before, open_files())
  end)

  it("says so when someone else in this process took the exit status, as libev's default loop does", function()
    local child = process.spawn { "true" }
    ffi.C.mwt_waitpid(child.pid, nil, 0)
    assert.same({ n = 2, nil, "lost" }, { n = 2, child:wait(1) })
    assert.is_false(child:alive())
  end)

  it("kills what is left, by pid", function()
    local a, b = process.spawn { "sleep", "60" }, process.spawn { "sleep", "60" }
    process.kill_all()
    assert.is_false(a:alive() or b:alive())
    assert.same({ 9, 9 }, { a.signal, b.signal })
  end)

  it("lets no child outlive a spec process that was killed", function()
    if not process.which "setpriv" then return pending "setpriv is missing" end
    local script = [[local p = require "spec.support.process".spawn { "sleep", "60" }
      io.stdout:write(p.pid, "\n"); io.stdout:flush(); require "spec.support.wait".sleep(60)]]
    local file = dir .. "/parent.lua"
    local f = assert(io.open(file, "w"))
    f:write(script)
    f:close()
    local host = os.getenv "MOONWIRE_BIN" and { os.getenv "MOONWIRE_BIN", "lua", file } or { "luajit", file }
    local parent = process.spawn(host)
    local pid = wait.until_(function() return parent:stdout():match "%d+" end, 10, "the grandchild's pid")
    local function stat()
      local handle = io.open("/proc/" .. pid .. "/stat")
      local text = handle and handle:read "*a"
      if handle then handle:close() end
      return text
    end
    -- Until setpriv has become the program, the child is not bound to its parent yet.
    wait.until_(function() return stat():find("(sleep)", 1, true) end, 5, "the grandchild's start")
    parent:kill "KILL"
    parent:wait(5)
    wait.until_(function()
      local text = stat()
      return not text or text:match "%) Z" -- in a container nobody may reap it
    end, 5, "the grandchild's end")
  end)

  it("removes its folders", function()
    local other = process.tmpdir()
    assert.not_equal(dir, other)
    process.run { "touch", other .. "/file" }
    assert.is_true(exists(other .. "/file"))
    process.cleanup()
    assert.is_false(exists(other .. "/file"))
    assert.is_false(exists(other))
    dir = process.tmpdir()
  end)

  it("never hands out a port twice", function()
    local seen = {}
    for _ = 1, 50 do
      local port = process.free_port()
      assert.is_nil(seen[port])
      assert.is_true(port >= 20000 and port <= 32000)
      seen[port] = true
    end
  end)

  it("reads memory and CPU from /proc", function()
    local child = process.spawn(shell "echo up; while :; do :; done")
    wait.until_(function() return process.cpu(child.pid) >= 0.05 end, 20, "some CPU time")
    assert.is_true(process.rss(child.pid) > 100000)
    assert.is_true(process.hwm(child.pid) >= process.rss(child.pid))
    child:stop()
    assert.same({ nil, nil, nil }, { process.rss(child.pid), process.hwm(child.pid), process.cpu(child.pid) })
  end)
end)
