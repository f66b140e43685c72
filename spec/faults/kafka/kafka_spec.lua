-- What happens to a Kafka consumer in real life: members come and go, the broker restarts, commits fail, a process
-- stands still, a topic is compacted or grows. Nothing may be lost, and the order of a key holds for whoever looks at
-- the end.
local C = require "moonwire.internal.cdef"
local client = require "spec.support.servers.kafka_client"
local clock = require "spec.support.wait"
local driver = require "spec.contract.kafka"
local harness = require "spec.support.harness"
local json = require "moonwire.json"
local kafka = require "spec.support.servers.kafka"
local process = require "spec.support.process"
local mw = require "moonwire"
local supervised = require "spec.support.supervised"

local binary = os.getenv "MOONWIRE_BIN"
local real = not kafka.shared().mock

C.mw_log_setup(0, 9)

local function new(case)
  local h = harness.new(driver, case)
  finally(function() h:close() end)
  return h
end

-- n messages over so many keys, ids "key.number", from the number where the keys stand
local function keyed(n, keys, at)
  local list = {}
  for i = 1, n do
    local key = "k" .. i % keys
    at[key] = (at[key] or 0) + 1
    list[i] = { "x", id = key .. "." .. at[key], key = key }
  end
  return list
end

-- What an observer of the trace sees for each key: 1, 2, 3 …, and after a crash perhaps some again, from a lower number
-- on, in order; never one before its turn. Returns how many were handled again.
local function observe(lines, at)
  local last, most, again, count = {}, {}, 0, 0
  for _, line in ipairs(lines) do
    local key, number = line.id:match "^(.-)%.(%d+)$"
    number = tonumber(number)
    if number > (last[key] or 0) + 1 then
      error(("%s: %d came when it was the turn of %d"):format(key, number, (last[key] or 0) + 1), 2)
    end
    last[key] = number
    if number > (most[key] or 0) then
      most[key], count = number, count + 1
    else
      again = again + 1
    end
  end
  for key, number in pairs(at) do
    if last[key] ~= number then
      error(("%s ends with %s instead of %d"):format(key, tostring(last[key]), number), 2)
    end
  end
  return again, count
end

local HANDLER = [[
  function M.handle(msg)
    if math.random() < 0.001 then mw.sleep(math.random() * 0.02) end
    trace("done", msg)
  end]]

-- Waits a little each time, so that much is under way when a member is killed.
local WAITS = [[
  function M.handle(msg)
    mw.sleep(0.001 + math.random() * 0.004)
    trace("done", msg)
  end]]

-- Of what was handled again: how much had been handled by a member that was killed, just before that. Nobody knows that
-- it was done. The others let go of what they had begun and could not commit.
local function by_the_killed(lines, killed, moment)
  local before, count = {}, 0
  for _, line in ipairs(lines) do
    local last = before[line.id]
    local at = last and killed[last.worker]
    if at and last.time > at - moment then count = count + 1 end
    before[line.id] = line
  end
  return count
end

