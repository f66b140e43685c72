-- mw.all and mw.sleep on the real loop.
local async = require "moonwire.internal.api.async"
local clock = require "spec.support.wait" -- mw.now() stands still within a turn of the loop
local core = require "moonwire.core"
local runtime = require "moonwire.internal.runtime"
local wait = require "moonwire.internal.wait"

-- Runs fn as a task until it is over; its results, or its error.
local function run(fn)
  local results, over, failure
  runtime.spawn(function() results = { fn() } end, nil, function(err)
    over, failure = true, err
  end)
  for _ = 1, 500 do
    if over then break end
    core.step(10)
  end
  assert(over, "it never ended")
  return results, failure
end

local function steps(n) for _ = 1, n do core.step(5) end end

describe("mw.sleep", function()
  it("waits that long", function()
    local before = clock.now()
    run(function() async.sleep(0.03) end)
    local took = clock.now() - before
    assert.is_true(took >= 0.029 and took < 3, "took " .. took)
    run(function() async.sleep(0) end)
  end)

  it("refuses what is no time, and to wait where nothing can", function()
    for _, seconds in ipairs { -1, 0 / 0, math.huge, "1", {} } do
      local _, err = run(function() async.sleep(seconds) end)
      assert.matches("mw.sleep: expected seconds, 0 or more", err, 1, true)
    end
    assert.matches("only inside a handler", select(2, pcall(async.sleep, 1)), 1, true)
    local _, err = run(function() coroutine.wrap(function() async.sleep(0) end)() end)
    assert.matches("waiting inside a coroutine of your own is not possible", err, 1, true)
    steps(3)
  end)
end)

describe("mw.all", function()
  it("gives the first result of each, in order", function()
    local results = run(function()
      return async.all {
        function() async.sleep(0.02) return "a", "dropped" end, function() return "b" end, function() end,
        function() async.sleep(0.01) return false end,
      }
    end)
    assert.same({ "a", "b", nil, false }, { results[1], results[2], results[3], results[4] })
    assert.same({}, (run(function() return async.all {} end)))
  end)

  it("runs them side by side", function()
    local before = clock.now()
    local tasks = {}
    for i = 1, 50 do tasks[i] = function() async.sleep(0.04) return i end end
    local results = run(function() return async.all(tasks) end)
    assert.equal(50, #results)
    assert.is_true(clock.now() - before < 1.5, "one after the other")
  end)

  it("raises the first error and ends the others", function()
    local reached
    local _, err = run(function()
      async.all {
        function() async.sleep(0.05) reached = true end, function() async.sleep(0.01) error("no stock", 0) end,
        function() async.all { function() async.sleep(0.05) reached = true end } end,
      }
    end)
    assert.equal("no stock", err)
    steps(20)
    assert.is_nil(reached)
    local object = {}
    assert.equal(object, select(2, run(function() async.all { function() error(object) end } end)))
    assert.equal("error without a text", select(2, run(function() async.all { function() error() end } end)))
  end)

  it("does not begin what comes after one that fails at once", function()
    local began
    local _, err = run(function()
      async.all { function() error("at once", 0) end, function() began = true end }
    end)
    assert.equal("at once", err)
    assert.is_nil(began)
  end)

  it("goes on after an error that was caught, and nests", function()
    local results = run(function()
      local ok, err = pcall(async.all, { function() async.sleep(0.01) error("x", 0) end,
        function() async.sleep(5) end })
      local a, b = async.all {
        function() return (async.all { function() async.sleep(0.01) return 1 end }) end,
        function() return select(2, async.all { function() return 1 end, function() async.sleep(0) return 2 end }) end,
      }
      async.sleep(0)
      return ok, err, a, b
    end)
    assert.same({ false, "x", 1, 2 }, results)
  end)

  it("refuses what are no functions, holes too", function()
    for _, case in ipairs {
      { nil, "mw.all: expected a list of functions, got nil" }, { print, "got function" },
      { { 1 }, "mw.all: item 1 is a number, not a function" }, { { print, "x" }, "item 2 is a string" },
      { { nil, print }, "mw.all: item 1 is a nil, not a function" }, { { print, nil, print }, "item 2 is a nil" },
    } do
      local _, err = run(function() async.all(case[1]) end)
      assert.matches(case[2], tostring(err), 1, true)
    end
    assert.matches("only inside a handler", select(2, pcall(async.all, { print })), 1, true)
  end)

  it("is cancelled with all its children", function()
    local reached, ended = 0, 0
    local task = runtime.spawn(function()
      async.all {
        function() async.sleep(0.02) reached = reached + 1 end,
        function() async.all { function() async.sleep(0.02) reached = reached + 1 end } end,
      }
      reached = reached + 1
    end, nil, function() ended = ended + 1 end)
    wait.cancel(task)
    steps(20)
    assert.same({ 0, 0 }, { reached, ended })
  end)
end)

describe("runtime.spawn", function()
  it("ends with its function, whatever that returns", function()
    for _, value in ipairs { true, "idle", "waits", 1 } do
      local ended = 0
      runtime.spawn(function() return value end, nil, function(err) ended = ended + 1 assert(err == nil) end)
      assert.equal(1, ended, tostring(value))
      runtime.spawn(function() async.sleep(0) return value end, nil, function() ended = ended + 1 end)
      steps(3)
      assert.equal(2, ended, tostring(value) .. ", after a wait")
    end
  end)
end)
