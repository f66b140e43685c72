-- moonwire test from outside: what it finds, how it ends, what it writes, and --watch.
local process = require "spec.support.process"
local wait = require "spec.support.wait"

local binary = os.getenv "MOONWIRE_BIN"

local MAIN = [[
local mw = require "moonwire"
mw.pipeline "p" { from = mw.connect "embedded:data":channel "in", handler = "handlers.h" }
]]
local SPEC = [[
local testing = require "moonwire.testing"
describe(%q, function()
  local app
  before_each(function() app = testing.start() end)
  after_each(function() app:stop() end)
  it("takes <a> & \"b\"", function()
    app:publish("in", "x")
    app:settle()
    assert.handled(app, "p", %d)
  end)
end)
]]

describe("moonwire test", function()
  local dir

  local function write(name, text)
    local file = assert(io.open(dir .. "/" .. name, "wb"))
    file:write(text)
    file:close()
  end

  local function test(...) return process.run { { binary, "test", ... }, cwd = dir, timeout = 60 } end

  before_each(function()
    dir = process.tmpdir()
    assert(process.run({ "mkdir", dir .. "/handlers", dir .. "/spec", dir .. "/empty" }).code == 0)
    write("moonwire.lua", MAIN)
    write("handlers/h.lua", "return { handle = function() end }")
    write("handlers/h_spec.lua", SPEC:format("beside", 1))
    write("spec/h_spec.lua", SPEC:format("apart", 1))
    write("spec/not_a_spec_file.lua", "error 'not a spec'")
  end)

  it("finds specs in spec and next to the handlers, and takes paths", function()
    local all = test()
    assert.equal(0, all.code, all.stdout .. all.stderr)
    assert(all.stdout:find("2 successes / 0 failures / 0 errors", 1, true), all.stdout)
    for _, path in ipairs { "handlers", "spec", "spec/h_spec.lua", dir .. "/handlers/h_spec.lua" } do
      local one = test(path)
      assert(one.code == 0 and one.stdout:find("1 success /", 1, true), one.stdout .. one.stderr)
    end
    assert(test("spec", "handlers").stdout:find("2 successes", 1, true))
    assert(test("--filter", "beside").stdout:find("1 success /", 1, true))
  end)

  it("ends with 1 when a spec fails, and says what happened instead", function()
    write("spec/h_spec.lua", SPEC:format("apart", 2))
    local failed = test()
    assert.equal(1, failed.code)
    assert(failed.stdout:find("spec/h_spec.lua:9: pipeline \"p\" handled 1, expected 2", 1, true), failed.stdout)
    assert(failed.stdout:find("received 1, handled 1, retried 0", 1, true), failed.stdout)
  end)

  it("ends with 1 when there is nothing to run", function()
    for _, words in ipairs { { "empty" }, { "--filter", "no such name" }, { "nowhere" } } do
      local none = test(unpack(words))
      assert.equal(1, none.code)
      assert(none.stderr:find("no spec", 1, true) or none.stderr:find("no such file or folder", 1, true), none.stderr)
    end
    write("spec/broken_spec.lua", "describe(")
    assert.equal(1, test().code)
  end)

  it("writes TAP", function()
    write("spec/h_spec.lua", SPEC:format("apart", 2))
    local tap = test("-o", "tap")
    assert.equal(1, tap.code)
    assert(tap.stdout:find("\nnot ok 2 - apart takes", 1, true), tap.stdout)
    assert(tap.stdout:find("ok 1 - beside takes", 1, true), tap.stdout)
    assert(tap.stdout:find("\n1..2\n", 1, true), tap.stdout)
  end)

  it("writes TAP for a spec that does not load, too", function()
    write("spec/h_spec.lua", 'it("has no end", function()')
    local tap = test("-o", "tap")
    assert.equal(1, tap.code, tap.stderr)
    assert(tap.stdout:find "not ok %d %- [^\n]*h_spec.lua\n# [^\n]*h_spec.lua:1\n", tap.stdout)
    assert(tap.stdout:find("ok 2 - beside takes", 1, true), tap.stdout)
    assert.equal("", tap.stderr)
  end)

  -- Lua cannot end it, and its process dies with it: what was known until then is told all the same.
  it("tells the results so far when a handler is stuck in a C call, and fails", function()
    write("moonwire.lua", [[
      local mw = require "moonwire"
      mw.pipeline "stuck" { from = mw.connect "memory:":channel "in", timeout = 0.1, handler = function()
        return ("a"):rep(60):find(("a?"):rep(60) .. ("a"):rep(60)) and nil
      end }]])
    write("spec/h_spec.lua", [[
      it("is fine", function() end)
      it("is wrong", function() error "on purpose" end)
      it("sticks", function()
        local app = require "moonwire.testing".start()
        app:publish("in", "x")
        app:run()
      end)
      it("is behind it", function() end)]])
    local plain, tap = test("--filter", "^is ", "--filter", "sticks"), test("-o", "tap", "--filter", "sticks")
    assert.equal(1, plain.code, plain.stderr)
    assert(plain.stdout:find("is wrong: ", 1, true) and plain.stdout:find("on purpose", 1, true), plain.stdout)
    assert(plain.stdout:find("stuck in a C call past its timeout: sticks\n", 1, true), plain.stdout)
    assert(plain.stdout:find("1 passed, 2 failed, 0 pending; those behind it did not run", 1, true), plain.stdout)
    assert(plain.stderr:find('pipeline="stuck"', 1, true), plain.stderr)
    assert.equal(1, tap.code, tap.stderr)
    assert(tap.stdout:find("not ok %d %- sticks\n.*\nBail out!"), tap.stdout)
  end)

  it("fails, duplicates, reorders, redelivers and crashes on demand", function()
    write("handlers/h_spec.lua", [[
      local testing = require "moonwire.testing"
      describe("trouble", function()
        local app
        before_each(function() app = testing.start() end)
        after_each(function() app:stop() end)
        it("of handlers", function()
          app:fail("p", 3)
          app:publish("in", "x")
          app:settle()
          assert.retried(app, "p", 3)
          assert.equal("made to fail by the spec", app:retries("p")[1].error)
          assert.handled(app, "p", 1)
          app:fail("p", 1, "invalid")
          app:publish("in", "y")
          app:settle()
          assert.dead(app, "p", { class = "invalid", error = "made to fail" })
        end)
        it("of an app of its own", function()
          app:publish("in", "x")
          app:settle()
          assert.handled(app, "p", 1)
          assert.has_error(function() app:fail "q" end)
        end)
        it("of brokers", function()
          app:duplicate(1)
          app:publish("in", "x")
          app:settle()
          assert.handled(app, "p", 2)
          app:publish("in", "y")
          app:crash "before_ack"
          app:settle()
          assert.handled(app, "p", 1)
        end)
      end)
    ]])
    local result = test "handlers"
    assert.equal(0, result.code, result.stdout .. result.stderr)
    assert(result.stdout:find("3 successes", 1, true), result.stdout)
  end)

  it("runs again on a change with --watch, until it is told to end", function()
    local child = process.spawn { { binary, "test", "--watch" }, cwd = dir }
    local function see(n, text) -- n times by now
      wait.until_(function()
        local _, count = child:stderr():gsub(text, "")
        return count >= n
      end, 60, text)
    end
    see(1, "passed; waiting for changes")
    write("handlers/h.lua", "return { handle = function() error 'no' end }")
    see(1, "failed; waiting for changes")
    assert(child:stdout():find("handled 0, expected 1", 1, true), child:stdout())
    write("handlers/h.lua.tmp", "return { handle = function() end }")
    assert(os.rename(dir .. "/handlers/h.lua.tmp", dir .. "/handlers/h.lua"))
    see(2, "passed; waiting for changes")
    assert.is_nil(child:stdout():find "\27") -- no terminal: nothing is cleared
    -- A run that would not end is ended by the next change, and by the signal.
    write("spec/h_spec.lua", "while true do end")
    wait.sleep(0.5)
    write("spec/h_spec.lua", SPEC:format("apart", 1))
    see(3, "passed; waiting for changes")
    write("spec/h_spec.lua", "while true do end")
    wait.sleep(0.5)
    child:kill "TERM"
    assert.equal(0, (child:wait(15)))
  end)

  it("runs again with --watch when the link that it was given leads elsewhere", function()
    local at = process.tmpdir()
    process.run { { "sh", "-c", 'cp -r "$1" next && ln -s "$1" current', "sh", dir }, cwd = at }
    local file = assert(io.open(at .. "/next/handlers/h.lua", "wb"))
    file:write "return { handle = function() error 'no' end }"
    file:close()
    local child = process.spawn { { binary, "test", "--watch", "current" }, cwd = at }
    local function see(text) wait.until_(function() return child:stderr():find(text, 1, true) end, 60, text) end
    see "passed; waiting for changes"
    process.run { { "ln", "-sfn", "next", "current" }, cwd = at }
    see "failed; waiting for changes"
    child:kill "TERM"
    assert.equal(1, (child:wait(15)))
  end)
end)