-- Members join, leave and are killed while messages flow, for so many seconds.
local function storm(options, n, seconds)
  local buffer, concurrency = 256, 64
  local h = new { name = "storm", partitions = 6, options = options }
  local settings = ("concurrency = %d, buffer = { count = %d },"):format(concurrency, buffer)
  local members, at, published, kills, killed = {}, {}, 0, 0, {}
  members[1] = h:start { settings = settings, handler = WAITS }
  members[2] = h:start()
  local chunk, turn, began = math.ceil(n / 100), 0, clock.now()
  local next_turn = began + 2
  while published < n do
    local published_now = clock.now() - began > seconds * published / n
    if published_now then
      h:publish(keyed(math.min(chunk, n - published), 1000, at))
      published = math.min(n, published + chunk)
    else
      h:stay(0.02)
    end
    if published_now and clock.now() > next_turn then -- while there is something to do
      turn = turn + 1
      local worker = table.remove(members, 1)
      if turn % 3 == 0 then
        h:stop(worker, 20 * h.late)
      else
        h:kill(worker)
        kills, killed[worker.name] = kills + 1, mw.now()
      end
      members[#members + 1] = h:start()
      if #members < 3 then members[#members + 1] = h:start() end
      next_turn = clock.now() + 3
    end
  end
  h:wait_settled("in", 60)
  local again, count = observe(h.trace:of "done", at)
  assert.equal(n, count)
  local most = turn * buffer * 3 -- the one that was killed, and the two that had to let go of what they had begun
  local explained = by_the_killed(h.trace:of "done", killed, 1 * h.late)
  local text = "\n  storm%s: %d messages, %d turns, %d kills, %d handled again (bound %d), %d of them after a kill\n"
  io.write(text:format(options or "", n, turn, kills, again, most, explained))
  if not binary:find "asan" then -- slow ones are often killed while they do nothing
    assert.is_true(explained > 0, "nothing was under way when members were killed")
  end
  if not options then -- an incremental rebalance can meet a commit, which loses partitions (docs/brokers/kafka.md)
    assert.is_true(again - explained <= turn * 2 * concurrency, again - explained .. " handled again for no reason")
  end
  assert.is_true(turn >= 3, "the storm was over too soon: " .. turn .. " turns")
  assert.is_true(again <= most, again .. " were handled again")
  for _, worker in ipairs(members) do h:stop(worker, 20 * h.late) end
  return h
end

describe("kafka", function()
  if not real then
    it("faults need a real broker", function() pending "no Kafka broker here" end)
    return
  end

  it("loses nothing in a rebalance storm, and keeps the order of keys (range)", function()
    local n = math.max(20000, math.floor(200000 * harness.scale))
    storm(nil, n, 24)
  end)

  it("loses nothing in a rebalance storm, and keeps the order of keys (cooperative-sticky)", function()
    local n = math.max(20000, math.floor(60000 * harness.scale))
    storm("&partition.assignment.strategy=cooperative-sticky", n, 14)
  end)

  it("makes a new producer when the idempotence of the old one is broken for good", function()
    local mock = client.mock_cluster()
    local h = new { name = "fatal", server = { mock = mock, bootstrap = mock.bootstrap }, session = 6000 }
    h:start { settings = "retry = { attempts = 50, base = 0.05 },", handler = [[
      function M.handle(msg)
        trace("begin", msg)
        if msg.id == "m1" then mw.sleep(1) end
        mw.publish("out", msg.body, { id = "out-" .. msg.id })
      end]] }
    local worker = next(h.workers)
    h:publish { { "x", id = "m0", key = "a" }, { "x", id = "m1", key = "a" } }
    h:wait_for("begin", 2, 30)
    local PRODUCE, OUT_OF_ORDER = 0, 45
    client.mock_errors(mock, PRODUCE, { OUT_OF_ORDER, OUT_OF_ORDER })
    h:wait(function() return worker.child:stderr():find("failed for good and is replaced", 1, true) end, 20,
      "the producer to fail")
    local list = {}
    for i = 2, 50 do list[#list + 1] = { "x", id = "m" .. i, key = "k" .. i } end
    h:publish(list)
    local out = {}
    h:wait(function()
      for _, m in ipairs(h.broker:messages "out") do out[m.id] = true end
      for i = 0, 50 do if not out["out-m" .. i] then return false end end
      return true
    end, 40, function() return "every output to be there; " .. worker.child:stderr():sub(-1500) end)
    h:stop()
  end)

  it("keeps static members through a kill: each worker has its name, and nobody else loses a partition", function()
    local h = new { name = "static", partitions = 4, session = 10000, options = "&group.instance.id=member" }
    local s = supervised.scene { flags = { "--workers", "2" },
      handler = [[function M.handle(msg) mw.sleep(0.002) trace("done", msg) end]] }
    s.url = h.url
    s:start()
    finally(function() s.child:stop(20) end)
    local function settled_at(count)
      return function() return s:count '"partitions assigned"[^\n]*partitions="?%d' >= count end
    end
    h:wait(settled_at(2), 40, "both to have partitions")
    local function publish(name)
      local list = {}
      for i = 1, 400 do list[i] = { "x", id = name .. i, key = "k" .. i } end
      h:publish(list)
    end
    publish "a"
    h:wait_settled("in", 40)
    h:stay(1)
    local revoked, assigned = s:count "partitions revoked", s:count '"partitions assigned"[^\n]*partitions="?%d'
    publish "b"
    s:kill_worker(1)
    h:wait(settled_at(assigned + 1), 30, "the new worker to have its partitions")
    publish "c"
    h:wait_settled("in", 40)
    assert.equal(assigned + 1, s:count '"partitions assigned"[^\n]*partitions="?%d', s.child:stderr())
    assert.equal(revoked, s:count "partitions revoked", s.child:stderr())
    assert.equal(0, s:count "partitions lost")
    local seen = {}
    for _, line in ipairs(s.trace:read()) do seen[line.id] = true end
    for _, name in ipairs { "a", "b", "c" } do
      for i = 1, 400 do assert.is_true(seen[name .. i], name .. i .. " was not handled") end
    end
  end)

  it("goes on after the broker was restarted, with nothing lost", function()
    local server = assert(kafka.new())
    local h = new { name = "restart", server = server }
    h:start { settings = "retry = { attempts = 100, base = 0.05 },", handler = [[
      function M.handle(msg)
        mw.publish("out", msg.body, { id = "out-" .. msg.id })
        mw.sleep(0.002)
        trace("done", msg)
      end]] }
    local n = 600
    local list = {}
    for i = 1, n do list[i] = { "x", id = "m" .. i, key = "k" .. i % 50 } end
    h:publish { unpack(list, 1, n / 2) }
    h:wait_for("done", n / 4, 30)
    server:stop "KILL"
    h:stay(1)
    server:start()
    h:publish { unpack(list, n / 2 + 1) }
    h:wait_settled("in", 60)
    local seen, out = {}, {}
    for _, line in ipairs(h.trace:of "done") do seen[line.id] = true end
    for _, m in ipairs(h:messages "out") do out[m.id] = true end
    for i = 1, n do
      assert.is_true(seen["m" .. i], "m" .. i .. " was not handled")
      assert.is_true(out["out-m" .. i], "what m" .. i .. " published is not there")
    end
    h:stop()
    server:stop()
  end)

  it("commits again when a commit fails", function()
    local mock = client.mock_cluster()
    local h = new { name = "commit", server = { mock = mock, bootstrap = mock.bootstrap }, session = 6000 }
    h:start { handler = [[function M.handle(msg) trace("done", msg) end]] }
    local OFFSET_COMMIT, LOADING, TIMED_OUT, TOO_LARGE = 8, 14, 7, 12
    h:publish { { "x", id = "m1", key = "a" } }
    h:wait_for("done", 1, 20)
    client.mock_errors(mock, OFFSET_COMMIT, { LOADING, TIMED_OUT, LOADING, TOO_LARGE, LOADING })
    local list = {}
    for i = 2, 200 do list[#list + 1] = { "x", id = "m" .. i, key = "k" .. i } end
    h:publish(list)
    h:wait_for("done", 200, 20)
    h:stop() -- ends only when everything is settled
    h:start()
    h:publish { { "x", id = "last", key = "a" } }
    h:wait_for("done", 201, 30)
    h:stay(0.5)
    assert.equal(201, h.trace:count "done")
  end)

  it("lets another member go on while a process stands still for 5 s, and discards what it says then", function()
    local h = new { name = "pause", partitions = 4 }
    local buffer, n = 64, 3000
    local worker = h:start { settings = ("concurrency = 16, buffer = { count = %d },"):format(buffer), handler = [[
      function M.handle(msg) mw.sleep(0.004) trace("done", msg) end]] }
    h:start()
    local list = {}
    for i = 1, n do list[i] = { "x", id = "m" .. i, key = "k" .. i % 200 } end
    h:publish(list)
    for i = 1, 2 do
      h:wait_for("done", n / 6 * i, 30)
      worker.child:kill "STOP"
      h:stay(5)
      worker.child:kill "CONT"
    end
    h:wait_settled("in", 60)
    local seen, again = {}, 0
    for _, line in ipairs(h.trace:of "done") do
      if seen[line.id] then again = again + 1 end
      seen[line.id] = true
    end
    for i = 1, n do assert.is_true(seen["m" .. i], "m" .. i .. " was not handled") end
    assert.is_true(again <= 2 * 2 * buffer, again .. " were handled again")
  end)

  it("comes back by itself when another process with its group.instance.id is gone", function()
    local h = new { name = "twin", partitions = 2, options = "&group.instance.id=twin" }
    local first = h:start { handler = [[function M.handle(msg) trace("done", msg) end]] }
    local function some(name)
      local list, before = {}, h.trace:count "done"
      for i = 1, 10 do list[i] = { "x", id = name .. i, key = "k" .. i } end
      h:publish(list)
      h:wait_for("done", before + 10, 30)
      h:wait_settled "in"
      return h.trace:of("done")[before + 1].worker
    end
    local function status()
      local ran = process.run { { binary, "status", first.dir, "--json" }, env = { BROKER_URL = h.url } }
      assert.equal(0, ran.code, ran.stderr)
      return json.decode(ran.stdout)
    end
    assert.equal(first.name, some "a")
    local second = h:start()
    h:wait(function() return first.child:stderr():find("failed for good", 1, true) end, 30, "the first to be fenced")
    assert.equal(second.name, some "b")
    h:stay(2) -- they do not throw each other out in turn
    assert.is_nil(second.child:stderr():find("failed for good", 1, true))
    local peer = status().connections[1]
    assert.equal("waiting", peer.state)
    assert.matches("fenced", peer.error)
    h:stop(second)
    assert.equal(first.name, some "c")
    assert.equal("up", status().connections[1].state)
    assert.equal(30, h.trace:count "done")
    h:stop(first)
  end)

  -- Stopped for most of its session, but not thrown out: it gives up what it has, to be sure. Then another one joins,
  -- and only some partitions are taken away.
  it("goes on with the partitions it kept when a pause and a cooperative rebalance come together", function()
    local session = 6000
    local h = new { name = "pause-sticky", partitions = 4, session = session,
      options = "&partition.assignment.strategy=cooperative-sticky&heartbeat.interval.ms=300" }
    local worker = h:start { handler = [[function M.handle(msg) trace("done", msg) end]] }
    local at = {}
    h:publish(keyed(200, 100, at))
    h:wait_for("done", 200, 20)
    h:wait_settled "in"
    worker.child:kill "STOP"
    h:stay(session / 1000 * h.late * 0.83)
    worker.child:kill "CONT"
    local other = h:start()
    h:publish(keyed(200, 100, at))
    h:wait(function() return worker.child:stderr():find("partitions given back", 1, true) end, 20,
      "a partition to be given to the other")
    assert.matches("stood still", worker.child:stderr())
    h:wait_settled("in", 40)
    observe(h.trace:of "done", at)
    h:stop(other)
    h:stop(worker)
  end)

  it("keeps little of a large backlog in memory while its pipeline is full", function()
    local partitions, each, size = 8, 150, 100000
    local h = new { name = "backlog", partitions = partitions, options = "&batch.size=1000000" }
    local body = ("x"):rep(size)
    for i = 1, partitions * each / 50 do
      local list = {}
      for k = 1, 50 do list[k] = { body, id = "m" .. i .. "." .. k, key = "k" .. i * 50 + k } end
      h:publish(list)
    end
    local worker = h:start {
      settings = "concurrency = 1, buffer = { count = 2, bytes = 100000 }, timeout = 600,",
      handler = [[function M.handle(msg) trace("begin", msg) mw.sleep(600) end]] }
    h:wait_for("begin", 1, 30)
    h:stay(4)
    local status = assert(io.open(("/proc/%d/status"):format(worker.child.pid))):read "*a"
    local peak = tonumber(status:match "VmHWM:%s+(%d+)") / 1024
    io.write(("\n  backlog: %d MB, at most %.0f MB of memory\n"):format(partitions * each * size / 1e6, peak))
    -- a megabyte a partition, and one answer more for each; the process itself
    assert.is_true(peak < (partitions * 2 + 45) * (h.late > 1 and 8 or 1), peak .. " MB")
    h:kill(worker)
  end)

  -- When a partition's share is full, librdkafka before 2.2 looks a second later whether there is room again.
  local function assert_flows(case, n, size)
    local h = new(case)
    for i = 1, n, 2000 do
      local list = {}
      for k = i, math.min(n, i + 1999) do list[#list + 1] = { ("x"):rep(size), id = "m" .. k, key = "hot" } end
      h:publish(list)
    end
    h:start { settings = "order = 'none',", handler = [[
      function M.handle(msg) trace("done", msg) end]] }
    h:wait_for("done", n, 60)
    local lines = h.trace:of "done"
    local took = lines[#lines].time - lines[1].time
    io.write(("\n  %s: %d messages of %d B in %.1f s\n"):format(case.name, n, size, took))
    assert.is_true(took < 6 * h.late, ("%.1f s"):format(took))
    h:stop()
  end

  it("reads on at once when the user's own limit of bytes is reached", function()
    assert_flows({ name = "few-bytes", partitions = 1, options = "&queued.max.messages.kbytes=64"
      .. "&max.partition.fetch.bytes=65536" }, 8000, 1000)
  end)

  it("reads on at once when the limit of messages is reached", function()
    assert_flows({ name = "few-messages", partitions = 1, options = "&queued.min.messages=500"
      .. "&max.partition.fetch.bytes=20000" }, 20000, 10)
  end)

  it("takes gaps for what they are: a compacted topic is settled to its end", function()
    local h = new { name = "compact", partitions = 1, config = {
      ["cleanup.policy"] = "compact", ["segment.ms"] = 200, ["min.cleanable.dirty.ratio"] = "0.001",
      ["min.compaction.lag.ms"] = 0, ["max.compaction.lag.ms"] = 100,
    } }
    local n, at = 2000, {}
    h:publish(keyed(n, 10, at))
    h:wait(function()
      h:stay(0.3)
      h:publish(keyed(10, 10, at)) -- rolls the segment
      return #h.broker:messages "in" < n
    end, 40, "the broker to compact the topic")
    local left = #h.broker:messages "in"
    assert.is_true(left < n)
    h:start { handler = HANDLER }
    h:wait_settled("in", 30)
    local last = {}
    for _, line in ipairs(h.trace:of "done") do
      local key, number = line.id:match "^(.-)%.(%d+)$"
      assert.is_true(tonumber(number) > (last[key] or 0))
      last[key] = tonumber(number)
    end
    assert.same(at, last)
    h:kill()
    h:start()
    local count = h.trace:count "done"
    h:publish(keyed(10, 10, at))
    h:wait_for("done", count + 10, 20)
    h:wait_settled "in"
    assert.equal(count + 10, h.trace:count "done")
  end)

  it("reads partitions that are added while it runs", function()
    local h = new { name = "grow", partitions = 2, options = "&topic.metadata.refresh.interval.ms=300" }
    h:start { handler = HANDLER }
    local at = {}
    h:publish(keyed(200, 50, at))
    h:wait_for("done", 200, 20)
    client.add_partitions(h.server.bootstrap, h.prefix .. "in", 6)
    h.partitions = 6
    h:wait(function() return driver.ready(h) end, 30, "the new partitions to be assigned")
    h:publish(keyed(2000, 100, at))
    h:wait_for("done", 2200, 30)
    h:wait_settled "in"
    local _, low = client.ends(h.server.bootstrap, h.prefix .. "in", 5)
    assert.is_true(low > 0, "nothing went to the new partition")
  end)

  it("keeps a member whose handler takes longer than the group allows between polls", function()
    local most = 3 * harness.late
    local h = new { name = "slow", partitions = 2, options = ("&max.poll.interval.ms=%d"):format(most * 1000) }
    h:start { settings = "timeout = 60, lease = 1,", handler = ([[
      function M.handle(msg)
        trace("begin", msg)
        if msg.id == "slow" then mw.sleep(%g) end
        trace("done", msg)
      end]]):format(most * 2 + 1) }
    h:publish { { "x", id = "slow", key = "a" }, { "x", id = "behind", key = "a" } }
    for i = 1, 20 do h:publish { { "x", id = "other" .. i, key = "b" .. i } } end
    h:wait_for("done", 22, 30)
    h:wait_settled "in"
    assert.equal(22, h.trace:count "begin")
    assert.equal("behind", h.trace:of("done")[22].id)
  end)

  -- Each input has one output that readers of committed messages see, and one commit; nothing more.
  local function assert_exactly_once(h, n)
    local seen = {}
    for _, m in ipairs(h:messages "out") do
      seen[m.id] = (seen[m.id] or 0) + 1
      assert.equal(1, seen[m.id], m.id .. " was published more than once")
    end
    for i = 1, n do assert.equal(1, seen["out-m" .. i], "out-m" .. i) end
  end

  local EXACTLY = [[
    function M.handle(msg)
      mw.publish("out", msg.body, { id = "out-" .. msg.id, key = msg.key })
      mw.sleep(math.random() * 0.01)
      trace("done", msg)
    end]]

  local function numbered(n)
    local list = {}
    for i = 1, n do list[i] = { "x", id = "m" .. i, key = "k" .. i % 50 } end
    return list
  end

  it("handles exactly once through kills in the middle of transactions", function()
    local h = new { name = "eos", partitions = 4 }
    local n, kills = 2000, 5
    h:start { settings = "exactly_once = true, concurrency = 32, buffer = { count = 200 },", handler = EXACTLY }
    h:publish(numbered(n))
    for i = 1, kills do
      h:wait_for("done", math.floor(n / (kills + 2)) * i, 60)
      h:kill()
      h:start()
    end
    h:wait_settled("in", 60)
    -- what a killed one left open ends by its timeout; until then readers wait
    h:wait(function() return #h:messages "out" >= n end, 40, "the outputs to be readable")
    assert_exactly_once(h, n)
    h:stop()
  end)

  it("handles exactly once when a member stands still and another takes over", function()
    local h = new { name = "eos-pause", partitions = 4 }
    local n = 1500
    local worker = h:start { settings = "exactly_once = true, concurrency = 16, buffer = { count = 100 },",
                             handler = EXACTLY }
    h:start()
    h:publish(numbered(n))
    h:wait_for("done", n / 5, 30)
    worker.child:kill "STOP"
    h:stay(4)
    worker.child:kill "CONT"
    h:wait_settled("in", 60)
    h:wait(function() return #h:messages "out" >= n end, 40, "the outputs to be readable")
    assert_exactly_once(h, n)
  end)

  it("puts dead letters and retries into the same transactions", function()
    local h = new { name = "eos-dead", partitions = 1 }
    h:start { settings = "exactly_once = true, retry = { attempts = 2, base = 0.05 },", handler = [[
      function M.handle(msg)
        mw.publish("out", "x", { id = "out-" .. msg.id .. "-" .. msg.attempt })
        if msg.id == "bad" then error("always", 0) end
        if msg.id == "once" and msg.attempt == 1 then error("once", 0) end
      end]] }
    h:publish { { "x", id = "good" }, { "x", id = "bad" }, { "x", id = "once" } }
    h:wait_settled("in", 30)
    h:wait(function() return #h:dead() == 1 end, 10, "the dead letter")
    local ids = {}
    for _, m in ipairs(h:messages "out") do ids[#ids + 1] = m.id end
    table.sort(ids)
    assert.same({ "out-good-1", "out-once-2" }, ids)
    assert.equal("bad", h:dead()[1].id)
    h:stop()
  end)

  -- Outputs that the broker does not take, in one transaction with others that it does.
  local REFUSED = [[
    function M.handle(msg)
      local to, body = "out", "x"
      if msg.id == "large" then to, body = "small", ("x"):rep(5000) end
      if msg.id == "lost" then to = "nowhere" end
      if msg.id:find "^s" then to, body = "small", ("y"):rep(500) end
      mw.publish("out", "first", { id = "first-" .. msg.id })
      mw.publish(to, body, { id = "out-" .. msg.id, key = msg.key })
      trace("done", msg)
    end]]

  for _, exactly in ipairs { true, false } do
    it("buries what publishes too much or to nowhere, and it alone" .. (exactly and ", exactly once" or ""), function()
      local h = new { name = "refused", partitions = 2, topics = {
        small = { partitions = 1, config = { ["max.message.bytes"] = 2000 } } } }
      local list, n = { { "x", id = "large", key = "a" } }, 60
      for i = 1, n do
        list[#list + 1] = { "x", id = "m" .. i, key = "k" .. i }
        list[#list + 1] = { "x", id = "s" .. i, key = "k" .. i } -- each is small enough, all together are not
      end
      list[#list + 1] = { "x", id = "lost", key = "b" }
      list[#list + 1] = { "x", id = "behind", key = "a" }
      h:publish(list)
      h:start { settings = ("exactly_once = %s, retry = { attempts = 2, base = 0.05 },"):format(tostring(exactly)),
                handler = REFUSED }
      h:wait_settled("in", 60)
      local letters, out = {}, {}
      for _, letter in ipairs(h:dead()) do letters[letter.id] = letter.headers end
      for _, m in ipairs(h:messages "out") do out[m.id] = (out[m.id] or 0) + 1 end
      for _, m in ipairs(h:messages "small") do out[m.id] = (out[m.id] or 0) + 1 end
      assert.equal("invalid", letters.large["mw-dead-class"])
      assert.matches("publish: Kafka: topic .*small: Broker: Message size too large: see max.message.bytes",
        letters.large["mw-dead-reason"])
      assert.equal("1", letters.large["mw-dead-attempts"])
      assert.equal("transient", letters.lost["mw-dead-class"])
      assert.matches("nowhere: .*[Uu]nknown topic.*: create it", letters.lost["mw-dead-last-error"])
      assert.equal("2", letters.lost["mw-dead-attempts"])
      letters.large, letters.lost = nil, nil
      assert.same({}, letters)
      for i = 1, n do
        for _, id in ipairs { "out-m" .. i, "first-m" .. i, "out-s" .. i, "first-s" .. i } do
          assert.equal(1, out[id], id)
        end
      end
      assert.equal(1, out["out-behind"])
      if exactly then assert.is_nil(out["first-large"]) end
      h:stop()
      h:start() -- nothing comes again
      local handled = h.trace:count "done"
      h:publish { { "x", id = "last" } }
      h:wait_for("done", handled + 1, 30)
      h:wait_settled "in"
      assert.equal(handled + 1, h.trace:count "done")
    end)
  end

  -- The sandbox has nothing that ends a process, so the handler breaks it: it overwrites the C library's code.
  local POISON = [[
    local function die()
      for line in io.lines "/proc/self/maps" do
        local from, to = line:match "^(%x+)%-(%x+) r%-xp .*/libc[.-]"
        if from then
          local memory = assert(io.open("/proc/self/mem", "r+b"))
          memory:setvbuf "no"
          memory:seek("set", tonumber(from, 16))
          memory:write(("\204"):rep(tonumber(to, 16) - tonumber(from, 16)))
        end
      end
    end
    function M.handle(msg)
      trace("begin", msg)
      if msg.body == "poison" then die() end
      trace("done", msg)
    end]]

  for _, workers in ipairs { 1, 3 } do
    it(("buries a message that kills its worker at once, and it alone: %d workers"):format(workers), function()
      local h = new { name = "poison", partitions = 4 }
      local s = supervised.scene { handler = POISON, flags = { "--workers", tostring(workers) },
        settings = "retry = { attempts = 1 }, buffer = { count = 100 },",
        env = { ASAN_OPTIONS = (os.getenv "ASAN_OPTIONS" or "") .. ":handle_segv=0" } }
      s.url = h.url
      local list, n = {}, 400
      for i = 1, n do list[i] = { i == 100 and "poison" or "x", id = "m" .. i, key = "k" .. i % 40 } end
      h:publish(list)
      s:start()
      finally(function() s.child:stop(20) end)
      h:wait_settled("in", 60)
      local letters = h:dead()
      assert.equal(1, #letters, s.child:stderr())
      assert.equal("m100", letters[1].id)
      assert.equal("crash", letters[1].headers["mw-dead-class"])
      assert.equal("killed its worker 3 times", letters[1].headers["mw-dead-reason"])
      assert.equal("3", letters[1].headers["mw-dead-attempts"])
      assert.equal(3, s:count '"worker ended"[^\n]*signal=')
      local begun, done, last = 0, {}, {}
      for _, line in ipairs(s.trace:read()) do
        local number = tonumber(line.id:match "%d+")
        if line.event == "begin" then
          if number == 100 then
            begun = begun + 1
            assert.equal(begun, line.attempt)
          end
        else
          done[number] = true
          last[number % 40] = number
        end
      end
      assert.equal(3, begun)
      for i = 1, n do assert.is_true(done[i] or i == 100, "m" .. i .. " was not handled") end
      for key, number in pairs(last) do assert.equal(n - 40 + (key == 0 and 40 or key), number) end
    end)
  end

  -- Made anew at once it is only noticed where the new log is shorter than the place where the old one was left.
  for pause, old in pairs { [0] = 800, [3] = 20 } do
    it(("begins at the first message of a topic that is deleted and made anew while it runs, after %d s"):format(pause),
      function()
        local h = new { name = "anew", partitions = 2 }
        h:start { settings = [[start = "newest", retry = { attempts = 1 },]], handler = [[
          function M.handle(msg)
            trace("begin", msg)
            if msg.id == "old1" then mw.sleep(4) end -- it has no place to go to
            trace("done", msg)
          end]] }
        h:ready()
        local list = {}
        for i = 1, old do list[i] = { "x", id = "old" .. i, key = "k" .. i } end
        h:publish(list)
        h:wait_for("done", old - 1, 20)
        client.delete(h.server.bootstrap, h.prefix .. "in")
        h:stay(pause)
        client.create(h.server.bootstrap, { [h.prefix .. "in"] = { partitions = 2 } })
        for i = 1, 30 do
          list = {}
          for k = 1, 10 do list[k] = { "x", id = ("new%d"):format(i * 10 + k - 10), key = "k" .. k } end
          h:publish(list)
        end
        h:wait(function()
          local seen, count = {}, 0
          for _, line in ipairs(h.trace:of "done") do
            if line.id:find "^new" and not seen[line.id] then seen[line.id], count = true, count + 1 end
          end
          return count == 300
        end, 60, function()
          return ("each of the new messages; %d lines, %s"):format(h.trace:count "done", next(h.workers).child:stderr())
        end)
        h:wait_settled("in", 30)
        local worker = next(h.workers)
        assert.matches("a partition is gone", worker.child:stderr())
        h:stop()
        h:start()
        local count = h.trace:count "begin"
        h:publish { { "x", id = "last" } }
        h:wait_for("begin", count + 1, 20)
        h:stay(0.5)
        assert.equal(count + 1, h.trace:count "begin")
      end)
  end
end)
