-- The embedded store when it cannot write, or when its files are not what they should be.
local broker = require "spec.support.broker"
local clock = require "spec.support.wait"
local process = require "spec.support.process"
local project = require "spec.support.project"
local C = require "moonwire.internal.cdef"

local binary = os.getenv "MOONWIRE_BIN"
local late = binary:find "asan" and 3 or 1

C.mw_log_setup(0, 4)

local HANDLER = [[function M.handle(msg) trace("done", msg) end]]

local function worker(dir, url, given)
  local trace = project.trace(dir .. "/trace")
  project.make(dir .. "/project", given or { handler = HANDLER }, trace.path)
  local child = process.spawn { { binary, "run", dir .. "/project", "--workers", "0" }, env = { BROKER_URL = url } }
  return child, trace
end

local function publish(url, id, body)
  return process.run { { binary, "publish", "--broker", url, "in", "--id", id, "--file", "-" }, stdin = body }
end

-- Publishes through the CLI until the store refuses; how many it took, and what it said then.
local function fill(url, size, most)
  local body = ("x"):rep(size)
  for i = 1, most do
    local result = publish(url, "m" .. i, body)
    if result.code ~= 0 then return i - 1, result end
  end
  error(("the store never was full: it took %d messages of %d bytes"):format(most, size))
end

local function wait_empty(url, seconds)
  local b = broker.open(url)
  broker.turn_until(function() return b:is_empty "in" end, (seconds or 15) * late, "the channel to be empty")
end

local function checksum(path) return process.run({ "sha256sum", path }).stdout end

