-- What is current stays current: whatever stands in the folder, whoever dies, a worker runs what the last good reload,
-- or the start, has read.
local clock = require "spec.support.wait"
local json = require "moonwire.json"
local process = require "spec.support.process"
local project = require "spec.support.project"
local supervised = require "spec.support.supervised"

local binary, late = supervised.binary, supervised.late

local function says(text) return ([[function M.handle(msg) mw.log.info("handled by %s") end]]):format(text) end

describe("code that is current", function()
  local s
  teardown(function() process.cleanup() end)
  after_each(function() if s then s.child:stop(20) end end)

  local function begin(given)
    s = supervised.scene(given)
    s:start()
    s:see "all workers started"
  end

  local function write(text) project.write(s.dir .. "/handlers/p.lua", project.handler(text)) end
  local function reload(...) return process.run { binary, "reload", s.dir, ... } end

  local function kill_and_see(worker, generation)
    local before = s:count("msg=started generation=" .. generation .. "[^\n]*worker=" .. worker)
    s:kill_worker(worker, "KILL")
    clock.until_(function()
      return s:count("msg=started generation=" .. generation .. "[^\n]*worker=" .. worker) > before
    end, 15 * late, "worker " .. worker .. " to start again with generation " .. generation)
  end

  local function handled_by(text, id)
    s:publish { { id = id } }
    s:see("handled by " .. text .. "[^\n]*")
    clock.until_(function() return s:left "in" == 0 end, 15 * late, "it to be handled")
  end

  it("is not replaced by refused code when a worker dies", function()
    begin { flags = { "--workers", "1" }, handler = says "old" }
    process.run { "mkdir", "-p", s.dir .. "/spec" }
    project.write(s.dir .. "/spec/p_spec.lua", 'it("fails", function() error "no" end)')
    write(says "new")
    assert.equal(1, reload("--gate", "spec").code)
    kill_and_see(1, 1)
    handled_by("old", "m1")
    write "syntax error"
    assert.equal(78, reload().code)
    kill_and_see(1, 1)
    handled_by("old", "m2")
    assert.equal(0, s:count "handled by new")
    assert.equal(0, s:count "code=78")
  end)

  it("is the reloaded one for workers that start after the reload, with its number", function()
    begin { flags = { "--workers", "2" }, handler = says "old" }
    write(says "new")
    assert.equal(0, reload().code)
    write "syntax error"
    kill_and_see(1, 2)
    kill_and_see(2, 2)
    handled_by("new", "m1")
    write(says "third")
    assert.equal(0, reload().code)
    kill_and_see(1, 3)
    handled_by("third", "m2")
  end)

  it("is not loaded any more while the process drains", function()
    begin { flags = { "--workers", "1" }, handler = [[function M.handle(msg) mw.log.info("begun") mw.sleep(3) end]] }
    s:publish { { id = "m1" } }
    s:see "msg=begun"
    s.child:kill "TERM"
    s:see "draining all workers"
    local refused = reload()
    assert.equal(1, refused.code, refused.stdout)
    assert(refused.stderr:find("it is draining", 1, true), refused.stderr)
  end)

  it("is awaited when no worker serves at the moment, and broken code is refused then too", function()
    begin { flags = { "--workers", "1" }, handler = says "old" }
    for _ = 1, 3 do kill_and_see(1, 1) end
    s:kill_worker(1, "KILL")
    s:see "restart_in=0.8"
    write "syntax error"
    local refused = reload()
    assert.equal(78, refused.code, refused.stdout .. refused.stderr)
    s:kill_worker(1, "KILL")
    clock.until_(function() return s:count "signal=9" == 5 end, 15 * late, "its end")
    write(says "new")
    local done = reload()
    assert.equal(0, done.code, done.stderr)
    handled_by("new", "m1")
  end)

  it("gives way to new code when it does not start any more; that passes the gate first", function()
    begin { flags = { "--workers", "1" }, handler = says "old", more = 'assert(io.open(mw.env "SECRET"))',
      env = { SECRET = "/proc/self/status" } }
    s.child:stop(20)
    -- Now with something that can be taken away.
    local secret = s.dir .. "/secret"
    s.given.env.SECRET = secret
    project.write(secret, "x")
    s:start()
    s:see "all workers started"
    os.remove(secret)
    s:kill_worker(1, "KILL")
    s:see "cannot start"
    local refused = reload()
    assert.equal(78, refused.code, refused.stdout)
    assert(refused.stderr:find("no worker serves", 1, true), refused.stderr)
    project.write(s.dir .. "/moonwire.lua", [[
      local mw = require "moonwire"
      local broker = mw.connect(mw.env "BROKER_URL")
      mw.pipeline "p" { from = broker:channel "in", handler = "handlers.p" }]])
    write(says "new")
    process.run { "mkdir", "-p", s.dir .. "/spec" }
    project.write(s.dir .. "/spec/p_spec.lua", 'it("fails", function() error "not yet" end)')
    refused = reload("--gate", "spec")
    assert.equal(78, refused.code, refused.stdout)
    s:see "cannot start[^\n]*not yet"
    project.write(s.dir .. "/spec/p_spec.lua", 'it("passes", function() assert(true) end)')
    local done = reload("--gate", "spec")
    assert.equal(0, done.code, done.stderr)
    handled_by("new", "m1")
    kill_and_see(1, 2)
  end)

  it("follows a link to the current release", function()
    local at = process.tmpdir()
    local function sh(text) assert.equal(0, process.run({ { "sh", "-ec", text }, cwd = at }).code, text) end
    s = supervised.scene { flags = { "--workers", "1" }, handler = says "old" }
    sh("mkdir releases && cp -r " .. s.dir .. " releases/1")
    sh "cp -r releases/1 releases/2 && ln -s releases/1 current"
    project.write(at .. "/releases/2/handlers/p.lua", project.handler(says "new"))
    s.dir = at .. "/current"
    s:start()
    s:see "all workers started"
    handled_by("old", "m1")
    assert.equal(0, process.run({ { binary, "status" }, cwd = at .. "/releases/1" }).code)
    sh "ln -sfn releases/2 current"
    assert.equal(0, process.run({ binary, "status", s.dir }).code)
    local done = reload()
    assert.equal(0, done.code, done.stderr)
    handled_by("new", "m2")
    kill_and_see(1, 2)
    sh "rm -r releases/1"
    assert.equal(0, reload().code)
    assert.equal(0, (s.child:stop(20)))
    assert.equal(69, process.run({ binary, "status", s.dir }).code)
  end)

  it("is reported as reloaded although a worker died while it was read", function()
    local read = process.tmpdir() .. "/read"
    begin { flags = { "--workers", "2" }, handler = says "old", env = { READ = read }, more = [[
      if mw.env("SLOW", "") ~= "" then -- the second one that reads it takes its time
        local file = assert(io.open(mw.env "READ", "a+"))
        file:write("read\n")
        file:seek "set"
        local ends = os.clock() + (select(2, file:read("*a"):gsub("\n", "")) == 2 and 8 or 0)
        file:close()
        while os.clock() < ends do end
      end]] }
    project.write(s.dir .. "/.env", "SLOW=yes\n")
    write(says "new")
    local asked = process.spawn { { binary, "reload", s.dir, "--json" } }
    clock.until_(function()
      local file = io.open(read)
      local text = file and file:read "*a"
      if file then file:close() end
      return text == "read\nread\n"
    end, 20 * late, "both to read")
    s:kill_worker(2, "KILL")
    assert.equal(0, (asked:wait(30 * late)), asked:stderr() .. asked:stdout())
    local replies = {}
    for line in asked:stdout():gmatch "[^\n]+" do
      local reply = json.decode(line)
      replies[reply.worker] = reply
    end
    assert.is_true(replies[1].ok and replies[2].ok)
    assert(pcall(s.see, s, "msg=started generation=2[^\n]*worker=2"), s.child:stderr())
  end)
end)
