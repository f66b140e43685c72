-- What RabbitMQ 4 does otherwise than 3.10, on which the other specs run: it drops what a quorum queue delivered more
-- than 20 times, it keeps the history of dead letters to itself, and it stores messages in another form.
local C = require "moonwire.internal.cdef"
local contract = require "spec.contract.rabbitmq"
local harness = require "spec.support.harness"
local json = require "moonwire.json"
local rabbitmq = require "spec.support.servers.rabbitmq"

C.mw_log_setup(0, 9) -- the spec's own links lose their broker too

local missing = contract.classic_4.missing()

describe("rabbitmq 4", function()
  if missing then
    io.stderr:write("SKIPPED: faults on RabbitMQ 4, because ", missing, "\n")
    it("has a broker", function() pending(missing) end)
    return
  end

  local new = harness.closing(after_each)

  local function messages(first, last, delay)
    local list = {}
    for i = first, last do list[#list + 1] = { "body " .. i, id = "m" .. i, key = "k" .. i % 5, delay = delay } end
    return list
  end

  --- The limit of 20 deliveries ---------------------------------------------------------------------------------------

  local DELIVERIES = 24
  local OF_RABBITMQ_3 = '[{<<"x-queue-type">>, longstr, <<"quorum">>}, {<<"x-single-active-consumer">>, bool, true}]'

  it("loses nothing of a quorum queue by two dozen restarts of its reader", function()
    local h = new(contract.quorum_4)
    h:publish(messages(1, 3))
    for _ = 1, DELIVERIES do
      local before = h.trace:count "begun"
      h:start { settings = 'order = "none", retry = { attempts = 1000 },',
                handler = "function M.handle(msg) trace('begun', msg) mw.sleep(60) end" }
      h:wait_for("begun", before + 1, 30) -- one at a time, when it is known that they had begun when a worker died
      h:kill()
    end
    h:start { settings = 'order = "none", retry = { attempts = 1000, base = 0.01 },',
              handler = "function M.handle(msg) trace('done', msg) end" }
    h:wait_for("done", 3, 60)
    h:wait_settled()
  end)

  it("loses no dead letter of a quorum queue by two dozen looks at it", function()
    local h = new(contract.quorum_4)
    h:start { handler = "function M.handle() return mw.reject 'no' end" }
    h:publish(messages(1, 3))
    h:wait(function() return #h:dead() == 3 end, 20, "the dead letters")
    for _ = 1, DELIVERIES do h:wait(function() return #h:dead() == 3 end, 10, "all of them to be there") end
  end)

  -- What docs/brokers/rabbitmq.md says to do after an upgrade.
  it("loses nothing of a quorum queue that RabbitMQ 3 made, where a policy takes its limit away", function()
    local h = new(contract.quorum_4)
    local server = rabbitmq.get "4"
    server:declare(h.vhost, "in", OF_RABBITMQ_3)
    local set = server:ctl("set_policy", "-p", h.vhost, "--apply-to", "quorum_queues", "moonwire", ".*",
      '{"delivery-limit": -1}')
    assert.equal(0, set.code, set.stderr)
    h:publish(messages(1, 3))
    for _ = 1, DELIVERIES do -- what a look gives back may take a moment
      h:wait(function() return #h.broker:messages "in" == 3 end, 10, "all of them to be there")
    end
    h:start { handler = "function M.handle(msg) trace('done', msg) end" }
    h:wait_for("done", 3)
  end)

  --- The history of dead letters --------------------------------------------------------------------------------------

  -- A body over max_message is rejected into "waiting", which sends it back: the broker itself notes how often.
  local FROM = 'from = broker:channel("in", { dead_exchange = "", dead_key = "waiting" }), order = "none", '
  local WAITING = [=[[{<<"x-message-ttl">>, long, 50}, {<<"x-dead-letter-exchange">>, longstr, <<>>},
    {<<"x-dead-letter-routing-key">>, longstr, <<"in">>}]]=]

  it("counts what the broker dead-lettered as attempts, also through retries", function()
    local h = new(contract.classic_4)
    local url = h.url
    rabbitmq.get("4"):declare(h.vhost, "waiting", WAITING)
    h.url = url .. "&max_message=1024"
    local worker = h:start { settings = FROM, handler = "function M.handle() end" }
    h:wait(function() return rabbitmq.get("4"):queue_exists(h.vhost, "in") end, 10, "the queue")
    h:publish { { ("x"):rep(2000), id = "m1" } }
    local function rejected()
      local _, count = worker.child:stderr():gsub("a message is over max_message", "")
      return count
    end
    h:wait(function() return rejected() >= 3 end, 20, "three rejections")
    h:stop()
    h.url = url
    h:start { settings = FROM .. 'retry = { attempts = 1000, backoff = "fixed", base = 0.1, jitter = 0 },', handler = [[
      local tries = 0
      function M.handle(msg)
        trace("try", msg, msg.headers["x-death"])
        tries = tries + 1
        if tries < 3 then error("again", 0) end
      end]] }
    h:wait_for("try", 3, 20)
    h:wait_settled()
    local tries, count = h.trace:of "try", nil
    for _, death in ipairs(json.decode(tries[1].more)) do
      if death.queue == "in" and death.reason == "rejected" then count = death.count end
    end
    assert.is_true(count >= 3, tries[1].more)
    for i = 1, 3 do
      assert.equal(count + i, tries[i].attempt)
      assert.equal(tries[1].more, tries[i].more)
    end
  end)

  --- What it keeps ----------------------------------------------------------------------------------------------------

  local FORWARD = [[
    function M.handle(msg)
      if msg.id == "m1" then return mw.reject "no" end
      if msg.attempt == 1 and msg.id == "m2" then error("later", 0) end
      mw.publish("out", msg.body, { id = "out-" .. msg.id })
      mw.sleep(0.01)
      trace("done", msg)
    end]]
  local SETTINGS = 'order = "none", concurrency = 2, retry = { attempts = 1000, base = 4, jitter = 0 },'

  local function ids(list)
    local set = {}
    for _, m in ipairs(list) do set[m.id] = true end
    return set
  end

  -- The delays end while the broker is away, before its quorum queues have leaders again.
  it("keeps messages, delayed ones, retries and dead letters through a restart", function()
    local classic, quorum = new(contract.classic_4), new(contract.quorum_4)
    for _, h in ipairs { classic, quorum } do
      h:publish(messages(201, 210, 4))
      h:publish(messages(1, 200))
    end
    for _, h in ipairs { classic, quorum } do
      h:start { settings = SETTINGS, handler = FORWARD }
      h:wait_for("done", 20, 30)
      h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
    end
    local server = rabbitmq.get "4"
    server:stop()
    server:start()
    for _, h in ipairs { classic, quorum } do
      h:wait_settled("in", 60)
      local out = ids(h:messages "out")
      for i = 2, 210 do assert.is_true(out["out-m" .. i], "out-m" .. i .. " is missing") end
      assert.same({ m1 = true }, ids(h:dead()))
    end
  end)
end)
