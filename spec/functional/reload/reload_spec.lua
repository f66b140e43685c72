-- HUP: new code while messages flow. What runs ends on the code it began with; code that does not load changes nothing.
local clock = require "spec.support.wait"
local process = require "spec.support.process"

local binary = os.getenv "MOONWIRE_BIN"
local MAIN = [[
local mw = require "moonwire"
mw.pipeline "p" { from = mw.connect "embedded:data":channel "in", handler = "handler" }
]]
local HANDLER = [[
local mw = require "moonwire"
return { handle = function(msg)
  mw.log.info("begun")
  mw.sleep(tonumber(msg.body))
  mw.log.info(%q)
end }
]]

describe("reload", function()
  local dir, child

  local function write(name, text)
    local file = assert(io.open(dir .. "/" .. name, "wb"))
    file:write(text)
    file:close()
  end

  local function publish(body, id)
    local sent = process.run { binary, "publish", "in", body, "--id", id, "--broker", "embedded:" .. dir .. "/data" }
    assert(sent.code == 0, sent.stderr)
  end

  local function see(pattern)
    return clock.until_(function() return child:stderr():match(pattern) end, 15, pattern)
  end

  before_each(function()
    dir = process.tmpdir()
    write("moonwire.lua", MAIN)
    write("handler.lua", HANDLER:format "first")
    child = process.spawn { { binary, "run", dir }, env = { BROKER_URL = false } }
    see "msg=started"
  end)
  after_each(function() assert.equal(0, (child:stop(15))) end)

  it("takes new code for new messages, and lets the others end on the old", function()
    publish("2", "slow")
    see "msg=begun[^\n]*id=slow"
    write("handler.lua", HANDLER:format "second")
    child:kill "HUP"
    see "msg=reloaded[^\n]*kept=1"
    publish("0", "quick")
    see "msg=second[^\n]*id=quick"
    see "msg=first[^\n]*id=slow attempt=1"
  end)

  it("refuses code that does not load, says why, and goes on", function()
    write("handler.lua", "return {")
    child:kill "HUP"
    assert(see 'msg="reload refused"[^\n]*':find "handler.lua:1")
    publish("0", "m")
    see "msg=first[^\n]*id=m"
  end)

  local function ask(...) return process.run { binary, ... } end

  it("answers `moonwire reload` with the new generation, or with what is wrong", function()
    write("handler.lua", HANDLER:format "second")
    local done = ask("reload", dir)
    assert.equal(0, done.code, done.stderr)
    assert.equal("worker 1: generation 2: 1 kept, 0 started, 0 draining\n", done.stdout)
    write("handler.lua", "return {")
    local refused = ask("reload", dir)
    assert.equal(78, refused.code)
    assert(refused.stderr:find("handler.lua:1", 1, true), refused.stderr)
    assert(refused.stderr:find("refused: the old code keeps running", 1, true), refused.stderr)
    publish("0", "m")
    see "msg=second[^\n]*id=m"
  end)

  it("starts what is new and drains what is gone", function()
    publish("0", "before")
    see "msg=first[^\n]*id=before"
    write("moonwire.lua", MAIN:gsub('"p"', '"q"'))
    local done = ask("reload", dir, "--json")
    assert.equal(0, done.code, done.stderr)
    assert(done.stdout:find('"added":1', 1, true) and done.stdout:find('"removed":1', 1, true), done.stdout)
    publish("0", "after")
    see "pipeline=q id=after"
  end)

  it("tells its status, and drains when asked to", function()
    publish("0", "m")
    see "msg=first[^\n]*id=m"
    local status = ask("status", dir, "--json")
    assert.equal(0, status.code, status.stderr)
    assert(status.stdout:find('"handled":1', 1, true), status.stdout)
    assert(ask("status", dir).stdout:find("PIPELINE", 1, true))
    assert.equal(0, ask("drain", dir).code)
    assert.equal(0, (child:wait(15)))
    local gone = ask("status", dir)
    assert.equal(69, gone.code)
    assert(gone.stderr:find("nothing runs the project", 1, true), gone.stderr)
  end)

  it("shrugs at whoever knocks and says nothing, half a line, or nonsense", function()
    local core = require "moonwire.core"
    local path = assert(core.control_sockets(dir))[1]
    assert(core.control_call(path, "nonsense", 5):find('unknown command \\"nonsense\\"', 1, true))
    assert.is_nil((core.control_call(path, ("x"):rep(100000), 5)))
    for _ = 1, 40 do core.control_call(path, "status", 0.0001) end
    assert(core.control_call(path, "status", 5):find('"ok":true', 1, true))
  end)
end)

