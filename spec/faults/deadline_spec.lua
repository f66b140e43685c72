-- Handlers that compute for ever, eat all memory, recurse, or never come back: what happens to their message, to the
-- others, and to the process.
local broker = require "spec.support.broker"
local process = require "spec.support.process"
local project = require "spec.support.project"
local C = require "moonwire.internal.cdef"

local binary = os.getenv "MOONWIRE_BIN"
local late = binary:find "asan" and 3 or 1

C.mw_log_setup(0, 4)

-- Every body names what its handler does; the rest of the handlers' work goes on between.
local LOOPS = {
  ["empty"] = "while true do end",
  ["repeat"] = "repeat local x = 1 until x == 2",
  ["numeric"] = "for i = 1, math.huge do end",
  ["goto"] = "::again:: goto again",
  ["nested"] = "while true do for i = 1, 100 do for j = 1, 3 do sink = i * j end end end",
  ["pairs"] = "local t = { 1, 2, 3, x = 1 } while true do for k, v in pairs(t) do sink = v end end",
  ["tables"] = "while true do sink = { 1, 2, { 3 } } end",
  ["strings"] = "local s = '' while true do s = (s .. 'x'):sub(-100) end",
  ["patterns"] = "while true do sink = ('abc def'):gsub('%w+', 'x') end",
  ["closures"] = "while true do sink = function() return sink end end",
  ["calls"] = "local function f(n) return n + 1 end local n = 0 while true do n = f(n) end",
  ["tail"] = "local function f() return f() end f()",
  ["mutual"] = "local a, b function a(n) return b(n) end function b(n) return a(n) end a(1)",
  ["iterator"] = "for x in function() return 1 end do sink = x end",
  ["metamethods"] = [[local t = setmetatable({}, { __index = function(_, k) return k end })
    while true do sink = t[1] end]],
  ["pcall"] = "while true do pcall(function() while true do end end) end",
  ["pcall error"] = "while true do pcall(error, 'x') end",
  ["xpcall"] = "while true do xpcall(function() while true do end end, function(e) return e end) end",
  ["pcall in pcall"] = "local function f() pcall(f) while true do end end while true do pcall(f) end",
  ["wrap"] = "coroutine.wrap(function() while true do end end)()",
  ["resume"] = "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
  ["pcall resume"] = [[while true do pcall(function()
    coroutine.resume(coroutine.create(function() while true do pcall(function() while true do end end) end end))
    end) end]],
  ["generator"] = "for x in coroutine.wrap(function() while true do coroutine.yield(1) end end) do sink = x end",
  ["sort"] = "while true do table.sort({ 3, 1, 2 }, function(a, b) for i = 1, 1e9 do end return a < b end) end",
  ["gsub"] = "('x'):gsub('x', function() while true do end end)",
  ["json"] = "while true do sink = mw.json.decode(mw.json.encode { 1, 2, { a = 'b' } }) end",
  ["publish"] = "while true do mw.publish('out', 'x') end",
  ["after a wait"] = "mw.sleep(0.05) while true do end",
  ["in mw.all"] = "pcall(mw.all, { function() while true do end end, function() mw.sleep(1) end }) while true do end",
  ["in mw.all, after a wait"] = [[
    pcall(mw.all, { function() mw.sleep(0.02) while true do end end, function() mw.sleep(9) end })]],
  ["swallowed in mw.all"] = [[pcall(mw.all, { function()
    mw.sleep(0.02)
    while true do pcall(function() while true do end end) end
  end })]],
  ["beside one that waits"] = "mw.all { function() mw.sleep(9) end, function() while true do end end }",
  ["waits in a loop"] = "while true do pcall(mw.sleep, 0.001) end",
  ["an answer after all"] = "pcall(function() while true do end end) return true",
}

