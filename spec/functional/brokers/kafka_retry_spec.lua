-- Two ways of retrying in one pipeline on Kafka, chosen by the class of the error: held in the lane, where the key
-- waits, or through retry topics, where it goes on. Each class has its own delays and its own number of attempts.
local C = require "moonwire.internal.cdef"
local driver = require "spec.contract.kafka"
local harness = require "spec.support.harness"
local kafka = require "spec.support.servers.kafka"

C.mw_log_setup(0, 9)

local TOPICS = { ["in.retry.500ms"] = 1, ["in.retry.1s"] = 1 }

-- The class is the first part of a message's id; ".2" behind it: that class at the second attempt.
local HANDLER = [[
  function M.handle(msg)
    trace("try", msg)
    local first, second = msg.id:match "^(%a+)%.(%a+)$"
    local class = msg.attempt == 2 and second or first or msg.id
    if class == "held" or class == "away" then error(mw.error(class, class .. " " .. msg.attempt)) end
  end]]

local function new(name)
  local h = harness.new(driver, { name = name, partitions = 1, topics = TOPICS })
  finally(function() h:close() end)
  return h
end

-- The attempts of each message, in order: { [id] = { { time, attempt }, … } }
local function attempts(h)
  local by_id = {}
  for _, line in ipairs(h.trace:of "try") do
    by_id[line.id] = by_id[line.id] or {}
    table.insert(by_id[line.id], line)
  end
  return by_id
end

local function assert_waits(h, tries, waits)
  assert.equal(#waits + 1, #tries, tries[1].id)
  for i, line in ipairs(tries) do
    assert.equal(i, line.attempt)
    if i > 1 then
      local waited, wanted = line.time - tries[i - 1].time, waits[i - 1]
      assert.is_true(waited > wanted - 0.01 and waited < wanted + 0.45 * h.late,
        ("%s waited %.3f s for attempt %d, not %g"):format(line.id, waited, i, wanted))
    end
  end
end

local function letters(h, count)
  h:wait(function() return #h:dead() == count end, 30, count .. " dead letters")
  local by_id = {}
  for _, letter in ipairs(h:dead()) do by_id[letter.id] = letter.headers end
  return by_id
end

local WAYS = {
  ["the pipeline holds, a class has topics"] = [[
    retry = { backoff = { 0.3, 0.6 }, jitter = 0, classes = { away = { topics = { 0.5, 1 } } } },]],
  ["the pipeline has topics, a class holds by a list"] = [[
    retry = { topics = { 0.5, 1 }, classes = { held = { backoff = { 0.3, 0.6 }, jitter = 0 } } },]],
  ["the pipeline has topics, a class holds by a base"] = [[
    retry = { topics = { 0.5, 1 }, classes = { held = { base = 0.3, jitter = 0, attempts = 3 } } },]],
  ["both are classes"] = [[
    retry = { attempts = 1, classes = {
      held = { backoff = "exponential", base = 0.3, jitter = 0, attempts = 3 }, away = { topics = { 0.5, 1 } } } },]],
}

describe("retries on Kafka, by class", function()
  if kafka.shared().mock then
    it("need a real broker", function() pending "no Kafka broker here" end)
    return
  end

  for name, settings in pairs(WAYS) do
    it("hold one and let another wait elsewhere: " .. name, function()
      local h = new "retry-classes"
      h:start { settings = settings, handler = HANDLER }
      h:publish { { "x", id = "held", key = "a" }, { "x", id = "behind-held", key = "a" },
                  { "x", id = "away", key = "b" }, { "x", id = "behind-away", key = "b" } }
      local dead = letters(h, 2)
      h:wait_for("try", 8)
      local tries = attempts(h)
      assert_waits(h, tries.held, { 0.3, 0.6 })
      assert_waits(h, tries.away, { 0.5, 1 })
      assert.is_true(tries["behind-held"][1].time >= tries.held[3].time, "the key of what is held did not wait")
      assert.is_true(tries["behind-away"][1].time < tries.away[2].time, "the key of what went away waited")
      for class, headers in pairs(dead) do
        assert.equal(class, headers["mw-dead-class"])
        assert.equal("3", headers["mw-dead-attempts"])
        assert.equal(class .. " 1", headers["mw-dead-first-error"])
        assert.equal(class .. " 3", headers["mw-dead-last-error"])
        assert.equal("in", headers["mw-dead-channel"])
      end
      for _, topic in ipairs { "in.retry.500ms", "in.retry.1s" } do
        local there = h:messages(topic)
        assert.equal(1, #there, topic)
        assert.equal("away", there[1].id)
      end
      h:wait_settled "in"
    end)
  end

  -- A message may fail for one reason first and for another one then; attempts count through both.
  it("change with the class from one attempt to the next", function()
    local h = new "retry-mixed"
    h:start { settings = [[
      retry = { topics = { 0.5, 1 }, classes = { held = { backoff = { 0.3, 0.6 }, jitter = 0 } } },]],
      handler = HANDLER }
    h:publish { { "x", id = "away.held", key = "a" }, { "x", id = "held.away", key = "b" } }
    letters(h, 2)
    local tries = attempts(h)
    assert_waits(h, tries["away.held"], { 0.5, 0.6 })
    assert_waits(h, tries["held.away"], { 0.3, 1 })
    for _, letter in ipairs(h:dead()) do
      assert.equal("3", letter.headers["mw-dead-attempts"])
      assert.equal(h.prefix .. "in", letter.headers["mw-dead-topic"])
      assert.equal(letter.id:match "^%a+" .. " 1", letter.headers["mw-dead-first-error"])
      assert.equal(letter.id:match "^%a+", letter.headers["mw-dead-class"])
    end
    h:wait_settled "in"
  end)

  it("go on where they were after a crash", function()
    local h = new "retry-crash"
    h:start { settings = [[
      retry = { topics = { 0.5, 1 }, classes = { held = { backoff = { 0.3, 4 }, jitter = 0 } } },]],
      handler = HANDLER }
    h:publish { { "x", id = "held", key = "a" }, { "x", id = "behind-held", key = "a" },
                { "x", id = "away", key = "b" } }
    h:wait(function()
      local tries = attempts(h)
      return #(tries.held or {}) == 2 and #(tries.away or {}) == 2
    end, 20, "the second attempt of both")
    h:stay(0.3 * h.late) -- until the commit has it
    h:kill()
    h:start()
    letters(h, 2)
    h:wait_for("try", 7)
    local tries = attempts(h)
    for _, id in ipairs { "held", "away" } do
      assert.equal(3, #tries[id])
      assert.equal(3, tries[id][3].attempt)
    end
    assert.is_true(tries.held[3].time - tries.held[2].time > 3.99, "the held one did not wait until it was due")
    assert.is_true(tries.away[3].time - tries.away[2].time > 0.99, "the other one did not wait until it was due")
    assert.is_true(tries["behind-held"][1].time >= tries.held[3].time)
    h:wait_settled "in"
  end)
end)
