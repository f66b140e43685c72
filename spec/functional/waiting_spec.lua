-- Waiting where a coroutine cannot be left: an error that says so, nothing armed, and nobody else woken by it.
local cli = require "spec.functional.cli.support"

-- A body is the code of its handler.
local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect "embedded:data"
local function at_once() mw.sleep(0) end
local function in_sort(fn) table.sort({ 2, 1 }, fn) end
mw.pipeline "p" { from = broker:channel "orders", order = "none", timeout = TIMEOUT, retry = { attempts = 1 },
  DEDUPE handler = function(msg)
    local run = assert(load("local mw, msg, in_sort = ... " .. msg.body, "code"))
    return run(mw, msg, in_sort)
  end }
]]

local function project(settings)
  local here = cli.workdir()
  local main = MAIN:gsub("TIMEOUT", tostring(settings and settings.timeout or 30))
  here:write("moonwire.lua", (main:gsub("DEDUPE", settings and settings.dedupe or "")))
  return here
end

-- Runs one message for each code; the errors of those that died, by id: m1, m2, …
local function run(here, codes)
  for i, code in ipairs(codes) do here:publish("orders", code, "--id", "m" .. i) end
  local result = here:run({ "run", "--once", "--workers", "0" }, { timeout = 40 })
  assert.equal(0, result.code, result.stderr)
  local dead = {}
  for _, letter in ipairs(here:letters()) do dead[letter.id] = letter.reason:gsub("^gave up after 1 attempt: ", "") end
  return dead, result.stderr
end

local WAITS = {
  { "mw.sleep", "mw.sleep(0.05)" },
  { "mw.http.get", "mw.http.get 'http://127.0.0.1:1/'" },
  { "mw.publish with now", "mw.publish('other', 'x', { now = true })" },
  { "mw.request", "mw.request('nobody', {}, { timeout = 0.05 })" },
  { "mw.redis", "mw.redis 'redis://127.0.0.1:1':get 'x'" },
  { "mw.all", "mw.all { function() mw.sleep(0.05) end }" },
}

describe("waiting", function()
  it("inside table.sort is refused by all that wait, with the line, and wakes nobody else", function()
    local here = project()
    local codes, sleep = {}, "local t = mw.now() mw.sleep(1) mw.log.info('slept', { long = mw.now() - t >= 0.99 })"
    for i, w in ipairs(WAITS) do codes[i] = ("\nin_sort(function() %s end)"):format(w[2]) end
    for _ = 1, 12 do codes[#codes + 1] = sleep end
    local dead, log = run(here, codes)
    for i, w in ipairs(WAITS) do
      local expected = ("code:2: %s cannot wait inside table.sort: call it outside of that"):format(w[1])
      assert.equal(expected, dead["m" .. i])
      dead["m" .. i] = nil
    end
    assert.same({}, dead)
    assert.equal(12, select(2, log:gsub("long=true", "")), log)
    assert.equal(0, #here:messages "other")
  end)

  it("is refused inside of string.gsub, of a tostring within C, and of xpcall's error function", function()
    local dead = run(project(), {
      "return (('x'):gsub('x', function() mw.sleep(0) end))",
      "string.format('%s', setmetatable({}, { __tostring = function() mw.sleep(0) end }))",
      "local _, e = xpcall(error, function() return select(2, pcall(mw.sleep, 0)) end) error(e, 0)",
    })
    assert.matches("mw.sleep cannot wait inside string.gsub", dead.m1, 1, true)
    assert.matches("mw.sleep cannot wait inside string.format", dead.m2, 1, true)
    assert.matches("mw.sleep cannot wait in the error function of xpcall", dead.m3, 1, true)
  end)

  it("is refused while a file is loaded, which others may load meanwhile", function()
    local here = project()
    here:write("lazy.lua", "require 'moonwire'.sleep(0.1)\nreturn {}")
    local dead = run(here, { "require 'lazy'", "require 'lazy'" })
    for _, id in ipairs { "m1", "m2" } do
      assert.matches("lazy.lua:1: mw.sleep cannot wait while a file is loaded (lazy.lua)", dead[id], 1, true)
    end
  end)

  it("goes on where it always could: pcall, metamethods, iterators", function()
    local dead = run(project(), {
      "assert(pcall(mw.sleep, 0.01))",
      "local t = setmetatable({}, { __index = function() mw.sleep(0.01) return 1 end }) assert(t.x == 1)",
      "local n = 0 for _ in function() mw.sleep(0.01) n = n + 1 return n < 3 or nil end do end assert(n == 3)",
    })
    assert.same({}, dead)
  end)

  it("that is refused leaves the deadline in force", function()
    local dead = run(project { timeout = 0.5 }, { "pcall(in_sort, function() mw.sleep(1) end) while true do end" })
    assert.matches("^timed out after 0.5 s, computing at code:1$", dead.m1)
  end)

  it("that goes past the deadline is told with its place", function()
    local dead = run(project { timeout = 0.1 }, { "mw.sleep(5) return true", "return mw.sleep(5)" })
    assert.equal("timed out after 0.1 s, waiting at code:1", dead.m1)
    assert.matches("^timed out after 0.1 s", dead.m2) -- a tail call leaves no place behind
  end)

  -- A connection that nobody opens crashed the worker when a message was to leave through it.
  it("is no time to declare things: what belongs into moonwire.lua is refused in handlers", function()
    local dead = run(project(), {
      "mw.publish(mw.connect('embedded:other'):channel 'x', 'hi')",
      "mw.pipeline 'x' {}",
      "mw.settings { drain = 1 }",
    })
    for i, name in ipairs { "connect", "pipeline", "settings" } do
      assert.matches("code:1: mw." .. name .. ": only while the project is read", dead["m" .. i], 1, true)
    end
  end)

  it("is nothing that a function for dedupe's key disturbs", function()
    local here = project { dedupe = "dedupe = { key = function(msg) pcall(in_sort, at_once) return msg.key end }," }
    for i = 1, 6 do here:publish("orders", "mw.log.info 'handled'", "--id", "k" .. i, "--key", "k" .. i % 2) end
    local dead, log = run(here, {})
    assert.same({}, dead)
    assert.equal(2, select(2, log:gsub("msg=handled", "")), log)
  end)
end)