describe("run --watch", function()
  it("reloads when files of the project change, however an editor writes them", function()
    local dir = process.tmpdir()
    local function write(name, text)
      local file = assert(io.open(dir .. "/" .. name, "wb"))
      file:write(text)
      file:close()
    end
    write("moonwire.lua", MAIN)
    write("handler.lua", HANDLER:format "first")
    local child = process.spawn { { binary, "run", "--watch", dir }, env = { BROKER_URL = false } }
    local function see(pattern)
      return clock.until_(function() return child:stderr():match(pattern) end, 15, pattern)
    end
    see "msg=started"
    write("handler.lua", HANDLER:format "second")
    see "msg=reloaded[^\n]*generation=2"
    write(".handler.lua.swp", "x")
    write("handler.lua~", "x")
    write("next.tmp", HANDLER:format "third")
    assert(os.rename(dir .. "/next.tmp", dir .. "/handler.lua"))
    see "msg=reloaded[^\n]*generation=3"
    assert.equal(0, process.run({ "mkdir", dir .. "/lib" }).code)
    clock.sleep(0.3)
    write("lib/new.lua", "return 1")
    see "msg=reloaded[^\n]*generation=4"
    write("handler.lua", "return {")
    see 'msg="reload refused"'
    assert.is_nil(child:stderr():match "msg=reloaded[^\n]*generation=5")
    assert.equal(0, (child:stop(15)))
  end)

  it("sees folders that are moved into each other's place, and those behind links, but not its own data", function()
    local dir, elsewhere = process.tmpdir(), process.tmpdir()
    local function write(path, text)
      local file = assert(io.open(path, "wb"))
      file:write(text)
      file:close()
    end
    local function sh(text) assert.equal(0, process.run({ { "sh", "-ec", text }, cwd = dir }).code, text) end
    sh "mkdir handlers handlers.new"
    sh("ln -s " .. elsewhere .. " lib && ln -s . again")
    write(dir .. "/moonwire.lua", (MAIN:gsub('"handler"', '"handlers.h"')))
    write(dir .. "/handlers/h.lua", HANDLER:format "first")
    write(dir .. "/handlers.new/h.lua", HANDLER:format "second")
    local child = process.spawn { { binary, "run", "--watch", dir }, env = { BROKER_URL = false } }
    local function see(pattern)
      return clock.until_(function() return child:stderr():match(pattern) end, 15, pattern)
    end
    see "msg=started"
    clock.sleep(1)
    assert.is_nil(child:stderr():match "files changed", "it has changed nothing but its data")
    sh "mv handlers handlers.old; mv handlers.new handlers"
    see "msg=reloaded[^\n]*generation=2"
    clock.sleep(0.3) -- one more, should the two have been seen apart
    local function generation() return tonumber(child:stderr():match ".*msg=reloaded[^\n]*generation=(%d+)") end
    local before = generation()
    write(dir .. "/handlers/h.lua", HANDLER:format "third")
    clock.until_(function() return generation() > before end, 15, "what is in the moved folder to be seen")
    before = generation()
    write(elsewhere .. "/x.lua", "return 1")
    clock.until_(function() return generation() > before end, 15, "what is behind a link to be seen")
    before = generation()
    sh("mkdir further && echo 'return 1' > further/y.lua && ln -s further linked")
    clock.until_(function() return generation() > before end, 15, "a new folder to be seen")
    assert.equal(0, (child:stop(15)))
  end)
end)