local function names()
  local list = {}
  for name in pairs(LOOPS) do list[#list + 1] = name end
  table.sort(list)
  return list
end

local function loops_handler()
  local parts = { "local sink\nlocal loops = {}\n" }
  for _, name in ipairs(names()) do
    parts[#parts + 1] = ("loops[%q] = function() %s end\n"):format(name, LOOPS[name])
  end
  parts[#parts + 1] = [[
    function M.handle(msg)
      if loops[msg.body] then
        trace("begin", msg)
        return loops[msg.body]()
      end
      trace("done", msg)
    end]]
  return table.concat(parts)
end

local function scene(given)
  local dir = process.tmpdir()
  local self = { url = "embedded:" .. dir .. "/store?size=1GB", trace = project.trace(dir .. "/trace"), dir = dir }
  project.make(dir .. "/p", given, self.trace.path)
  self.broker = broker.open(self.url)
  function self.start(...)
    return process.spawn { { binary, "run", dir .. "/p", ... }, env = { BROKER_URL = self.url } }
  end
  function self.once(...)
    local child = self.start("--once", ...)
    local code = child:wait(120 * late)
    return code, child:stderr()
  end
  function self.letters()
    local by_id = {}
    for _, m in ipairs(self.broker:messages "in.dead") do by_id[m.id] = m end
    return by_id
  end
  return self
end

describe("a handler that computes past its timeout", function()
  teardown(function() process.cleanup() end)

  for _, mode in ipairs { "on", "off" } do
    it("is broken, whatever loop it is in, and the others go on; jit " .. mode, function()
      local s = scene {
        settings = 'timeout = 0.1, retry = { attempts = 2, backoff = "fixed", base = 0.01 },',
        handler = loops_handler(),
      }
      local list = {}
      for _, name in ipairs(names()) do
        list[#list + 1] = { name, id = "loop " .. name }
        list[#list + 1] = { "fine", id = "fine" .. #list }
      end
      s.broker:publish("in", list)
      local code, text = s.once("--jit", mode)
      assert.equal(0, code, text)
      local letters = s.letters()
      for _, name in ipairs(names()) do
        local letter = letters["loop " .. name]
        assert.is_not_nil(letter, name .. " has no dead letter: " .. text)
        assert.equal("timeout", letter.headers["mw-dead-class"], name)
        -- what is broken there is a child of mw.all; its parent waits
        local where = LOOPS[name]:find("mw.all", 1, true) and "" or ", %a+ at handlers/[%w_]+.lua:%d+"
        assert.matches("^timed out after 0.1 s" .. where, letter.headers["mw-dead-last-error"], name)
        assert.equal("2", letter.headers["mw-dead-attempts"], name)
      end
      assert.equal(#names(), s.trace:count "done")
      assert.is_nil(text:find("internal error", 1, true), text)
    end)
  end

  it("holds up the others for no longer than its timeout", function()
    local s = scene { settings = "timeout = 0.3, retry = { attempts = 2, base = 0.01 },", handler = [[
      function M.handle(msg)
        if msg.body == "loop" then trace("begin", msg) while true do end end
        mw.sleep(0.01)
        trace("done", msg)
      end]] }
    local child = s.start()
    local list = { { "loop", id = "loop" } }
    for i = 1, 200 do list[#list + 1] = { "fine", id = "m" .. i, key = "k" .. i % 7 } end
    s.broker:publish("in", list)
    broker.turn_until(function() return s.trace:count "done" == 200 end, 10 * late, "the others")
    broker.turn_until(function() return s.letters().loop end, 10 * late, "the dead letter")
    assert.equal(2, s.trace:count "begin")
    assert.equal(0, child:stop(20))
  end)

  it("is broken in handle_batch, in the key, and in the generation that retires", function()
    local s = scene { settings = [[timeout = 0.2, retry = { attempts = 1 },
        key = function(msg) if msg.body == "key" then while true do end end return "k" end, ]],
      more = [[mw.pipeline "batch" { from = broker:channel "rows", handler = "handlers.batch", timeout = 0.2,
        batch = { size = 2, wait = 0.01 }, retry = { attempts = 1 } }]],
      files = { ["handlers/batch.lua"] = "return { handle_batch = function(list) while true do end end }" },
      handler = [[function M.handle(msg)
        if msg.body == "old" then
          trace("begin", msg)
          mw.sleep(0.1)
          while true do end
        end
        trace("done", msg)
      end]] }
    local child = s.start()
    s.broker:publish("in", { { "old", id = "old" } })
    broker.turn_until(function() return s.trace:count "begin" == 1 end, 10 * late, "the handler to begin")
    child:kill "HUP"
    broker.turn_until(function() return child:stderr():find "reloaded" end, 10 * late, "the reload")
    s.broker:publish("in", { { "key", id = "key" }, { "fine", id = "fine" } })
    s.broker:publish("rows", { { "1", id = "r1" }, { "2", id = "r2" } })
    broker.turn_until(function() return s.letters().old and s.letters().key end, 10 * late, "the dead letters")
    broker.turn_until(function() return #s.broker:messages "rows.dead" == 2 end, 10 * late, "those of the batch")
    broker.turn_until(function() return s.trace:count "done" == 1 end, 10 * late, "the good one")
    assert.equal("timeout", s.letters().old.headers["mw-dead-class"])
    assert.equal("timeout", s.broker:messages "rows.dead"[2].headers["mw-dead-class"])
    assert.matches("key: timed out after 0.2 s", s.letters().key.headers["mw-dead-reason"], 1, true)
    assert.equal(0, child:stop(20))
  end)

  it("is left alone without the watchdog", function()
    local s = scene { settings = "timeout = 0.1, retry = { attempts = 1 },", more = "mw.settings { watchdog = false }",
      handler = [[function M.handle(msg)
        local till = os.clock() + 0.6
        while os.clock() < till do end
        trace("done", msg)
      end]] }
    s.broker:publish("in", { { "x", id = "m1" } })
    assert.equal(0, (s.once()))
    assert.equal(1, s.trace:count "done")
  end)

  it("ends a process that nobody supervises when a C function does not come back; its message comes again", function()
    local s = scene { settings = "timeout = 0.2, retry = { attempts = 5 },", handler = [[
      function M.handle(msg)
        trace("begin", msg)
        if msg.attempt == 1 then
          local text = ("a"):rep(3e4)
          text:find(".-.-.-.-b")
        end
        trace("done", msg)
      end]] }
    s.broker:publish("in", { { "x", id = "m1", key = "a" }, { "y", id = "m2", key = "b" } })
    local child = s.start("--workers", "0")
    assert.equal(70, child:wait(20 * late), child:stderr())
    assert.matches('level=error msg="stuck in a C call past its timeout: the process ends" pipeline="p" id="m1"',
      child:stderr(), 1, true)
    child = s.start()
    broker.turn_until(function() return s.trace:count "done" >= 1 end, 30 * late, "the message to come back")
    local again = s.trace:of "done"[1]
    assert.equal("m1", again.id)
    assert.equal(2, again.attempt)
    child:kill "KILL"
    child:wait(10)
  end)
end)

describe("memory", function()
  teardown(function() process.cleanup() end)

  local HANDLER = [[
    local kinds = {
      table = function() local t = {} for i = 1, math.huge do t[i] = i end end,
      tables = function() local t = {} for i = 1, math.huge do t[i] = { i } end end,
      strings = function() local s = "x" while true do s = s .. s end end,
      concat = function() local t = {} for i = 1, math.huge do t[i] = "x" .. i end end,
      join = function() local t = { ("x"):rep(1e6) } while true do t[#t + 1] = table.concat(t) end end,
      rep = function() return #(("x"):rep(1e9)) == 1 end,
      format = function() local t = {} for i = 1, 1e9 do t[i] = ("%d"):format(i) end end,
      closures = function() local t = {} for i = 1, 1e9 do t[i] = function() return i end end end,
      coroutines = function() local t = {} for i = 1, 1e9 do t[i] = coroutine.create(function() end) end end,
      json = function() local t = {} for i = 1, 1e9 do t[i] = mw.json.decode('{"a":[1,2,3],"b":"' .. i .. '"}') end end,
    }
    function M.handle(msg)
      local kind = kinds[msg.body]
      if kind then return kind() end
      if msg.body == "garbage" then -- several times the limit passes through
        local keep = {}
        for i = 1, 10000 do keep[i] = ("x"):rep(1000) .. i end
        for i = 1, 200000 do keep[0] = ("y"):rep(1000) .. i end
      end
      trace("done", msg)
    end]]
  local KINDS = { "table", "tables", "strings", "concat", "join", "rep", "format", "closures", "coroutines", "json" }

  for _, mode in ipairs { "on", "off" } do
    it("beyond the limit is an error in the handler that asks for it, again and again; jit " .. mode, function()
      local s = scene { settings = 'timeout = 60, retry = { attempts = 1 }, order = "none",', handler = HANDLER,
        more = 'mw.settings { memory = "64MB" }' }
      local list, rounds = {}, late > 1 and 1 or 3
      for round = 1, rounds do
        for _, kind in ipairs(KINDS) do
          list[#list + 1] = { kind, id = kind .. round }
          list[#list + 1] = { "fine", id = "fine" .. #list }
        end
        list[#list + 1] = { "garbage", id = "garbage" .. round }
      end
      s.broker:publish("in", list)
      local code, text = s.once("--jit", mode)
      assert.equal(0, code, text)
      local letters = s.letters()
      for round = 1, rounds do
        for _, kind in ipairs(KINDS) do
          local letter = letters[kind .. round]
          assert.is_not_nil(letter, kind .. " has no dead letter: " .. text)
          assert.equal("memory", letter.headers["mw-dead-class"], kind)
          assert.equal("out of memory: the limit is 64 MB", letter.headers["mw-dead-last-error"], kind)
        end
      end
      assert.equal(rounds * (#KINDS + 1), s.trace:count "done")
      assert.is_nil(text:find("internal error", 1, true), text)
    end)
  end

  it("that a module keeps makes its messages fail, not the process", function()
    local s = scene { settings = 'timeout = 60, retry = { attempts = 1 }, order = "none",', handler = [[
      local kept = {}
      function M.handle(msg)
        for i = 1, 100 do kept[#kept + 1] = ("x"):rep(1e5) .. #kept end
        trace("done", msg)
      end]], more = "mw.settings { memory = 33554432 }" }
    local list = {}
    for i = 1, 50 do list[i] = { "x", id = "m" .. i } end
    s.broker:publish("in", list)
    local code, text = s.once()
    assert.equal(0, code, text)
    local dead = #s.broker:messages "in.dead"
    assert.is_true(dead > 40 and dead < 50, dead .. " dead")
    assert.equal(50, dead + s.trace:count "done")
  end)
end)

describe("recursion without an end", function()
  teardown(function() process.cleanup() end)

  it("is an error, through whatever it goes", function()
    local kinds = {
      plain = "local function f() return 1 + f() end f()",
      pcall = "local function f() pcall(f) error 'up' end f()",
      gsub = "local function f() return (('x'):gsub('x', f)) end f()",
      sort = "local function f() table.sort({ 1, 2, 3 }, f) end f()",
      wrap = "local function f() return coroutine.wrap(f)() end f()",
      resume = "local function f() assert(coroutine.resume(coroutine.create(f))) end f()",
      tostring = [[local t = setmetatable({}, {})
        getmetatable(t).__tostring = function(s) return "x" .. ("%s"):format(s) end
        tostring(t)]],
      index = [[local t = setmetatable({}, {})
        getmetatable(t).__index = function(s, k) return s[k .. ""] .. "x" end
        error(t.x)]],
      pattern = "('a'):rep(3e5):find(('a?'):rep(3e5) .. 'b')",
      decode = "error((select(2, mw.json.decode(('['):rep(1e6)))))",
      encode = "local t = {} for _ = 1, 1e5 do t = { t } end error((select(2, mw.json.encode(t))))",
      load = "error((select(2, loadstring(('('):rep(1e6)))))",
    }
    local parts, list = { "local kinds = {}\n" }, {}
    for name, code in pairs(kinds) do
      parts[#parts + 1] = ("kinds[%q] = function() %s end\n"):format(name, code)
      list[#list + 1] = { name, id = name }
    end
    parts[#parts + 1] = "function M.handle(msg) kinds[msg.body]() end"
    local s = scene { settings = "timeout = 20, retry = { attempts = 1 },", handler = table.concat(parts) }
    s.broker:publish("in", list)
    local code, text = s.once()
    assert.equal(0, code, text)
    local letters = s.letters()
    for name in pairs(kinds) do
      assert.is_not_nil(letters[name], name .. " has no dead letter: " .. text)
      assert.equal("transient", letters[name].headers["mw-dead-class"], name)
    end
  end)
end)
