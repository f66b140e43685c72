-- The bounds of a Kafka consumer: how far the newest handled message may be from the commit, and how long a partition
-- that is taken away waits for its handlers.
local C = require "moonwire.internal.cdef"
local driver = require "spec.contract.kafka"
local harness = require "spec.support.harness"
local kafka = require "spec.support.servers.kafka"

C.mw_log_setup(0, 9)

local function new(case, drain_ms)
  local h = harness.new(driver, case)
  finally(function() h:close() end)
  h.url = h.url:gsub("revoke%.drain%.ms=%d+", "revoke.drain.ms=" .. (drain_ms or 1000))
  return h
end

local function count_of(lines)
  local counts = {}
  for _, line in ipairs(lines) do counts[line.id] = (counts[line.id] or 0) + 1 end
  return counts
end

describe("kafka", function()
  if kafka.shared().mock then
    it("has bounds that need a real broker", function() pending "no Kafka broker here" end)
    return
  end

  -- A message that is not done holds the commit where it is; a hundred thousand behind it are done and remembered.
  local SPAN, MORE = 100000, 20000

  local function publish_many(h)
    local list = { { "x", id = "first", key = "slow" } }
    for i = 1, SPAN + MORE do
      list[#list + 1] = { "x", id = tostring(i), key = "k" .. i % 500 }
      if #list == 2000 or i == SPAN + MORE then
        h:publish(list)
        list = {}
      end
    end
  end

  if not os.getenv("MOONWIRE_BIN"):find "asan" then -- so many take too long there
    it("stops reading when too much is done beyond the commit, and repeats none of it after a crash", function()
      local h = new { name = "span", partitions = 1 }
      publish_many(h)
      h:start { settings = "timeout = 300,", handler = [[
        function M.handle(msg)
          if msg.id == "first" then
            trace("begin", msg)
            if msg.attempt == 1 then mw.sleep(200) end
          elseif tonumber(msg.id) % 1000 == 0 then
            trace("mile", msg)
          end
        end]] }
      local miles = (SPAN + MORE) / 1000
      h:wait_for("mile", SPAN / 1000 - 2, 60)
      h:stay(2)
      local before = h.trace:count "mile"
      assert.is_true(before <= SPAN / 1000, before .. " thousand were handled beyond the commit")
      h:kill()
      h:start()
      h:wait_for("mile", miles, 60)
      h:wait_settled("in", 30)
      assert.equal(2, h.trace:count "begin")
      local counts = count_of(h.trace:of "mile")
      for i = 1, miles do assert.equal(1, counts[tostring(i * 1000)], i .. " thousand") end
      h:stop()
    end)
  end

  -- One message in each of four partitions, all of them with one member; then another one joins.
  local function takeover(h, seconds)
    local first = h:start { settings = "timeout = 60,", handler = ([[
      function M.handle(msg)
        trace("begin", msg)
        mw.publish("out", msg.body, { id = "out-" .. msg.id })
        if msg.attempt == 1 then mw.sleep(%g) end
        trace("done", msg)
      end]]):format(seconds) }
    h:ready()
    local list = {}
    for i = 1, 12 do list[i] = { "x", id = "m" .. i, key = "k" .. i } end
    h:publish(list)
    h:wait_for("begin", 12)
    return first, h:start()
  end

  local function has_partitions(worker)
    return worker.child:stderr():find 'partitions assigned"[^\n]*partitions="?%d'
  end

  local function assert_published_once(h)
    local out = count_of(h:messages "out")
    for i = 1, 12 do assert.equal(1, out["out-m" .. i], "out-m" .. i) end
  end

  it("lets running handlers finish when their partitions are taken away, and repeats nothing", function()
    local h = new({ name = "drain", partitions = 4 }, 20000)
    local first, second = takeover(h, 3)
    h:wait(function() return has_partitions(second) end, 20, "the second member to get partitions")
    assert.equal(12, h.trace:count "done") -- not before
    h:wait_settled("in", 20)
    assert.equal(12, h.trace:count "begin")
    assert.equal(0, first:fenced())
    assert_published_once(h)
  end)

  it("waits no longer for them than it is told, and discards what they say then", function()
    local h = new({ name = "drain-late", partitions = 4 }, 500)
    local first, second = takeover(h, 8 * harness.late)
    h:wait(function() return has_partitions(second) end, 7 * harness.late, "the second member to get partitions")
    assert.equal(0, h.trace:count "done")
    h:wait(function()
      local counts, whole = count_of(h.trace:of "done"), 0
      for _ in pairs(counts) do whole = whole + 1 end
      return whole == 12 and first:fenced() > 0
    end, 40, "all to be done, and the late verdicts to be discarded")
    h:wait_settled("in", 30)
    assert_published_once(h)
  end)
end)