describe("TERM", function()
  it("drains a process that is still starting", function()
    local dir = process.tmpdir()
    local function write(name, text)
      local file = assert(io.open(dir .. "/" .. name, "wb"))
      file:write(text)
      file:close()
    end
    -- Reading this project takes a while, and a file says when it has begun.
    write("moonwire.lua", ([[
      io.open(%q, "w"):close()
      local till = os.clock() + 0.3
      while os.clock() < till do end
    ]]):format(dir .. "/begun") .. MAIN)
    write("handler.lua", HANDLER:format "first")
    local child = process.spawn { { binary, "run", dir }, env = { BROKER_URL = false } }
    clock.until_(function() return io.open(dir .. "/begun") end, 15, "the project to be read")
    child:kill "TERM"
    assert.equal(0, (child:wait(15)))
    assert(child:stderr():find("msg=draining", 1, true), child:stderr())
  end)
end)

describe("a reload that changes how a pipeline reads", function()
  local supervised = require "spec.support.supervised"
  local late = supervised.late
  teardown(function() process.cleanup() end)

  local MORE = [[mw.pipeline "q" { from = broker:channel "other", handler = function() end }]]

  local function setting(s, text)
    local given = { settings = text, more = MORE, handler = s.given.handler }
    require "spec.support.project".make(s.dir, given, s.trace.path)
  end

  local function all_handled(s, count)
    clock.until_(function() return s.trace:count "done" >= count end, 20 * late, count .. " to be handled")
    local seen = {}
    for _, line in ipairs(s.trace:of "done") do
      assert.is_nil(seen[line.id], line.id .. " was handled twice")
      seen[line.id] = true
    end
  end

  for _, workers in ipairs { 0, 2 } do
    it("drains it, then starts it, and leaves the others alone; workers: " .. workers, function()
      local s = supervised.scene {
        flags = { "--workers", tostring(workers) }, settings = 'order = "none",', more = MORE,
        handler = [[function M.handle(msg) trace("begin", msg) mw.sleep(0.5) trace("done", msg) end]] }
      s:start()
      s:see(workers == 0 and "msg=started" or "all workers started")
      local total = 0
      local changes = { 'order = "source",', 'order = "key",', 'order = "key", key = "k",', 'order = "none",' }
      for i, change in ipairs(changes) do
        local list = {}
        for k = 1, 4 do list[k] = { id = ("m%d-%d"):format(i, k), key = "k" .. k } end
        s:publish(list)
        clock.until_(function() return s.trace:count "begin" > total end, 15 * late, "one to begin")
        setting(s, change)
        local done = s:ask "reload"
        assert.equal(0, done.code, change .. ": " .. done.stderr .. s.child:stderr())
        assert(done.stdout:find "1 kept, 1 started, 1 draining", done.stdout)
        total = total + 4
        all_handled(s, total)
      end
      clock.until_(function()
        local since = s.child:stderr():match "msg=reloaded generation=5.*"
        return select(2, since:gsub('msg="pipeline started" pipeline=p', "")) == math.max(1, workers)
      end, 15 * late, "all to start")
      assert.equal(0, s:count "refused", s.child:stderr())
      assert.equal(0, (s.child:stop(20)), s.child:stderr())
    end)
  end

  -- One worker has nothing to drain, and waits for the group that the other still has; then comes the next change.
  it("waits for the other workers, however often it changes meanwhile", function()
    local s = supervised.scene { flags = { "--workers", "2" }, settings = 'order = "none",', more = MORE,
      handler = [[function M.handle(msg) trace("begin", msg) mw.sleep(2) trace("done", msg) end]] }
    s:start()
    s:see "all workers started"
    s:publish { { id = "m1" } }
    clock.until_(function() return s.trace:count "begin" == 1 end, 15 * late, "it to begin")
    for _, change in ipairs { 'order = "source",', 'order = "key",' } do
      setting(s, change)
      local done = s:ask "reload"
      assert.equal(0, done.code, change .. ": " .. done.stderr .. s.child:stderr())
    end
    assert.equal(0, s.trace:count "done", "it was over before the second change")
    clock.until_(function() return s:count 'msg="pipeline started" pipeline=p' == 2 end, 15 * late, "both to start")
    s:publish { { id = "m2" } }
    all_handled(s, 2)
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
  end)
end)
