-- RabbitMQ: what is not a crash, and what must not be lost. Connections that go while a handler runs or a retry waits,
-- alarms at the worst time, queues that refuse, messages that expire, a delivery that stays while many pass.
local C = require "moonwire.internal.cdef"
local contract = require("spec.contract.rabbitmq").classic
local harness = require "spec.support.harness"
local rabbitmq = require "spec.support.servers.rabbitmq"

C.mw_log_setup(0, 9) -- the spec's own links lose their broker too

describe("rabbitmq, losses:", function()
  local server
  local open = harness.closing(after_each)

  setup(function() server = rabbitmq.get() end)

  local function new(options)
    return open(setmetatable({ url = function(h) return contract.url(h) .. (options or "") end },
      { __index = contract }))
  end

  local function of(h, event, id)
    local list = {}
    for _, line in ipairs(h.trace:of(event)) do
      if line.id == id then list[#list + 1] = line end
    end
    return list
  end

  local function attempts(h, event, id)
    local list = {}
    for i, line in ipairs(of(h, event, id)) do list[i] = line.attempt end
    return list
  end

  --- Connections ------------------------------------------------------------------------------------------------------

  for _, order in ipairs { "key", "none" } do
    it("a lost connection is no crash of the handler that runs, order = " .. order, function()
      local h = new()
      h:start { settings = ("order = %q, timeout = 60, retry = { attempts = 2, base = 0.05 },"):format(order),
                handler = [[
        function M.handle(msg)
          trace("begin", msg)
          mw.sleep(2)
          trace("done", msg)
        end]] }
      h:publish { { "x", id = "m1" } }
      for i = 1, 4 do
        h:wait(function() return #of(h, "begin", "m1") >= i end, 20, "m1 to begin")
        h:stay(0.5) -- it is noted
        server:close_connections()
      end
      h:wait(function() return #of(h, "begin", "m1") >= 5 end, 20, "m1 to begin")
      h:wait_settled("in", 20)
      assert.same({}, h:dead())
      assert.same({ 1, 1, 1, 1, 1 }, attempts(h, "begin", "m1"))
    end)
  end

  it("a retry that waits keeps its time and its number through lost connections, and other keys flow", function()
    local h = new()
    h:start { settings = 'order = "key", retry = { attempts = 5, backoff = "fixed", base = 8, jitter = 0 },',
              handler = [[
      function M.handle(msg)
        trace("try", msg, mw.now())
        if msg.id == "held" and msg.attempt < 3 then error("later", 0) end
      end]] }
    h:publish { { "x", id = "held", key = "a" }, { "x", id = "behind", key = "a" } }
    h:wait_for("try", 1)
    h:stay(0.3)
    for i = 1, 5 do
      server:close_connections()
      h:publish { { "x", id = "other" .. i, key = "k" .. i } }
      h:wait(function() return #of(h, "try", "other" .. i) >= 1 end, 6, "other keys to flow")
    end
    h:wait(function() return #of(h, "try", "behind") == 1 end, 40, "the end")
    assert.same({ 1, 2, 3 }, attempts(h, "try", "held"))
    local tries = of(h, "try", "held")
    for i = 2, 3 do
      local waited = tonumber(tries[i].more) - tonumber(tries[i - 1].more)
      assert.is_true(waited > 7.9 and waited < 11 * h.late, "it waited " .. waited .. " s")
    end
    h:wait_settled()
    assert.same({}, h:dead())
  end)

  -- Nothing of it can have begun, so no death can have been its doing.
  it("a retry that waits through two crashes keeps its time and its number", function()
    local h = new()
    local given = { settings = 'order = "key", retry = { attempts = 5, backoff = "fixed", base = 9, jitter = 0 },',
                    handler = [[
      function M.handle(msg)
        trace("try", msg, mw.now())
        if msg.id == "held" and msg.attempt < 2 then error("later", 0) end
      end]] }
    h:start(given)
    h:publish { { "x", id = "held", key = "a" } }
    h:wait_for("try", 1)
    for i = 1, 3 do
      h:stay(0.5)
      h:kill()
      h:start()
      h:publish { { "x", id = "other" .. i, key = "k" .. i } }
      h:wait(function() return #of(h, "try", "other" .. i) >= 1 end, 6, "other keys to flow")
    end
    h:wait(function() return #of(h, "try", "held") == 2 end, 40, "the end")
    assert.same({ 1, 2 }, attempts(h, "try", "held"))
    local tries = of(h, "try", "held")
    local waited = tonumber(tries[2].more) - tonumber(tries[1].more)
    assert.is_true(waited > 8.9 and waited < 12 * h.late, "it waited " .. waited .. " s")
    h:wait_settled()
  end)

  -- A quorum queue that is being made while its broker dies never has a leader.
  it("messages that come again do not wait for a journal that does not answer", function()
    local h = new "&queue_type=quorum"
    local given = { settings = 'order = "none", timeout = 60,', handler = [[
      function M.handle(msg)
        trace("begin", msg)
        if mw.shared.incr("begun", 1, 0) <= 2 then mw.sleep(60) end
        trace("done", msg)
      end]] }
    local worker = h:start(given)
    h:publish { { "x", id = "m1" }, { "x", id = "m2" } }
    h:wait_for("begin", 2, 20)
    h:wait(function() return server:queue_exists(h.vhost, "mw.journal.in") end, 20, "the journal")
    h:stay(0.5)
    server:suspend_queue(h.vhost, "mw.journal.in")
    server:close_connections()
    h:wait_for("done", 2, 40)
    h:wait_settled("in", 20)
    assert.matches("its queue does not answer[^\n]+mw.journal.in", worker.child:stderr())
    h:kill()
  end)

  it("the broker's consumer_timeout is told, and is no crash", function()
    local function set(name, value)
      return server:eval(([[Old = application:get_env(rabbit, %s), application:set_env(rabbit, %s, %s),
        Old]]):format(name, name, value)):match "{ok,(.*)}"
    end
    local timeout, tick = set("consumer_timeout", 2000), set("channel_tick_interval", 500)
    finally(function()
      set("consumer_timeout", timeout or 1800000)
      set("channel_tick_interval", tick or 60000)
    end)
    local h = new()
    local worker = h:start { settings = 'order = "key", timeout = 60, retry = { attempts = 2, base = 0.05 },',
                             handler = [[
      function M.handle(msg)
        trace("begin", msg)
        if mw.shared.incr(msg.id, 1, 0) <= 3 then mw.sleep(4) end
        trace("done", msg)
      end]] }
    h:publish { { "x", id = "m1", key = "a" } }
    h:wait(function() return #of(h, "begin", "m1") == 4 end, 60, "m1 to begin")
    h:wait_settled("in", 20)
    assert.same({ 1, 1, 1, 1 }, attempts(h, "begin", "m1"))
    assert.same({}, h:dead())
    assert.matches("within the broker's consumer_timeout", worker.child:stderr(), 1, true)
  end)

  --- Alarms -----------------------------------------------------------------------------------------------------------

  for _, order in ipairs { "key", "none" } do
    it("messages that come again are handled while the broker has an alarm, order = " .. order, function()
      local h = new()
      local given = { settings = ("order = %q, concurrency = 4, buffer = { count = 10 }, timeout = 60,"):format(order),
                      handler = [[function M.handle(msg) trace("begin", msg) mw.sleep(60) end]] }
      local list = {}
      for i = 1, 20 do list[i] = { "x", id = "m" .. i, key = "k" .. i } end
      h:publish(list)
      h:start(given)
      h:wait_for("begin", 4)
      h:noted()
      h:kill()
      given.handler = [[function M.handle(msg) trace("done", msg) end]]
      server:alarm(true)
      finally(function() server:alarm(false) end)
      h:start(given)
      h:wait_for("done", 20, 15)
      h:stay(0.5)
      assert.is_true(h:is_empty "in")
      server:alarm(false)
    end)
  end

  --- Queues that refuse -----------------------------------------------------------------------------------------------

  for name, options in pairs {
    ["reject-publish"] = 'max_length = 3, overflow = "reject-publish"',
    ["reject-publish-dlx"] = 'max_length = 3, overflow = "reject-publish-dlx"',
    ["by bytes"] = 'max_bytes = 3, overflow = "reject-publish"',
    quorum = 'type = "quorum", max_length = 3, overflow = "reject-publish"',
    ["drop-head"] = "max_length = 3",
  } do
    it("a retry is not lost when its queue is full: " .. name, function()
      local h = new()
      h:start { settings = ([[from = broker:channel("in", { %s }), order = "none", concurrency = 1,
                  buffer = { count = 2 }, timeout = 60,
                  retry = { attempts = 5, base = 0.5, jitter = 0 },]]):format(options),
                handler = [[
        function M.handle(msg)
          trace("try", msg)
          if msg.id == "bad" and msg.attempt == 1 then error("once", 0) end
          if msg.id == "slow" then mw.sleep(3) end
          trace("done", msg)
        end]] }
      h:wait(function() return server:queue_exists(h.vhost, "in") end, 20, "the queue")
      h:publish { { "x", id = "bad" } }
      h:wait_for("try", 1)
      h:publish { { "x", id = "slow" } }
      h:wait_for("try", 2)
      for i = 1, 3 do h:publish { { "x", id = "m" .. i } } end -- it is full, for longer than the retry waits
      h:wait_for("done", 5, 20)
      assert.same({ 1, 2 }, attempts(h, "try", "bad"))
      h:wait_settled()
      assert.same({}, h:dead())
    end)
  end

  it("a retry that waits here keeps its number and its time through a crash, with order = none", function()
    local h = new()
    h:start { settings = [[from = broker:channel("in", { max_length = 3, overflow = "reject-publish" }), order = "none",
                retry = { attempts = 5, backoff = "fixed", base = 4, jitter = 0 },]],
              handler = [[
      function M.handle(msg)
        trace("try", msg, mw.now())
        if msg.attempt < 3 then error("later", 0) end
      end]] }
    h:publish { { "x", id = "m1" } }
    h:wait_for("try", 1)
    for _ = 1, 2 do
      h:stay(0.5)
      h:kill()
      h:start()
    end
    h:wait_for("try", 3, 30)
    h:wait_settled()
    assert.same({ 1, 2, 3 }, attempts(h, "try", "m1"))
    local tries = of(h, "try", "m1")
    assert.is_true(tries[2].more - tries[1].more > 3.9, "it came too early")
  end)

  --- Messages that expire ---------------------------------------------------------------------------------------------

  it("a message that expires waits out its retries and its delay, and its dead letter stays", function()
    local h = new()
    h:start { settings = [[order = "none", retry = { attempts = 2, backoff = "fixed", base = 2, jitter = 0 },]],
              handler = [[
      function M.handle(msg)
        trace("try", msg, msg.headers.expiration)
        error("no", 0)
      end]] }
    h:publish { { "x", id = "first" } }
    h:wait(function() return #h:dead() == 1 end, 20, "the first dead letter") -- it reads, and nothing else waits
    local headers = { expiration = "700" }
    local published = require("moonwire").now()
    h:publish { { "x", id = "m1", headers = headers }, { "x", id = "m2", delay = 2, headers = headers } }
    h:wait(function() return #h:dead() == 3 end, 20, "the dead letters")
    for _, id in ipairs { "m1", "m2" } do
      local tries = of(h, "try", id)
      assert.same({ 1, 2 }, attempts(h, "try", id))
      assert.is_true(tries[2].time - tries[1].time > 1.9, id .. " came again after " .. tries[2].time - tries[1].time)
      assert.equal("700", tries[1].more)
      assert.equal("700", tries[2].more)
    end
    assert.is_true(of(h, "try", "m2")[1].time - published > 1.9, "the delay was not kept")
    h:stay(1.5)
    local dead = h:dead()
    assert.equal(3, #dead)
    for _, m in ipairs(dead) do assert.equal(m.id ~= "first" and "700" or nil, m.headers.expiration) end
  end)
end)