describe("a store that is full", function()
  teardown(function() process.cleanup() end)

  it("refuses more, keeps what it has, and takes again when there is room", function()
    local dir = process.tmpdir()
    local url = "embedded:" .. dir .. "/store?size=8MB"
    local count, refused = fill(url, 400000, 60)
    assert.is_true(count > 3)
    assert.equal(69, refused.code)
    assert.matches("full", refused.stderr)
    local child, trace = worker(dir, url)
    wait_empty(url)
    assert.equal(0, child:stop(20))
    assert.equal(count, trace:count "done")
    assert.equal(0, publish(url, "again", ("x"):rep(400000)).code)
  end)

  it("makes handlers that publish wait: nothing is acked without its publish, nothing is lost", function()
    local dir = process.tmpdir()
    local url = "embedded:" .. dir .. "/store?size=4MB"
    local b = broker.open(url)
    local list = {}
    for i = 1, 40 do list[i] = { "x", id = "m" .. i } end
    b:publish("in", list)
    local child = worker(dir, url, { settings = "retry = { attempts = 1000, base = 0.05, cap = 0.1 },", handler = [[
      function M.handle(msg)
        mw.publish("out", ("y"):rep(400000), { id = "out-" .. msg.id })
        trace("done", msg)
      end]] })
    local seen, count = {}, 0
    broker.turn_until(function() -- somebody else takes what arrives, and with it makes room
      local positions = {}
      for _, m in ipairs(b:messages "out") do
        if not seen[m.id] then count = count + 1 end
        seen[m.id] = true
        positions[#positions + 1] = m.position
      end
      if #positions > 0 then pcall(b.remove, b, "out", positions) end
      return count == 40
    end, 60 * late, function() return "40 publishes, there are " .. count end)
    wait_empty(url)
    assert.matches("is full", child:stderr())
    assert.equal(0, child:stop(20))
  end)

  -- Full to the brim with `size` bytes each; then every handler publishes as much as its message takes.
  local function drains(size, store_size, most)
    local dir = process.tmpdir()
    local url = "embedded:" .. dir .. "/store?size=" .. store_size
    local b, body, count = broker.open(url), ("x"):rep(size), 0
    repeat
      local ok, err = pcall(b.publish, b, "in", { { body, id = "m" .. (count + 1) } })
      if ok then count = count + 1 else assert.matches("full", err) end
      assert(count < most, "it never was full")
    until not ok
    assert.is_true(count > 4)
    local child, trace = worker(dir, url, { settings = "concurrency = 16,", handler = [[
      function M.handle(msg)
        mw.publish("out", msg.body, { id = msg.id })
        trace("done", msg)
      end]] })
    wait_empty(url, 60)
    assert.equal(0, child:stop(20))
    assert.equal(count, trace:count "done") -- none was handled again: the settlement waited, not the handler
    local seen, got = {}, 0
    for _, m in ipairs(b:messages "out") do
      assert.equal(size, #m.body)
      if not seen[m.id] then got = got + 1 end
      seen[m.id] = true
    end
    assert.equal(count, got)
  end

  it("can be drained by handlers that publish as much as they ack: bodies of 400 KB", function()
    drains(400000, "4MB", 20)
  end)

  it("can be drained by handlers that publish as much as they ack: bodies of 20 KB", function()
    drains(20000, "4MB", 400)
  end)

  it("can be drained by handlers that publish as much as they ack: small bodies", function()
    drains(500, "4MB", 20000)
  end)

  it("can be drained into dead letters, which are a little larger", function()
    local dir = process.tmpdir()
    local url = "embedded:" .. dir .. "/store?size=4MB"
    local count = fill(url, 100000, 60)
    local child = worker(dir, url, { handler = [[
      function M.handle() return mw.reject("no", "business") end]] })
    wait_empty(url, 60)
    assert.equal(0, child:stop(20))
    assert.equal(count, #broker.open(url):messages "in.dead")
  end)

  it("is said to be full when the disk is", function()
    local dir = process.tmpdir()
    local mounted = process.run { "mount", "-t", "tmpfs", "-o", "size=16m", "none", dir }
    if mounted.code ~= 0 then return pending "only root can mount a small disk" end
    local ok, err = pcall(function()
      local url = "embedded:" .. dir .. "/store"
      local count, refused = fill(url, 500000, 100)
      assert.is_true(count > 3)
      assert.equal(69, refused.code)
      assert.matches("disk", refused.stderr)
      assert.matches("full", refused.stderr)
      local outside = process.tmpdir()
      local child, trace = worker(outside, url)
      clock.until_(function() return trace:count "done" >= count end, 20 * late, "all to be handled")
      wait_empty(url)
      assert.equal(0, child:stop(20))
      assert.equal(count, trace:count "done")
    end)
    process.run { "umount", "-l", dir }
    if not ok then error(err, 0) end
  end)

  -- LMDB maps its lock table before there is room for it: a write to a hole that cannot be filled is a SIGBUS
  it("is refused in words when the disk has no room to open it", function()
    local dir = process.tmpdir()
    local mounted = process.run { "mount", "-t", "tmpfs", "-o", "size=1m", "none", dir }
    if mounted.code ~= 0 then return pending "only root can mount a small disk" end
    local ok, err = pcall(function()
      local filler = assert(io.open(dir .. "/filler", "w"))
      filler:setvbuf "no"
      while filler:write(("x"):rep(4096)) do end
      filler:close()
      for room = 0, 240, 12 do
        local refused = publish("embedded:" .. dir .. "/store" .. room, "m", "x")
        assert.equal(69, refused.code, "with " .. room .. " kB: " .. refused.stderr)
        assert.matches("moonwire publish: .*store" .. room, refused.stderr)
        process.run { "rm", "-r", dir .. "/store" .. room }
        process.run { "truncate", "-s", "-12k", dir .. "/filler" }
      end
    end)
    process.run { "umount", "-l", dir }
    if not ok then error(err, 0) end
  end)

  it("survives a process that may not write any further", function()
    local dir = process.tmpdir()
    local url = "embedded:" .. dir .. "/store"
    for i = 1, 5 do assert.equal(0, publish(url, "m" .. i, ("x"):rep(50000)).code) end
    local body, failed = ("x"):rep(200000), nil
    for i = 1, 40 do -- the size that the file may reach, in bytes
      local argv = { "prlimit", "--fsize=2000000", binary, "publish", "--broker", url, "more", "--id", "n" .. i, "-" }
      failed = process.run { argv, stdin = body }
      if failed.code ~= 0 then break end
    end
    assert.is_true(failed.code ~= 0, "it wrote past the limit")
    local child, trace = worker(dir, url)
    wait_empty(url)
    assert.equal(0, child:stop(20))
    assert.equal(5, trace:count "done")
  end)
end)

describe("a publish that the store refuses for good", function()
  teardown(function() process.cleanup() end)

  it("does not make the message look handled: its dead letter can be replayed", function()
    local dir = process.tmpdir()
    local url = "embedded:" .. dir .. "/store?size=4MB"
    assert.equal(0, publish(url, "m1", "x").code)
    local child, trace = worker(dir, url, { settings = "dedupe = true,", handler = [[
      function M.handle(msg)
        trace("try", msg)
        mw.publish("out", msg:header "mw-replay" and "y" or ("y"):rep(3900000), { id = "out" })
      end]] })
    local b = broker.open(url)
    broker.turn_until(function() return not b:is_empty "in.dead" end, 10 * late, "the dead letter")
    assert.equal(0, process.run({ binary, "dlq", "replay", "--broker", url, "in.dead" }).code)
    broker.turn_until(function() return not b:is_empty "out" end, 10 * late, "what the replay publishes")
    assert.equal(2, trace:count "try")
    assert.equal(0, child:stop(20))
  end)
end)

describe("a disk that fails to write", function()
  teardown(function() process.cleanup() end)

  it("costs a fresh worker, and no message", function()
    local dir = process.tmpdir()
    local url, sign = "embedded:" .. dir .. "/store", dir .. "/failing"
    local trace = project.trace(dir .. "/trace")
    project.make(dir .. "/project", { handler = HANDLER }, trace.path)
    local child = process.spawn { { binary, "run", dir .. "/project" }, env = {
      BROKER_URL = url, FAILING_DISK = sign, LD_PRELOAD = os.getenv "MW_BUILD" .. "/c-tests/failing_disk.so",
      ASAN_OPTIONS = (os.getenv "ASAN_OPTIONS" or "") .. ":verify_asan_link_order=0",
    } }
    assert.equal(0, publish(url, "before", "x").code)
    clock.until_(function() return trace:count "done" == 1 end, 10 * late, "the first message")
    project.write(sign, "")
    assert.equal(0, publish(url, "during", "x").code)
    clock.until_(function() return child:stderr():find "the store failed to write; this process ends" end,
      10 * late, "the worker to give up")
    os.remove(sign)
    assert.equal(0, publish(url, "after", "x").code)
    wait_empty(url)
    assert.is_nil(child:stderr():find("suspects=", 1, true)) -- no message is to blame
    assert.equal(0, child:stop(20))
    local seen = {}
    for _, line in ipairs(trace:of "done") do seen[line.id] = true end
    assert.same({ before = true, during = true, after = true }, seen)
  end)
end)

describe("a store that is not what it should be", function()
  teardown(function() process.cleanup() end)

  local function store()
    local dir = process.tmpdir() .. "/store"
    for i = 1, 20 do assert.equal(0, publish("embedded:" .. dir, "m" .. i, ("x"):rep(5000)).code) end
    return dir, dir .. "/moonwire.mdb"
  end

  local function assert_refused(dir, file, pattern)
    local before = checksum(file)
    for _, argv in ipairs {
      { binary, "publish", "--broker", "embedded:" .. dir, "in", "x" },
      { binary, "tail", "--broker", "embedded:" .. dir, "in", "--no-follow" },
    } do
      local result = process.run { argv, timeout = 10 }
      assert.equal(69, result.code, result.stderr .. tostring(result.signal))
      assert.matches(pattern, result.stderr)
    end
    assert.equal(before, checksum(file))
  end

  it("is refused when it was cut short", function()
    local dir, file = store()
    process.run { "truncate", "-s", "40960", file }
    assert_refused(dir, file, "damaged")
  end)

  it("is refused when a page of it was overwritten", function()
    local dir, file = store()
    local f = assert(io.open(file, "r+b"))
    local pages = f:seek "end" / 4096
    for page = 2, pages - 1 do
      f:seek("set", page * 4096)
      f:write(("\0"):rep(16))
    end
    f:close()
    assert_refused(dir, file, "is damaged: page %d+")
  end)

  it("is refused when its second head is damaged", function()
    local dir, file = store()
    local f = assert(io.open(file, "r+b"))
    f:seek("set", 4096 + 40) -- the size of pages, which LMDB believes
    f:write("\0\0\8\0")
    f:close()
    assert_refused(dir, file, "second head")
  end)

  it("is refused when it is empty of sense", function()
    local dir, file = store()
    local f = assert(io.open(file, "r+b"))
    f:write(("garbage "):rep(1024))
    f:close()
    assert_refused(dir, file, "not a Moonwire store")
  end)

  it("is refused when it is another program's LMDB file", function()
    local dir = process.tmpdir()
    local dump = "VERSION=3\nformat=print\ntype=btree\nmapsize=1048576\nmaxreaders=126\ndb_pagesize=4096\nHEADER=END\n"
      .. " key\n value\nDATA=END\n"
    process.run { { "mdb_load", "-n", dir .. "/moonwire.mdb" }, stdin = dump }
    process.run { "rm", "-f", dir .. "/moonwire.mdb-lock" }
    assert_refused(dir, dir .. "/moonwire.mdb", "another program's data")
  end)

  it("is not made in a folder that belongs to somebody else", function()
    local dir = process.tmpdir()
    project.write(dir .. "/notes.txt", "mine")
    local result = process.run { binary, "publish", "--broker", "embedded:" .. dir, "in", "x" }
    assert.equal(69, result.code)
    assert.equal("notes.txt\n", process.run({ "ls", dir }).stdout)
  end)

  it("is refused where it cannot be written", function()
    local result = process.run { binary, "publish", "--broker", "embedded:/proc/store", "in", "x" }
    assert.equal(69, result.code)
    local file = process.tmpdir() .. "/file"
    project.write(file, "x")
    result = process.run { binary, "publish", "--broker", "embedded:" .. file, "in", "x" }
    assert.equal(69, result.code)
    assert.matches("not a folder", result.stderr)
  end)
end)
