-- reload --canary: new code on a share of the messages. Worse code is rolled back by itself, other code is promoted;
-- keys keep their generation while it runs, and nothing is lost either way.
local clock = require "spec.support.wait"
local core = require "moonwire.core"
local json = require "moonwire.json"
local process = require "spec.support.process"

local binary = os.getenv "MOONWIRE_BIN"

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect "embedded:data"
mw.pipeline "p" { from = broker:channel "in", handler = "h", order = %q,
  retry = { attempts = 5, base = 0.05, cap = 0.05 }, dead = broker:channel "in.dead" }
%s
]]
-- Fails a share of its first attempts; writes a line a message that it has handled.
local HANDLER = [[
local mw = require "moonwire"
return { handle = function(msg)
  local n = msg.data.n
  if msg.attempt <= %d and n %% %d == 0 then error "unlucky" end
  local file = io.open(%q, "a")
  file:write(msg.key, " ", n, " %s\n")
  file:close()
end }
]]

describe("a canary", function()
  local dir, child, published

  local function write(name, text)
    local file = assert(io.open(dir .. "/" .. name, "wb"))
    file:write(text)
    file:close()
  end

  -- `bad`: one in so many fails at first; `until_attempt`: up to which attempt
  local function handler(version, bad, until_attempt)
    write("h.lua", HANDLER:format(until_attempt or 1, bad or 1e9, dir .. "/trace", version))
  end

  local function see(pattern)
    return clock.until_(function() return child:stderr():match(pattern) end, 30, pattern)
  end
  local function reload(...) return process.run { binary, "reload", dir, timeout = 120, ... } end
  local function status() return assert(json.decode(process.run({ binary, "status", dir, "--json" }).stdout)) end

  local function begin(order, workers)
    dir = process.tmpdir()
    published = 0
    write("moonwire.lua", MAIN:format(order or "key", ""))
    handler "old"
    child = process.spawn { { binary, "run", dir, "--workers", workers or 1 }, env = { BROKER_URL = false } }
    see(workers == 0 and "msg=started" or 'msg="all workers started"')
  end

  local function publish(n)
    local lines = {}
    for i = 1, n do
      published = published + 1
      lines[i] = json.encode { n = published, key = "k" .. published % 50 }
    end
    local sent = process.run { binary, "publish", "in", "--lines", "--key-path", "key", "--broker",
      "embedded:" .. dir .. "/data", stdin = table.concat(lines, "\n") .. "\n" }
    assert(sent.code == 0, sent.stderr)
  end

  -- What was handled: lines of { key, number, version }.
  local function trace()
    local list, file = {}, io.open(dir .. "/trace")
    if not file then return list end
    for line in file:lines() do
      local key, number, version = line:match "^(%S+) (%d+) (%S+)$"
      list[#list + 1] = { key = key, number = tonumber(number), version = version }
    end
    file:close()
    return list
  end

  local function all_handled_once()
    clock.until_(function() return #trace() >= published end, 60, "all to be handled")
    local seen = {}
    for _, line in ipairs(trace()) do
      assert.is_nil(seen[line.number], ("message %d was handled twice"):format(line.number))
      seen[line.number] = true
    end
    assert.equal(published, #trace())
  end

  -- Publishes while a reload waits for its end.
  local function pump(...)
    local asked = process.spawn { { binary, "reload", dir, ... } }
    clock.until_(function()
      publish(100)
      return not asked:alive()
    end, 120, "the canary to end")
    return { code = asked:wait(10), stdout = asked:stdout(), stderr = asked:stderr() }
  end

  after_each(function()
    if child then assert.equal(0, (child:stop(15)), child:stderr()) end
    child = nil
  end)

  it("of good code is promoted, and its keys stay together meanwhile", function()
    begin("key", 0)
    handler "new"
    local done = pump("--canary", "30%", "--for", "2s")
    assert.equal(0, done.code, done.stderr)
    assert(done.stdout:find("generation 2: 1 kept", 1, true), done.stdout)
    assert(done.stdout:find("pipeline p: new code: 0 of ", 1, true), done.stdout)
    publish(100)
    all_handled_once()
    -- A key goes over to the new code once, and never back; and all numbers of a key stand in order.
    local version, last, early = {}, {}, { old = 0, new = 0 }
    local promoted_at
    for i, line in ipairs(trace()) do
      assert.is_true((last[line.key] or 0) < line.number, line.key .. " is out of order")
      last[line.key] = line.number
      assert.is_false(version[line.key] == "new" and line.version == "old", line.key .. " went back")
      version[line.key] = line.version
      promoted_at = i
      early[line.version] = early[line.version] + 1
    end
    assert.is_true(early.old > 0 and early.new > 0 and promoted_at > 100)
    for _, which in pairs(version) do assert.equal("new", which) end
  end)

  it("of worse code is rolled back before its time, and nothing is lost", function()
    begin("key", 2)
    handler("new", 2)
    local before = clock.now()
    local done = pump("--canary", "20%", "--for", "100s")
    assert.is_true(clock.now() - before < 60)
    assert.equal(1, done.code)
    assert(done.stderr:find("rolled back: the old code keeps running", 1, true), done.stderr)
    local why = 'pipeline "p": new code: %d+ of %d+ failed %(%S+%%%); old code: 0 of %d+ failed'
    assert(done.stderr:match(why), done.stderr)
    local at = #trace()
    publish(200)
    all_handled_once()
    local list = trace()
    for i = at + 100, #list do assert.equal("old", list[i].version) end
    see 'msg="canary rolled back"'
    assert.equal(1, status().generation)
  end)

  it("that is as bad as the old code is promoted", function()
    begin()
    handler("old", 3)
    assert.equal(0, reload().code)
    handler("new", 3)
    local done = pump("--canary", "40%", "--for", "2s")
    assert.equal(0, done.code, done.stderr)
    all_handled_once()
  end)

  it("counts a message once, by its first attempt", function()
    begin("none", 2)
    handler("old", 1, 3) -- every message fails three times
    assert.equal(0, reload().code)
    handler("new", 1, 3)
    assert.equal(0, reload("--canary", "50%", "--for", "60s", "--no-wait").code)
    see "msg=canary"
    publish(60)
    all_handled_once()
    local c = status().pipelines[1].canary
    assert.equal(60, c.messages + c.old_messages)
    assert.equal(60, c.failures + c.old_failures)
    assert.is_true(c.messages > 5 and c.old_messages > 5)
    assert.equal(0, reload("--rollback").code)
  end)

  it("with too few messages is rolled back, and says what to do", function()
    begin()
    handler "new"
    local done = reload("--canary", "50%", "--for", "300ms")
    assert.equal(1, done.code)
    local why = "only 0 messages came to the new code, and fewer than 20 tell nothing"
    assert(done.stderr:find(why, 1, true), done.stderr)
    assert.equal(0, reload("--canary", "50%", "--for", "300ms", "--least", "0").code)
    assert.equal(2, status().generation)
  end)

  it("shows in status, is alone, and ends by hand", function()
    begin()
    handler "new"
    local began = reload("--canary", "50%", "--for", "10m", "--no-wait")
    assert.equal(0, began.code, began.stderr)
    assert(began.stdout:find("begun", 1, true), began.stdout)
    see "msg=canary"
    publish(100)
    all_handled_once()
    local now = status()
    local c = now.pipelines[1].canary
    assert.same({ 2, 0.5, 0, 0 }, { c.generation, c.share, c.failures, c.old_failures })
    assert.equal(100, c.messages + c.old_messages)
    assert.is_true(c.left > 500 and c.left <= 600)
    assert.same({ "canary", 1 }, { now.reload.state, now.generation })
    local shown = process.run({ binary, "status", dir }).stdout
    assert(shown:find("canary 2 at 50%%: 0 failed of %d+, old 0 of %d+, %S+ left"), shown)
    local why = process.run({ binary, "explain", "k1", dir }).stdout
    assert(why:find("A canary runs in pipeline p: generation 2 handles 50% of the keys", 1, true), why)
    -- The code in the folder is what is on trial: no other way may bring it in.
    local busy = reload()
    assert.equal(1, busy.code)
    assert(busy.stderr:find("a canary runs for another", 1, true), busy.stderr)
    child:kill "HUP"
    see 'msg="reload refused"[^\n]*a canary runs'
    assert.equal(1, status().generation)
    assert.equal(0, reload("--promote").code)
    assert.equal(2, status().generation)
    local over = reload("--promote")
    assert.equal(1, over.code)
    assert(over.stderr:find("there is no canary to promote", 1, true), over.stderr)
    assert.equal(0, reload("--canary", "0.5", "--no-wait").code)
    clock.until_(function() return status().reload.state == "canary" end, 15, "the canary")
    local back = reload("--rollback")
    assert.equal(0, back.code)
    assert(back.stderr:find("rolled back by command", 1, true), back.stderr)
    assert.equal(2, status().generation)
  end)

  it("tries code only: other pipelines or settings are refused", function()
    begin()
    for text, expected in pairs {
      [MAIN:gsub("attempts = 5", "attempts = 6"):format("key", "")] = 'pipeline "p" has another `retry`',
      [MAIN:format("none", "")] = 'pipeline "p" is new, or reads from elsewhere',
      [MAIN:format("key", 'mw.pipeline "q" { from = broker:channel "other", handler = "h" }')] = 'pipeline "q" is new',
      [MAIN:gsub('"p"', '"r"'):format("key", "")] = 'pipeline "r" is new',
    } do
      write("moonwire.lua", text)
      local refused = reload("--canary", "50%")
      assert.equal(1, refused.code)
      assert(refused.stderr:find(expected, 1, true), refused.stderr)
      assert(refused.stderr:find("a canary can only try code", 1, true), refused.stderr)
    end
    assert.equal(1, status().generation)
    write("moonwire.lua", MAIN:format("key", ""))
    assert.equal(0, reload().code)
  end)

  it("is rolled back when a worker dies, and that worker starts again with the old code", function()
    begin("key", 2)
    handler "new"
    local asked = process.spawn { { binary, "reload", dir, "--canary", "50%", "--for", "10m" } }
    see "msg=canary"
    local pid = child:stderr():match 'msg="worker begins" worker=2 pid=(%d+)'
    assert(process.run({ "kill", "-KILL", pid }).code == 0)
    assert.equal(1, (asked:wait(30)), asked:stderr())
    assert(asked:stderr():find("worker 2 died on trial", 1, true), asked:stderr())
    see "msg=started generation=1[^\n]*worker=2\n.*msg=started generation=1[^\n]*worker=2\n"
    publish(200)
    all_handled_once()
    assert.equal(0, reload().code)
  end)

  it("is over when the process drains", function()
    begin()
    handler "new"
    local asked = process.spawn { { binary, "reload", dir, "--canary", "50%", "--for", "10m" } }
    see "msg=canary"
    publish(50)
    all_handled_once()
    assert.equal(0, process.run({ binary, "drain", dir }).code)
    assert.equal(0, (child:wait(15)))
    assert.not_equal(0, (asked:wait(15)))
    assert.is_nil(asked:stderr():find("died", 1, true), asked:stderr()) -- nobody has
    child = nil
  end)

  it("takes no share that is none, and no words that make no sense", function()
    begin()
    for _, words in ipairs { { "--canary", "0" }, { "--canary", "100%" }, { "--canary", "x" }, { "--for", "3s" },
      { "--promote", "--rollback" }, { "--promote", "--gate", "spec" } } do
      assert.equal(64, reload(unpack(words)).code, table.concat(words, " "))
    end
    local path = assert(core.control_sockets(dir))[1]
    assert(core.control_call(path, "reload =canary%3D2", 5):find("a share between 0 and 1", 1, true))
  end)
end)
