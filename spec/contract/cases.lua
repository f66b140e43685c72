-- cases.lua - what every driver has to keep: one list, run for each of them. A case gets a harness (spec/support/
-- harness.lua), names no driver, and can fail. `needs` lists what not every broker can do; the matrix says so then.
local assert = require "luassert"

local CAN = { delay = 1, priority = 2, atomic = 4, park = 8 }

local WHY_NOT = {
  delay = "no delayed publish",
  priority = "no priorities",
  atomic = "no transactions",
  park = "cannot park messages; refused at start",
  refuse = "cannot be made to refuse; see spec/faults",
}
local ONLY_LACKS = { groups = true, start = true } -- no capability: a driver that lacks it says so in drivers.lua

local cases = {}
local function case(name, title, needs, run)
  if not run then needs, run = {}, needs end
  cases[#cases + 1] = { name = name, title = title, needs = needs, run = run }
end

local M = { list = cases }

-- nil, or why this driver cannot show the case
function M.not_for(c, h)
  local reason = h.driver.cannot and h.driver.cannot(h, c)
  if reason then return reason end
  for _, need in ipairs(c.needs) do
    local lacks = h.driver.lacks and h.driver.lacks[need]
    if lacks then return lacks end
    if ONLY_LACKS[need] then goto next_need end
    if need == "refuse" then
      if not h.driver.refuse then return WHY_NOT.refuse end
    elseif not h:can(CAN[need]) then
      return WHY_NOT[need]
    end
    ::next_need::
  end
end

--- Helpers -----------------------------------------------------------------------------------------------------------

local function numbered(n, fields)
  local list = {}
  for i = 1, n do
    local m = fields and fields(i) or {}
    m[1] = m[1] or ("body %d"):format(i)
    m.id = m.id or ("m%d"):format(i)
    list[i] = m
  end
  return list
end

local function ids(list)
  local names = {}
  for i, x in ipairs(list) do names[i] = x.id end
  return names
end

local function by_id(list)
  local map = {}
  for _, x in ipairs(list) do
    map[x.id] = map[x.id] or {}
    table.insert(map[x.id], x)
  end
  return map
end

local function attempts_of(lines, id)
  local list = {}
  for _, line in ipairs(lines) do
    if line.id == id then list[#list + 1] = line.attempt end
  end
  return list
end

-- Each of m1..mn was done at least once, and no more than `extra` of them again.
local function assert_all_done(h, n, extra)
  local done = by_id(h.trace:of "done")
  local again = 0
  for i = 1, n do
    local times = done["m" .. i]
    if not times then error("message m" .. i .. " was never handled", 2) end
    again = again + #times - 1
  end
  if again > extra then error(("%d messages were handled again, at most %d may be"):format(again, extra), 2) end
  return again
end

-- The first success of every message, in the order of the trace, rises within its key ("k.n" ids).
local function assert_key_order(lines)
  local at, seen = {}, {}
  for _, line in ipairs(lines) do
    local key, number = line.id:match "^(.-)%.(%d+)$"
    number = tonumber(number)
    if not seen[line.id] then
      seen[line.id] = true
      local expected = (at[key] or 0) + 1
      if number ~= expected then
        error(("key %s: %d was handled when it was the turn of %d"):format(key, number, expected), 2)
      end
      at[key] = number
    end
  end
end

-- n messages spread over so many keys, ids "key.number"
local function keyed(n, keys)
  local list, at = {}, {}
  for i = 1, n do
    local key = "k" .. i % keys
    at[key] = (at[key] or 0) + 1
    list[i] = { "x", id = key .. "." .. at[key], key = key }
  end
  return list
end

local DONE = [[function M.handle(msg) trace("done", msg) end]]

--- Settling ----------------------------------------------------------------------------------------------------------

case("ack-stop", "what was acked does not come again after a stop", function(h)
  h:start { handler = DONE }
  h:publish(numbered(100))
  h:wait_for("done", 100)
  h:stop()
  h:start()
  h:publish { { "last", id = "last" } }
  h:wait_for("done", 101)
  h:stop()
  assert.equal(101, h.trace:count "done")
  for _, line in ipairs(h.trace:of "done") do assert.equal(1, line.attempt) end
  h:wait_settled() -- nobody is there to settle anything now
end)

case("ack-crash", "what was acked does not come again after a crash", function(h)
  h:start { handler = DONE }
  h:publish(numbered(100))
  h:wait_for("done", 100)
  h:wait_settled()
  h:kill()
  h:start()
  h:publish { { "last", id = "last" } }
  h:wait_for("done", 101)
  h:stop()
  assert.equal(101, h.trace:count "done")
end)

case("waits-for-consumer", "a channel that nobody reads keeps its messages, in order", function(h)
  h:publish(numbered(300))
  assert.equal(300, #h:messages "in")
  h:start { handler = DONE, settings = "order = 'source'," }
  h:wait_for("done", 300)
  h:wait_settled()
  assert.same(ids(numbered(300)), ids(h.trace:of "done"))
end)

--- Retries -----------------------------------------------------------------------------------------------------------

local FAIL_OFTEN = [[function M.handle(msg) trace("try", msg) error("boom " .. msg.attempt, 0) end]]

local function assert_delays(h, settings, expected)
  h:start { handler = FAIL_OFTEN, settings = settings }
  h:publish { { "x", id = "m1", key = "a" } }
  h:wait(function() return #h:dead() == 1 end, 10, "the dead letter")
  local tries = h.trace:of "try"
  assert.equal(#expected + 1, #tries)
  for i, seconds in ipairs(expected) do
    assert.equal(i + 1, tries[i + 1].attempt)
    local took = tries[i + 1].time - tries[i].time
    if took < seconds - 0.003 or took > seconds + 0.25 * h.late then
      error(("retry %d came after %.3f s instead of %.3f"):format(i, took, seconds), 2)
    end
  end
  assert.equal(tostring(#expected + 1), h:dead()[1].headers["mw-dead-attempts"])
end

case("backoff-exponential", "retries come after an exponential backoff, up to its cap", function(h)
  assert_delays(h, "retry = { attempts = 5, base = 0.06, cap = 0.3, jitter = 0 },", { 0.06, 0.12, 0.24, 0.3 })
end)

case("backoff-fixed", "retries come after a fixed backoff", function(h)
  assert_delays(h, "retry = { attempts = 4, backoff = 'fixed', base = 0.1, jitter = 0 },", { 0.1, 0.1, 0.1 })
end)

case("backoff-list", "retries come after a list of delays, which also counts the attempts", function(h)
  assert_delays(h, "retry = { backoff = { 0.05, 0.3, 0.1 }, jitter = 0 },", { 0.05, 0.3, 0.1 })
end)

case("retry-after", "mw.retry{after} sets the delay of one retry", function(h)
  h:start { settings = "retry = { base = 30 },", handler = [[
    function M.handle(msg)
      trace("try", msg)
      if msg.attempt == 1 then return mw.retry { after = 0.2, reason = "later" } end
    end]] }
  h:publish { { "x", id = "m1", key = "a" } }
  h:wait_for("try", 2)
  local tries = h.trace:of "try"
  local took = tries[2].time - tries[1].time
  assert.is_true(took >= 0.197 and took < 0.2 + 0.25 * h.late)
  h:wait_settled()
end)

case("max-age", "retry.max_age gives up by age, not by attempts", function(h)
  local settings = "retry = { attempts = 1000, backoff = 'fixed', base = 0.05, max_age = 0.5 },"
  h:start { handler = FAIL_OFTEN, settings = settings }
  h:ready() -- joining a group would count as age
  h:publish { { "x", id = "m1", key = "a" } }
  h:wait(function() return #h:dead() == 1 end, 10, "the dead letter")
  assert.matches("^too old", h:dead()[1].headers["mw-dead-reason"])
  assert.is_true(h.trace:count "try" > 3 or h.late > 1)
end)

case("timeout", "a handler that waits past its deadline is cancelled and retried", function(h)
  h:start { settings = "timeout = 0.2, retry = { base = 0.05 },", handler = [[
    function M.handle(msg)
      trace("try", msg)
      if msg.attempt == 1 then mw.sleep(20) trace("late", msg) end
      trace("done", msg)
    end]] }
  h:publish { { "x", id = "m1", key = "a" }, { "x", id = "m2", key = "a" } }
  h:wait_for("done", 2)
  h:wait_settled()
  assert.same({ 1, 2 }, attempts_of(h.trace:of "try", "m1"))
  assert.same({ "m1", "m2" }, ids(h.trace:of "done"))
  assert.equal(0, h.trace:count "late")
end)

case("attempts-crash", "the attempt count survives a crash, and a crash while handling counts", function(h)
  h:start { settings = "retry = { attempts = 9, base = 0.02, jitter = 0 }, timeout = 60,", handler = [[
    function M.handle(msg)
      trace("try", msg)
      if msg.id == "m1" and msg.attempt < 3 then error("not yet", 0) end
      if msg.id == "m1" and msg.attempt == 3 then mw.sleep(60) end
      trace("done", msg)
    end]] }
  h:publish { { "x", id = "m1", key = "a" }, { "x", id = "m2", key = "a" } }
  h:wait_for("try", 3)
  h:noted()
  h:kill()
  h:start()
  h:wait_for("done", 2)
  h:wait_settled()
  assert.same({ 1, 2, 3, 4 }, attempts_of(h.trace:of "try", "m1"))
  assert.same({ 1 }, attempts_of(h.trace:of "try", "m2")) -- it was delivered before the crash, but not begun
end)

case("backoff-crash", "a failure that waits for its retry is remembered through a crash", function(h)
  h:start { settings = "retry = { attempts = 2, backoff = 'fixed', base = 1.5, jitter = 0 },", handler = FAIL_OFTEN }
  h:publish { { "x", id = "m1", key = "a" } }
  h:wait_for("try", 1)
  h:stay(0.15)
  h:kill()
  h:start()
  h:wait(function() return #h:dead() == 1 end, 10, "the dead letter")
  assert.same({ 1, 2 }, attempts_of(h.trace:of "try", "m1"))
  assert.equal("boom 1", h:dead()[1].headers["mw-dead-first-error"])
  assert.equal("boom 2", h:dead()[1].headers["mw-dead-last-error"])
end)

--- Dead letters ------------------------------------------------------------------------------------------------------

case("dead-whole", "a dead letter is whole: bytes, key, id, type and headers, and what happened", function(h)
  h:start { settings = "retry = { attempts = 2, base = 0.02 }, group = 'the group',", handler = [[
    function M.handle(msg) error(msg.attempt == 1 and "first boom" or "second boom", 0) end]] }
  local headers = { ["x-one"] = "1", ["x-zwölf"] = "twelve", ["mw-dead-reason"] = "of an earlier life" }
  h:publish { { "\0\1\255 body", id = "m1", key = "k\0\255", headers = headers, type = "application/x-odd" } }
  h:wait(function() return #h:dead() == 1 end, 10, "the dead letter")
  h:wait_settled()
  local letter = h:dead()[1]
  local d = letter.headers
  assert.equal("\0\1\255 body", letter.body)
  assert.equal("k\0\255", letter.key)
  assert.equal("m1", letter.id)
  assert.equal("application/x-odd", letter.type)
  assert.equal("1", d["x-one"])
  assert.equal("twelve", d["x-zwölf"])
  assert.equal("gave up after 2 attempts", d["mw-dead-reason"])
  assert.equal("transient", d["mw-dead-class"])
  assert.equal("2", d["mw-dead-attempts"])
  assert.equal("in", d["mw-dead-channel"])
  assert.equal((h.url:gsub("(//[^:/@]*):[^@]*@", "%1@")), d["mw-dead-broker"]) -- without the password
  assert.equal("p", d["mw-dead-pipeline"])
  assert.equal("the group", d["mw-dead-group"])
  assert.equal("first boom", d["mw-dead-first-error"])
  assert.equal("second boom", d["mw-dead-last-error"])
  assert.matches("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$", d["mw-dead-published"])
  assert.matches("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$", d["mw-dead-time"])
  assert.is_true(d["mw-dead-published"] <= d["mw-dead-time"])
  assert.matches("^%d+$", d["mw-dead-generation"])
end)

case("dead-classes", "reject, a class that is dead, and data that is not JSON give up at once", function(h)
  h:start { settings = "retry = { attempts = 5, classes = { business = 'dead' } },", handler = [[
    function M.handle(msg)
      trace("try", msg)
      if msg.id == "rejected" then return mw.reject("no stock") end
      if msg.id == "forgotten" then mw.reject("no return", "forgot") return end
      if msg.id == "classed" then error(mw.error("business", "closed")) end
      return msg.data and nil
    end]] }
  h:publish { { "1", id = "rejected" }, { "1", id = "forgotten" }, { "1", id = "classed" }, { "{", id = "bad" } }
  h:wait(function() return #h:dead() == 4 end, 10, "four dead letters")
  local dead = by_id(h:dead())
  assert.equal("rejected", dead.rejected[1].headers["mw-dead-class"])
  assert.equal("no stock", dead.rejected[1].headers["mw-dead-reason"])
  assert.equal("forgot", dead.forgotten[1].headers["mw-dead-class"])
  assert.equal("business", dead.classed[1].headers["mw-dead-class"])
  assert.equal("invalid", dead.bad[1].headers["mw-dead-class"])
  assert.equal(4, h.trace:count "try")
  h:wait_settled()
end)

case("dead-confirmed", "a message waits until its dead letter is confirmed", { "refuse" }, function(h)
  h:start { settings = "retry = { attempts = 1 },", handler = FAIL_OFTEN }
  h:publish { { "x", id = "m1" } }
  h:refuse(2)
  h:wait(function()
    local left, letters = #h:messages "in", #h:dead() -- in this order: what has left must have arrived
    assert.is_true(letters + left >= 1, "the message is gone, and its dead letter is not there")
    return letters == 1 and left == 0
  end, 10, "the dead letter")
  assert.equal(1, h.trace:count "try") -- the handler is not asked again: only the letter is
end)

case("drop", "a dropped message is gone without a dead letter", function(h)
  h:start { handler = [[function M.handle(msg) trace("try", msg) return mw.drop("not ours") end]] }
  h:publish(numbered(3))
  h:wait_for("try", 3)
  h:wait_settled()
  assert.equal(0, #h:dead())
end)

--- Order -------------------------------------------------------------------------------------------------------------

case("order-key", "per key in order, one at a time, through random failures", function(h)
  local n = h:scaled(2000, 200)
  h:start { settings = "concurrency = 32, retry = { attempts = 100, backoff = 'fixed', base = 0.004 },", handler = [[
    local running = {}
    function M.handle(msg)
      if running[msg.key] then trace("overlap", msg) end
      running[msg.key] = true
      if math.random() < 0.3 then mw.sleep(math.random() * 0.003) end
      running[msg.key] = nil
      if math.random() < 0.2 then error("by chance", 0) end
      trace("done", msg)
    end]] }
  h:publish(keyed(n, 40))
  h:wait_for("done", n, 30)
  h:wait_settled()
  assert.equal(n, h.trace:count "done")
  assert.equal(0, h.trace:count "overlap")
  assert_key_order(h.trace:of "done")
end)

case("order-key-flows", "other keys flow while one waits for its retry", function(h)
  local settings = ("retry = { backoff = 'fixed', base = %g, jitter = 0 },"):format(0.8 * h.late)
  h:start { settings = settings, handler = [[
    function M.handle(msg)
      trace("try", msg)
      if msg.id == "a1" and msg.attempt == 1 then error("later", 0) end
      trace("done", msg)
    end]] }
  local list = { { "x", id = "a1", key = "a" }, { "x", id = "a2", key = "a" } }
  for i = 1, 30 do list[#list + 1] = { "x", id = "b" .. i, key = "b" .. i % 5 } end
  h:publish(list)
  h:wait_for("done", 32)
  local done = ids(h.trace:of "done")
  assert.equal("a1", done[31])
  assert.equal("a2", done[32])
end)

case("order-own-key", "`key` of the pipeline names the lane where messages have none", function(h)
  local n = h:scaled(400, 100)
  local settings = [[key = "customer.id", retry = { attempts = 100, backoff = 'fixed', base = 0.004 },]]
  h:start { settings = settings, handler = [[
    function M.handle(msg)
      if math.random() < 0.2 then error("by chance", 0) end
      trace("done", msg)
    end]] }
  local list = keyed(n, 10)
  for _, m in ipairs(list) do
    m[1], m.key = ('{"customer":{"id":"%s"}}'):format(m.key), nil
  end
  h:publish(list)
  h:wait_for("done", n, 20)
  assert_key_order(h.trace:of "done")
end)

case("order-long-lane", "a key with more messages than the buffer holds keeps its order and stops no other", function(h)
  local n = 300
  h:start { settings = "buffer = { count = 64 }, retry = { backoff = 'fixed', base = 0.5, jitter = 0 },", handler = [[
    function M.handle(msg)
      if msg.id == "long.1" and msg.attempt == 1 then error("later", 0) end
      trace("done", msg)
    end]] }
  local list = {}
  for i = 1, n do list[i] = { "x", id = "long." .. i, key = "long" } end
  h:publish(list)
  h:publish { { "x", id = "other.1", key = "other" } }
  h:wait_for("done", n + 1, 20)
  h:wait_settled()
  assert_key_order(h.trace:of "done")
  if h:can(CAN.park) then assert.equal("other.1", h.trace:of("done")[1].id) end
end)

-- A hot key, chosen with this share, among twenty others: ids "key.number", in no regular pattern.
local function hot_among_others(n, share)
  local list, at, state = {}, {}, 1
  for i = 1, n do
    state = (state * 16807) % 2147483647
    local chance = state / 2147483647
    local key = chance < share and "hot" or "k" .. math.floor(chance * 1e6) % 20
    at[key] = (at[key] or 0) + 1
    list[i] = { "x", id = key .. "." .. at[key], key = key }
  end
  return list
end

local function slice(list, first, last)
  local part = {}
  for i = first, math.min(last, #list) do part[#part + 1] = list[i] end
  return part
end

case("order-hot-key", "a key with most of a large backlog keeps its order, while more of it comes", function(h)
  local n = h:scaled(40000, 1500)
  local list = hot_among_others(n, 0.7)
  local waiting = math.floor(n / 2)
  h:publish(slice(list, 1, waiting))
  h:start { handler = DONE }
  local chunk = math.floor(n / 40)
  for first = waiting + 1, n, chunk do
    h:publish(slice(list, first, first + chunk - 1))
    h:stay(0.01)
  end
  h:wait_for("done", n, 60)
  h:wait_settled()
  local done = h.trace:of "done"
  assert.equal(n, #done)
  assert_key_order(done)
end)

case("order-hot-held", "a hot key goes on in order after its dead letter is replayed", { "park" }, function(h)
  local n = h:scaled(20000, 2000)
  local list = hot_among_others(n, 0.7)
  local half, bad = math.floor(n / 2), "hot." .. math.floor(n / 4)
  h:publish(slice(list, 1, half))
  h:start { settings = "on_dead = 'hold_key',", handler = ([[
    local bad = %q
    function M.handle(msg)
      if msg.id == bad and not msg.headers["mw-replay"] then return mw.reject "bad" end
      trace("done", msg)
    end]]):format(bad) }
  h:wait(function() return #h:dead() == 1 end, 30, "the dead letter")
  h:publish(slice(list, half + 1, n))
  local letter = h:dead()[1]
  letter.headers["mw-replay"] = "1"
  h:publish { { letter.body, id = letter.id, key = letter.key, headers = letter.headers } }
  h.broker:remove("in.dead", { letter.position })
  h:wait_for("done", n, 60)
  h:wait_settled()
  local done = h.trace:of "done"
  assert.equal(n, #done)
  assert_key_order(done)
end)

case("order-source", "order = source: all in order, one at a time, through failures", function(h)
  local n = h:scaled(300, 60)
  h:start { settings = "order = 'source', retry = { attempts = 100, backoff = 'fixed', base = 0.003 },", handler = [[
    function M.handle(msg)
      if math.random() < 0.2 then error("by chance", 0) end
      trace("done", msg)
    end]] }
  h:publish(numbered(n, function(i) return { key = "k" .. i % 7 } end))
  h:wait_for("done", n, 20)
  assert.same(ids(numbered(n)), ids(h.trace:of "done"))
end)

case("order-none", "order = none: a failing message holds up nobody, not even its key", function(h)
  h:start { settings = "order = 'none', retry = { backoff = 'fixed', base = 0.5, jitter = 0 },", handler = [[
    function M.handle(msg)
      if msg.id == "m1" and msg.attempt == 1 then error("later", 0) end
      trace("done", msg)
    end]] }
  h:publish(numbered(20, function() return { key = "same" } end))
  h:wait_for("done", 20)
  local done = h.trace:of "done"
  assert.equal("m1", done[20].id)
  assert.equal(2, done[20].attempt)
  h:wait_settled()
end)

--- Bounds ------------------------------------------------------------------------------------------------------------

case("bounded", "a flood stays at the broker: the buffer has a ceiling, memory does not grow", function(h)
  local process = require "spec.support.process"
  local n = h:scaled(200000, 20000)
  local list = {}
  for i = 1, n do list[i] = { "small", id = "m" .. i } end
  h:publish(list)
  local worker = h:start { settings = "concurrency = 16, buffer = { count = 300 },", handler = [[
    function M.handle(msg) mw.sleep(0.002) trace("done", msg) end]] }
  local most, rss = 0, 0
  h:wait(function()
    local status = worker:status()
    if status then most = math.max(most, status[1].in_flight) end
    if worker.child then rss = math.max(rss, process.hwm(worker.child.pid) or 0) end
    return h.trace:count "done" >= 2000
  end, 30, "2000 handled")
  assert.is_true(most <= 300, "in flight: " .. most)
  assert.is_true(rss < 120e6 * (h.late > 1 and 4 or 1), "RSS: " .. rss)
  h:kill(worker)
end)

case("bounded-bytes", "buffer.bytes bounds large messages", function(h)
  local body = ("x"):rep(100000)
  local worker = h:start { settings = "concurrency = 4, buffer = { bytes = 1000000 },", handler = [[
    function M.handle(msg) mw.sleep(0.01) trace("done", msg, #msg.body) end]] }
  h:publish(numbered(100, function() return { body } end))
  local most = 0
  h:wait(function()
    local status = worker:status()
    if status then most = math.max(most, status[1].in_flight) end
    return h.trace:count "done" == 100
  end, 20, "100 handled")
  assert.is_true(most <= 11, "in flight: " .. most)
  h:wait_settled()
end)

case("bounded-publish", "one run of a handler cannot publish more than memory holds", function(h)
  h:start { settings = "retry = { attempts = 1 },", handler = [[
    function M.handle(msg)
      if msg.id == "flood" then for _ = 1, 1000 do mw.publish("out", ("x"):rep(1e6)) end end
      trace("done", msg)
    end]] }
  h:publish { { "x", id = "flood" }, { "x", id = "next" } }
  h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
  h:wait_settled()
  assert.same({ "next" }, ids(h.trace:of "done"))
  assert.matches("may wait for its ack: publish with now = true", h:dead()[1].headers["mw-dead-last-error"])
  assert.equal(0, #h:messages "out")
end)

--- Publishing --------------------------------------------------------------------------------------------------------

case("publish", "what a handler publishes arrives with its ack, and not when it fails", function(h)
  h:start { settings = "retry = { attempts = 3, base = 0.02 },", handler = [[
    function M.handle(msg)
      local id = "out-" .. msg.id .. "-" .. msg.attempt
      mw.publish("out", { n = msg.attempt }, { id = id, key = "k", headers = { a = "b" } })
      trace("try", msg)
      if msg.attempt == 1 then error("once", 0) end
    end]] }
  h:publish { { "x", id = "m1" } }
  h:wait_for("try", 2)
  h:wait_settled()
  local out = h:messages "out"
  assert.equal(1, #out)
  assert.equal("out-m1-2", out[1].id)
  assert.equal('{"n":2}', out[1].body)
  assert.equal("k", out[1].key)
  assert.equal("b", out[1].headers.a)
end)

case("confirm-first", "nothing is acked before what it published is confirmed", { "refuse" }, function(h)
  h:start { settings = "retry = { attempts = 50, backoff = 'fixed', base = 0.03 },", handler = [[
    function M.handle(msg)
      trace("try", msg)
      mw.publish("out", "x", { id = "out-" .. msg.id })
    end]] }
  h:publish { { "x", id = "m1" } }
  h:refuse(5)
  h:wait(function()
    local left, out = #h:messages "in", #h:messages "out"
    assert.is_true(left + out >= 1, "acked before the publish was confirmed")
    return left == 0
  end, 15, "the ack")
  assert.same({ "out-m1" }, ids(h:messages "out"))
end)

case("publish-crash", "no ack without its publish, through crashes", function(h)
  local n = h:scaled(400, 100)
  local kills = 4
  h:start { settings = "concurrency = 8, buffer = { count = 64 },", handler = [[
    function M.handle(msg)
      mw.publish("out", "x", { id = "out-" .. msg.id })
      mw.sleep(math.random() * 0.004)
      trace("done", msg)
    end]] }
  h:publish(numbered(n))
  for i = 1, kills do
    h:wait_for("done", math.floor(n / (kills + 2)) * i, 20)
    h:kill()
    h:start()
  end
  h:wait_settled("in", 30)
  local out = by_id(h:messages "out")
  for i = 1, n do
    local copies = out["out-m" .. i]
    assert.is_truthy(copies, "m" .. i .. " was acked, but what it published is not there")
    if h:can(CAN.atomic) then assert.equal(1, #copies) end
  end
end)

case("publish-now", "`now = true` publishes at once, whatever becomes of the message", function(h)
  h:start { settings = "retry = { attempts = 2, base = 0.02 },", handler = [[
    function M.handle(msg)
      mw.publish("out", "x", { id = "out-" .. msg.attempt, now = true })
      trace("try", msg)
      error("always", 0)
    end]] }
  h:publish { { "x", id = "m1" } }
  h:wait(function() return #h:dead() == 1 end, 10, "the dead letter")
  assert.same({ "out-1", "out-2" }, ids(h:messages "out"))
end)

--- Dedupe ------------------------------------------------------------------------------------------------------------

case("dedupe", "a duplicate id is skipped; a retry is none", function(h)
  h:start { settings = "dedupe = true, retry = { base = 0.03 },", handler = [[
    function M.handle(msg)
      trace("try", msg)
      if msg.id == "fails" and msg.attempt == 1 then error("once", 0) end
      trace("done", msg)
    end]] }
  h:publish { { "x", id = "a" }, { "x", id = "fails" } }
  h:wait_for("done", 2)
  h:wait_settled()
  h:publish { { "x", id = "a" }, { "x", id = "a", key = "k" }, { "x", id = "fails" }, { "x", id = "b" } }
  h:wait_for("done", 3)
  h:wait_settled()
  assert.same({ "a", "fails", "b" }, ids(h.trace:of "done"))
  assert.same({ 1, 2 }, attempts_of(h.trace:of "try", "fails"))
end)

case("dedupe-twin", "a duplicate that comes while its twin runs waits for how that ends", function(h)
  h:start { settings = "order = 'none', dedupe = true, retry = { base = 0.03 },", handler = [[
    function M.handle(msg)
      trace("try", msg)
      mw.sleep(0.25)
      if msg.body == "fails" and msg.attempt == 1 then return mw.reject "gave up" end
      trace("done", msg)
    end]] }
  h:publish { { "works", id = "a" }, { "works", id = "a" }, { "fails", id = "b" } }
  h:wait_for("try", 2)
  h:publish { { "works", id = "b" } } -- its twin will become a dead letter: this one has to be handled
  h:wait_settled("in", 10)
  local done = ids(h.trace:of "done")
  table.sort(done)
  assert.same({ "a", "b" }, done)
  assert.equal(1, #h:dead())
end)

case("dedupe-crash", "a crash between handling and ack is no duplicate: it is handled again", function(h)
  h:start { settings = "dedupe = true, timeout = 1, lease = 1,", handler = [[
    function M.handle(msg)
      trace("done", msg)
      if msg.attempt == 1 then mw.sleep(0.9) end
    end]] }
  h:publish { { "x", id = "m1" } }
  h:wait_for("done", 1)
  h:noted()
  h:kill()
  h:start()
  h:wait_for("done", 2, 15)
  h:wait_settled("in", 10)
  assert.same({ 1, 2 }, attempts_of(h.trace:of "done", "m1"))
end)

--- Ending ------------------------------------------------------------------------------------------------------------

case("drain", "a stop lets running handlers finish; the rest comes later, with attempt 1", function(h)
  h:start { settings = "concurrency = 4,", handler = [[
    function M.handle(msg) trace("begin", msg) mw.sleep(0.3) trace("done", msg) end]] }
  h:publish(numbered(20))
  h:wait_for("begin", 4)
  assert.equal(0, h:stop())
  local begun = h.trace:count "begin"
  assert.is_true(begun < 20)
  assert.equal(begun, h.trace:count "done")
  assert.equal(20 - begun, #h:messages "in")
  h:start()
  h:wait_for("done", 20)
  h:wait_settled()
  for _, line in ipairs(h.trace:of "begin") do assert.equal(1, line.attempt) end
  assert.equal(20, h.trace:count "begin")
end)

case("drain-backoff", "a stop does not wait for retries; they keep their count", function(h)
  local clock = require "spec.support.wait"
  h:start { settings = "retry = { attempts = 5, backoff = 'fixed', base = 2, jitter = 0 },", handler = [[
    function M.handle(msg)
      trace("try", msg)
      if msg.attempt == 1 then error("later", 0) end
      trace("done", msg)
    end]] }
  h:publish { { "x", id = "m1", key = "a" }, { "x", id = "m2", key = "a" }, { "x", id = "m3" } }
  h:wait_for("try", 2)
  h:stay(0.1)
  local before = clock.now()
  h:stop()
  assert.is_true(clock.now() - before < 1.5 * h.late)
  h:start()
  h:wait_for("done", 3, 15)
  assert.same({ 1, 2 }, attempts_of(h.trace:of "try", "m1"))
  assert.same({ 1, 2 }, attempts_of(h.trace:of "try", "m2"))
end)

case("drain-storm", "a stop while hundreds of retries fall due loses none and counts none twice", function(h)
  local n = 300
  local settings = "concurrency = 64, retry = { attempts = 100000, backoff = 'fixed', base = 0.015, jitter = 1 },"
  local handler = [[
    function M.handle(msg)
      trace("try", msg)
      error("again", 0)
    end]]
  h:start { settings = settings, handler = handler }
  h:publish(numbered(n, function(i) return { key = "k" .. i } end))
  for i = 1, 4 do
    h:wait_for("try", n * 2 * i, 30)
    h:stop()
    assert.equal(n, #h:messages "in")
    h:start()
  end
  h:stop()
  local last = {}
  for _, line in ipairs(h.trace:of "try") do
    local expected = (last[line.id] or 0) + 1
    if line.attempt ~= expected then error(("%s: attempt %d after %d"):format(line.id, line.attempt, expected - 1)) end
    last[line.id] = line.attempt
  end
end)

-- Without transactions a publish can be out before its worker learns that it lost the message.
local function assert_only_late(h)
  local out = by_id(h:messages "out")
  assert.equal(1, #(out["out-2"] or {}))
  if h:can(CAN.atomic) or not h.driver.outside then assert.is_nil(out["out-1"]) end
end

case("fence", "a verdict that comes after the message was taken away is discarded and counted", function(h)
  local worker = h:start { settings = "lease = 1, timeout = 60, concurrency = 4,", handler = ([[
    function M.handle(msg)
      trace("begin", msg)
      mw.publish("out", "x", { id = "out-" .. msg.attempt })
      if msg.attempt == 1 then mw.sleep(%g) end
      trace("done", msg)
    end]]):format(0.6 * h.late) }
  h:publish { { "x", id = "m1", key = "a" } }
  h:wait_for("begin", 1)
  h:noted()
  h:cut(worker, function() return h.trace:count "begin" == 2 or h.trace:count "done" >= 1 end, 20)
  h:wait_for("done", 2)
  h:wait_settled()
  h:wait(function() return worker:fenced() >= 1 end, 5, "the discarded verdict to be counted")
  assert.same({ 1, 2 }, attempts_of(h.trace:of "begin", "m1"))
  assert_only_late(h)
end)

case("fence-dedupe", "a late verdict does not make the message look handled: it is, by the next worker", function(h)
  local clock = require "spec.support.wait"
  local worker = h:start { settings = "lease = 1, timeout = 60, dedupe = true,", handler = ([[
    function M.handle(msg)
      trace("begin", msg)
      mw.publish("out", "x", { id = "out-" .. msg.attempt })
      if msg.attempt == 1 then mw.sleep(%g) end
    end]]):format(0.5 * h.late) }
  h:publish { { "x", id = "m1", key = "a" } }
  h:wait_for("begin", 1)
  h:noted()
  local since = clock.now()
  h:cut(worker, function() return clock.now() - since > 2.5 * h.late or h.trace:count "begin" == 2 end, 20)
  h:wait_settled("in", 20)
  local first, second = unpack(h.trace:of "begin")
  local uncounted = h.driver.counts == "deaths" and first.worker == second.worker -- it came back to who had it
  assert.same({ 1, uncounted and 1 or 2 }, attempts_of(h.trace:of "begin", "m1"))
  if uncounted then return assert.is_true(#by_id(h:messages "out")["out-1"] >= 1) end
  assert_only_late(h)
end)

--- Priorities and delays ---------------------------------------------------------------------------------------------

case("priority", "a higher priority is handled first", { "priority" }, function(h)
  local list = numbered(30, function(i) return { priority = i <= 10 and 1 or i <= 20 and 4 or 9 } end)
  h:publish(list)
  h:start { settings = "order = 'none', concurrency = 1,", handler = DONE }
  h:wait_for("done", 30)
  local expected = {}
  for _, from in ipairs { 21, 11, 1 } do
    for i = from, from + 9 do expected[#expected + 1] = "m" .. i end
  end
  assert.same(expected, ids(h.trace:of "done"))
end)

case("delay", "a delayed message is not handled before its time, a crash in between or not", { "delay" }, function(h)
  local mw = require "moonwire"
  h:start { handler = DONE }
  local published = mw.now()
  h:publish { { "x", id = "late", key = "a", delay = 0.7 }, { "x", id = "soon", key = "a" } }
  h:wait(function() return #h:messages "in" == 1 end, 5, "the first to be settled")
  h:kill()
  h:start()
  h:wait_for("done", 2)
  local done = h.trace:of "done"
  assert.same({ "soon", "late" }, ids(done))
  local took = done[2].time - published
  if took < 0.69 or took > 0.7 + 1.5 * h.late then error(("it came after %.3f s"):format(took)) end
  h:wait_settled()
end)

--- Any bytes ---------------------------------------------------------------------------------------------------------

local function all_bytes()
  local list = {}
  for i = 0, 255 do list[#list + 1] = string.char(i) end
  return table.concat(list)
end

case("any-bytes", "bodies, keys and headers of any bytes pass through handler, publish and dead letter", function(h)
  local all = all_bytes()
  local bodies = {
    all, "", "\0", "\0\0\0", "\255\254 not UTF-8 \192\128", "{", "null", '"\\ud800"', "\r\n\r\n", ("[")
      :rep(5000), ("x"):rep(math.floor(10 * 1024 * 1024 * math.max(h:scaled(100, 20) / 100, 0.2))) .. "\0end",
  }
  local headers = { ["x-nul"] = "a\0b", ["x-all"] = all, ["x-empty"] = "", ["x-lines"] = "a\r\nb: c",
                    ["\255\254"] = "odd name", ["content-length"] = "0", ["mw-replayed"] = "no" }
  h:start {
    more = [[mw.pipeline "q" { from = broker:channel "copy", handler = "handlers.q", dead = broker:channel "buried" }]],
    handler = [[function M.handle(msg)
      for _, channel in ipairs { "out", "copy" } do
        mw.publish(channel, msg.body, { id = msg.id, key = msg.key, headers = msg.headers })
      end
    end]],
    files = { ["handlers/q.lua"] = [[
      local mw = require "moonwire"
      return { handle = function(msg) return mw.reject("reason \0\255 of any bytes \n") end }]] },
  }
  local list = numbered(#bodies, function(i) return { bodies[i], key = "k" .. all, headers = headers } end)
  h:publish(list)
  h:wait_settled("in", 20)
  h:wait_settled("copy", 20)
  for _, channel in ipairs { "out", "buried" } do
    local found = by_id(h:messages(channel))
    for i, m in ipairs(list) do
      local got = found[m.id] and found[m.id][1]
      if not got then error(("%s: message %d is missing"):format(channel, i)) end
      assert.is_true(got.body == bodies[i], ("%s: body %d changed"):format(channel, i))
      assert.is_true(got.key == "k" .. all, channel .. ": the key changed")
      for name, value in pairs(headers) do assert.equal(value, got.headers[name]) end
    end
  end
  assert.equal("reason \0\255 of any bytes \n", h:messages("buried")[1].headers["mw-dead-reason"])
end)

case("huge-error", "an error text or class of megabytes becomes a dead letter that can be stored", function(h)
  h:start { settings = "retry = { attempts = 2, base = 0.02 },", handler = [[
    function M.handle(msg)
      if msg.id == "swapped" then return mw.reject("invalid", ("r"):rep(3e6)) end
      error(("e"):rep(3e6), 0)
    end]] }
  h:publish { { "x", id = "m1", headers = { big = ("h"):rep(20000) } }, { "x", id = "m2" }, { "x", id = "swapped" } }
  h:wait(function() return #h:dead() == 3 end, 10, "the dead letters")
  h:wait_settled()
  assert.matches("the reason comes first", by_id(h:dead()).swapped[1].headers["mw-dead-last-error"])
  local letter = by_id(h:dead()).m1[1]
  assert.equal(20000, #letter.headers.big)
  assert.matches("^eee", letter.headers["mw-dead-last-error"])
end)

--- Dead keys ---------------------------------------------------------------------------------------------------------

local REJECT_BAD = [[
  function M.handle(msg)
    trace("try", msg)
    if msg.body == "bad" and not msg:header "mw-replay" then return mw.reject "bad" end
    trace("done", msg)
  end]]

local function bad_key()
  return { { "bad", id = "a1", key = "a" }, { "x", id = "a2", key = "a" }, { "x", id = "b1", key = "b" },
           { "x", id = "a3", key = "a" }, { "x", id = "b2", key = "b" }, { "x", id = "free" } }
end

local function replay(h)
  local letter = h:dead()[1]
  letter.headers["mw-replay"] = "1"
  h:publish { { letter.body, id = letter.id, key = letter.key, headers = letter.headers } }
  h.broker:remove("in.dead", { letter.position })
end

case("hold-key", "hold_key: the key waits behind its dead letter, through a crash, until that is replayed", { "park" },
  function(h)
    h:start { settings = "on_dead = 'hold_key',", handler = REJECT_BAD }
    h:publish(bad_key())
    h:wait_for("done", 3)
    h:wait(function() return #h:dead() == 1 end, 5, "the dead letter")
    h:kill()
    h:start()
    h:publish { { "x", id = "a4", key = "a" }, { "x", id = "b3", key = "b" } }
    h:wait_for("done", 4)
    h:stay(0.2)
    local done = ids(h.trace:of "done")
    table.sort(done)
    assert.same({ "b1", "b2", "b3", "free" }, done)
    assert.matches("^%x+$", h:dead()[1].headers["mw-dead-lane"])
    replay(h)
    h:wait_for("done", 8)
    local after = {}
    for i = 5, 8 do after[#after + 1] = h.trace:of("done")[i].id end
    assert.same({ "a1", "a2", "a3", "a4" }, after)
    h:wait_settled()
    h:publish { { "x", id = "a5", key = "a" } }
    h:wait_for("done", 9)
  end)

case("dead-key", "dead_key: what follows of a dead key is dead too, until that is replayed", { "park" }, function(h)
  h:start { settings = "on_dead = 'dead_key',", handler = REJECT_BAD }
  h:publish(bad_key())
  h:wait_for("done", 3)
  h:wait(function() return #h:dead() == 3 end, 5, "three dead letters")
  local classes = {}
  for _, letter in ipairs(h:dead()) do classes[#classes + 1] = letter.id .. " " .. letter.headers["mw-dead-class"] end
  assert.same({ "a1 rejected", "a2 key_dead", "a3 key_dead" }, classes)
  replay(h)
  h:wait_for("done", 4)
  h:wait_settled()
  h:publish { { "x", id = "a4", key = "a" } }
  h:wait_for("done", 5)
  assert.equal(2, #h:dead())
end)

--- Groups ------------------------------------------------------------------------------------------------------------

case("groups", "two pipelines on one channel each get every message, and fail by themselves", { "groups" }, function(h)
  h:start {
    settings = "retry = { attempts = 1 },",
    more = [[mw.pipeline "q" { from = broker:channel "in", handler = "handlers.q" }]],
    handler = [[function M.handle(msg) trace("p", msg) if msg.id == "m1" then error("only here", 0) end end]],
    files = { ["handlers/q.lua"] = [[
      local trace = require "trace"
      return { handle = function(msg) trace("q", msg) end }]] },
  }
  h:publish(numbered(50))
  h:wait_for("p", 50)
  h:wait_for("q", 50)
  h:wait_settled()
  assert.equal(50, h.trace:count "p")
  assert.equal(50, h.trace:count "q")
  assert.equal("p", h:dead()[1].headers["mw-dead-pipeline"])
  assert.equal(1, #h:dead())
end)

case("start-newest", "start = newest: a new group begins with what comes next", { "start" }, function(h)
  h:publish(numbered(10))
  h:start { settings = "start = 'newest',", handler = DONE }
  h:ready()
  h:publish { { "x", id = "next" } }
  h:wait_for("done", 1)
  h:stay(0.1)
  assert.same({ "next" }, ids(h.trace:of "done"))
end)

--- Batches -----------------------------------------------------------------------------------------------------------

case("batch", "handle_batch: a verdict for each message, and for those that got none the ack", function(h)
  h:start { settings = "batch = { size = 10, wait = 0.2 }, retry = { attempts = 3, base = 0.05 },", handler = [[
    function M.handle_batch(messages)
      local verdicts = {}
      for i, msg in ipairs(messages) do
        trace("try", msg, #messages)
        if msg.body == "retry" and msg.attempt == 1 then verdicts[i] = mw.retry { reason = "again" } end
        if msg.body == "reject" then verdicts[i] = mw.reject "no" end
        if msg.body == "drop" then verdicts[i] = mw.drop "not ours" end
      end
      return verdicts
    end]] }
  local words = { "ack", "ack", "drop", "retry", "reject" } -- the last verdict made is a rejection
  h:publish(numbered(20, function(i) return { words[i % 5 + 1] } end))
  h:wait(function() return #h:dead() == 4 end, 10, "four dead letters")
  h:wait_settled()
  for _, letter in ipairs(h:dead()) do assert.equal("reject", letter.body) end
  local tries = h.trace:of "try"
  assert.equal(24, #tries) -- 20, and the four retries
  assert.equal(4, #h:dead())
  local again = 0
  for _, line in ipairs(tries) do again = again + (line.attempt == 2 and 1 or 0) end
  assert.equal(4, again)
  assert.equal("10", tries[1].more)
end)

case("batch-error", "handle_batch: an error is a failure of all, one verdict is for all", function(h)
  h:start { settings = "batch = { size = 5, wait = 0.1 }, retry = { attempts = 3, base = 0.03 },", handler = [[
    function M.handle_batch(messages)
      for _, msg in ipairs(messages) do trace("try", msg) end
      if messages[1].attempt == 1 then error("all of it", 0) end
      return mw.reject "all of them"
    end]] }
  h:publish(numbered(5))
  h:wait(function() return #h:dead() == 5 end, 10, "five dead letters")
  h:wait_settled()
  assert.equal(10, h.trace:count "try")
  assert.equal("2", h:dead()[1].headers["mw-dead-attempts"])
end)

--- Outages -----------------------------------------------------------------------------------------------------------

case("outage", "an outage pauses the source and counts no attempt; the first success ends it", function(h)
  local flag = h.dir .. "/down"
  io.open(flag, "w"):close()
  h:start { settings = "concurrency = 4, retry = { attempts = 2, classes = { outage = { pause = 0.2, cap = 0.2 } } },",
    handler = ([[
      function M.handle(msg)
        trace("try", msg)
        local file = io.open(%q)
        if file then file:close() error(mw.error("outage", "the stock service is down")) end
        trace("done", msg)
      end]]):format(flag) }
  h:publish(numbered(40))
  h:wait_for("try", 4)
  h:stay(0.5)
  local tries = h.trace:count "try"
  assert.is_true(tries <= 4 + 4, tries .. " tries during the outage")
  os.remove(flag)
  h:wait_for("done", 40, 20)
  h:wait_settled()
  for _, line in ipairs(h.trace:of "done") do assert.equal(1, line.attempt) end
  assert.equal(0, #h:dead())
end)

--- Many messages, many crashes ---------------------------------------------------------------------------------------

-- A crash brings back what was not settled: a tail of what is done of a key may be done again, in its order, and then
-- the key goes on. Never is one skipped, nor is there a step back that no crash explains.
local function assert_key_order_through_crashes(lines, number_in_key, crashes)
  local last, back = {}, {}
  for _, line in ipairs(lines) do
    local place = number_in_key[line.id]
    if place then
      local at = last[place.key] or 0
      if place.number > at + 1 then
        error(("key %s: %d was handled after %d"):format(place.key, place.number, at), 2)
      elseif place.number <= at then
        back[place.key] = (back[place.key] or 0) + 1
      end
      last[place.key] = place.number
    end
  end
  for key, count in pairs(back) do
    if count > crashes then error(("key %s began again %d times"):format(key, count), 2) end
  end
end

case("soak", "many messages, ten crashes: each is handled, none lost, few twice, key order kept", function(h)
  local n, kills, buffer = h:scaled(100000, 5000), 10, 256 -- as in the settings
  local settings = "concurrency = 32, buffer = { count = 256 }, retry = { attempts = 1000, base = 0.01 },"
  h:start { settings = settings, handler = DONE }
  local list, number_in_key, at = {}, {}, {}
  for i = 1, n do
    local key = i % 3 > 0 and "k" .. i % 500 or nil
    if i % 5 == 0 then key = "hot" end
    list[i] = { "x", id = "m" .. i, key = key }
    if key then
      at[key] = (at[key] or 0) + 1
      number_in_key[list[i].id] = { key = key, number = at[key] }
    end
  end
  h:publish(list)
  for i = 1, kills do
    h:wait_for("done", math.floor(n / (kills + 1) * i), 60)
    h:kill()
    h:start()
  end
  h:wait_settled("in", 60)
  assert_all_done(h, n, kills * buffer)
  assert_key_order_through_crashes(h.trace:of "done", number_in_key, kills)
  assert.equal(0, #h:dead())
end)

case("two-workers", "two workers of a group share the messages: each once, key order kept", function(h)
  local n = h:scaled(2000, 200)
  local handler = [[
    function M.handle(msg)
      if math.random() < 0.2 then mw.sleep(math.random() * 0.01) end
      if math.random() < 0.05 then error("by chance", 0) end
      trace("done", msg)
    end]]
  local one = h:start { settings = "concurrency = 8, retry = { attempts = 50, base = 0.01 },", handler = handler }
  local two = h:start()
  h:stay(h.driver.outside and 1.5 * h.late or 0.05) -- until they have shared out what there is
  h:publish(keyed(n, 50))
  h:wait_for("done", n, 30)
  h:wait_settled()
  assert.equal(n, h.trace:count "done")
  assert_key_order(h.trace:of "done")
  h:stop(one)
  h:stop(two)
end)

case("takeover", "when one of two workers is killed, the other goes on where it was", function(h)
  local n, buffer = h:scaled(1000, 200), 64
  h:start { settings = ("concurrency = 8, lease = 2, buffer = { count = %d },"):format(buffer), handler = [[
    function M.handle(msg) mw.sleep(math.random() * 0.006) trace("done", msg) end]] }
  local two = h:start()
  h:publish(keyed(n, 50))
  h:wait_for("done", math.floor(n / 4), 20)
  local one
  for worker in pairs(h.workers) do if worker ~= two then one = worker end end
  h:kill(one)
  h:wait_settled("in", 30)
  local done = h.trace:of "done"
  assert_key_order(done)
  local seen = by_id(done)
  local count = 0
  for _ in pairs(seen) do count = count + 1 end
  assert.equal(n, count)
  assert.is_true(#done - n <= buffer, #done - n .. " were handled again")
  h:stop(two)
end)

return M
