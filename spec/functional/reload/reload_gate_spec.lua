-- reload --gate spec: the project's specs run on the new code first. What fails changes nothing, and the command says
-- which spec, where and why. What is tested is what is loaded.
local clock = require "spec.support.wait"
local process = require "spec.support.process"

local binary = os.getenv "MOONWIRE_BIN"

local MAIN = [[
local mw = require "moonwire"
mw.settings { gate = %q, gate_limit = 30 }
mw.pipeline "p" { from = mw.connect "embedded:data":channel "in", handler = "handlers.h" }
]]
local HANDLER = [[
local mw = require "moonwire"
return { version = %q, handle = function(msg)
  mw.log.info(%q)
  mw.publish("out", { version = %q })
end }
]]
-- Holds for version 1 and 2 only. The handler's module and the running project must agree.
local SPEC = [[
local testing = require "moonwire.testing"
describe("the handler", function()
  it("is a version that we know", function()
    local app = testing.start()
    app:publish("in", "x")
    app:settle()
    local version = app:published("out")[1].data.version
    app:stop()
    assert.equal(require("handlers.h").version, version)
    %s
    assert.truthy(version == "one" or version == "two", "unknown version " .. version)
  end)
end)
]]

describe("the gate", function()
  local dir, child

  local function write(name, text)
    local file = assert(io.open(dir .. "/" .. name, "wb"))
    file:write(text)
    file:close()
  end

  local function handler(version) write("handlers/h.lua", HANDLER:format(version, "ran " .. version, version)) end
  local function exists(name) return io.open(dir .. "/" .. name) ~= nil end
  local function see(pattern)
    return clock.until_(function() return child:stderr():match(pattern) end, 30, pattern)
  end
  local function reload(...) return process.run { binary, "reload", dir, timeout = 60, ... } end

  local function publish(id)
    local sent = process.run { binary, "publish", "in", "x", "--id", id, "--broker", "embedded:" .. dir .. "/data" }
    assert(sent.code == 0, sent.stderr)
  end

  local function begin(gate, flags) -- some of it without a supervisor
    dir = process.tmpdir()
    assert(process.run({ "mkdir", dir .. "/handlers", dir .. "/spec" }).code == 0)
    write("moonwire.lua", MAIN:format(gate))
    write("spec/h_spec.lua", SPEC:format "")
    handler "one"
    child = process.spawn { { binary, "run", dir, unpack(flags or {}) }, env = { BROKER_URL = false } }
    see "msg=started"
  end

  after_each(function()
    if child then assert.equal(0, (child:stop(15)), child:stderr()) end
    child = nil
  end)

  it("lets code pass whose specs pass", function()
    begin "none"
    handler "two"
    local done = reload("--gate", "spec")
    assert.equal(0, done.code, done.stderr)
    assert(done.stdout:find("generation 2: 1 kept", 1, true), done.stdout)
    publish "m"
    see 'msg="ran two"[^\n]*id=m'
  end)

  it("refuses the others, and says which spec, where and why", function()
    begin("none", { "--workers", "0" })
    handler "three"
    local refused = reload("--gate", "spec")
    assert.equal(1, refused.code)
    assert(refused.stderr:find("spec/h_spec.lua:11: the handler is a version that we know", 1, true), refused.stderr)
    assert(refused.stderr:find("unknown version three", 1, true), refused.stderr)
    assert(refused.stderr:find("refused: the old code keeps running", 1, true), refused.stderr)
    assert.equal("", refused.stdout)
    publish "m"
    see 'msg="ran one"[^\n]*id=m'
    see 'msg="reload refused"[^\n]*by=gate'
    local json = reload("--gate", "spec", "--json").stdout
    assert(json:find('"file":"spec/h_spec.lua","line":11', 1, true), json)
    assert(json:find('"state":"refused"', 1, true), json)
    assert.equal(0, reload("--gate", "none").code)
    publish "n"
    see 'msg="ran three"[^\n]*id=n'
  end)

  it("is the project's setting too, for HUP as well", function()
    begin "spec"
    handler "three"
    child:kill "HUP"
    see 'msg="reload refused"[^\n]*spec/h_spec.lua:11'
    handler "two"
    child:kill "HUP"
    see "msg=reloaded"
    assert.equal(0, reload().code)
    assert(child:stderr():find('msg="the specs passed"', 1, true))
  end)

  it("stands before run --watch, and what is saved meanwhile replaces what is being tested", function()
    begin("none", { "--watch", "--gate", "spec", "--workers", "2" })
    -- This spec says that it runs, and does not end before it is told to; what replaces it does not wait for that.
    write("spec/h_spec.lua", SPEC:format(([[
      io.open(%q, "w"):close()
      local deadline = os.time() + 60
      while version ~= "two" and os.time() < deadline do end
    ]]):format(dir .. "/begun")))
    handler "three"
    clock.until_(function() return exists "begun" end, 30, "the specs to run")
    handler "two"
    see "another reload came between"
    see "msg=reloaded"
    publish "m"
    see 'msg="ran two"[^\n]*id=m'
    assert.falsy(child:stderr():find("ran three", 1, true))
  end)

  it("tests what it has loaded, whatever becomes of the files meanwhile", function()
    begin "none"
    write("spec/h_spec.lua", ([[
      io.open(%q, "w"):close()
      while not io.open(%q) do end
    ]]):format(dir .. "/begun", dir .. "/go_on") .. SPEC:format "")
    handler "two"
    local asked = process.spawn { { binary, "reload", dir, "--gate", "spec" } }
    clock.until_(function() return exists "begun" end, 30, "the specs to run")
    handler "three" -- would fail; but it is not what was loaded
    write("go_on", "")
    assert.equal(0, (asked:wait(60)), asked:stderr())
    publish "m"
    see 'msg="ran two"[^\n]*id=m'
    os.remove(dir .. "/begun")
    os.remove(dir .. "/go_on")
    asked = process.spawn { { binary, "reload", dir, "--gate", "spec" } }
    clock.until_(function() return exists "begun" end, 30, "the specs to run")
    handler "two" -- would pass; but "three" was loaded
    write("go_on", "")
    assert.equal(1, (asked:wait(60)))
    assert(asked:stderr():find("unknown version three", 1, true), asked:stderr())
  end)

  it("does not hold up the messages, and has a limit", function()
    begin "none"
    write("spec/h_spec.lua", ([[
      print "on and on"
      io.open(%q, "w"):close()
      while true do end
    ]]):format(dir .. "/begun"))
    local asked = process.spawn { { binary, "reload", dir, "--gate", "spec", "--gate-limit", "3s" } }
    clock.until_(function() return exists "begun" end, 30, "the specs to run")
    publish "m"
    see 'msg="ran one"[^\n]*id=m'
    assert.equal(1, (asked:wait(60)))
    assert(asked:stderr():find("the specs were not over after 3 s", 1, true), asked:stderr())
    assert(asked:stderr():find("on and on", 1, true), asked:stderr())
  end)

  it("refuses when there is no spec, one that does not load, or a process that dies", function()
    begin "none"
    for text, expected in pairs {
      ["describe('x', function() it('y', function("] = "spec/h_spec.lua:1",
      ["local ffi = require 'ffi' ffi.cdef 'int raise(int)' ffi.C.raise(9)"] = "the specs ended with 137",
      ["describe('x', function() before_each(function() error 'no database' end) it('y', function() end) end)"]
        = "no database",
      ["it('y', function() os.exit(0, true) end)"] = "the specs ended with 0, before they were over",
      ["it('odd \\255', function() error '\\0\\255' end)"] = "spec/h_spec.lua:1: odd",
      ["it('long', function() error('x' .. ('ä'):rep(5000), 0) end)"] = "xäää", -- cut inside of a character
    } do
      write("spec/h_spec.lua", text)
      local refused = reload("--gate", "spec")
      assert.equal(1, refused.code)
      assert(refused.stderr:find(expected, 1, true), text .. "\n" .. refused.stderr)
    end
    os.remove(dir .. "/spec/h_spec.lua")
    local none = reload("--gate", "spec")
    assert.equal(1, none.code)
    assert(none.stderr:find("no specs there", 1, true), none.stderr)
  end)

  it("answers at once with --no-wait, and status tells what came of it", function()
    begin "none"
    handler "three"
    local at_once = reload("--gate", "spec", "--no-wait")
    assert.equal(0, at_once.code, at_once.stderr)
    assert(at_once.stdout:find("begun", 1, true), at_once.stdout)
    clock.until_(function()
      local status = process.run { binary, "status", dir, "--json" }
      return status.stdout:find('"state":"refused"', 1, true) and status.stdout:find("unknown version three", 1, true)
    end, 30, "the refusal in the status")
  end)

  it("ends with the process, and the process does not wait for it", function()
    begin "none"
    write("spec/h_spec.lua", ([[
      local file = io.open(%q, "w")
      file:write(io.open("/proc/self/stat"):read("*a"):match "^%%d+")
      file:close()
      while true do end
    ]]):format(dir .. "/begun"))
    assert.equal(0, reload("--gate", "spec", "--no-wait").code)
    local pid = clock.until_(function()
      local file = io.open(dir .. "/begun")
      local text = file and file:read "*a"
      return text and text:match "%d+"
    end, 30, "the specs to run")
    assert.equal(0, (child:stop(15)))
    child = nil
    clock.until_(function() return not io.open("/proc/" .. pid .. "/stat") end, 15, "the specs to end")
  end)
end)
