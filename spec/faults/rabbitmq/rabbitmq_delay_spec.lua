-- RabbitMQ: messages that wait in delay queues. Those of quorum queues are quorum queues as well, and give nothing up
-- before the queue they return to has it.
local C = require "moonwire.internal.cdef"
local contract = require("spec.contract.rabbitmq").classic
local harness = require "spec.support.harness"
local rabbitmq = require "spec.support.servers.rabbitmq"

C.mw_log_setup(0, 9) -- the spec's own links lose their broker too

local RETRY = 'order = "none", retry = { attempts = 5, backoff = "fixed", base = %g, jitter = 0 },'
local DATED = "^mw%.delay%.%d%d%d%d%-%d%d%-%d%d%."

describe("rabbitmq, delays:", function()
  local server
  local open = harness.closing(after_each)

  setup(function() server = rabbitmq.get() end)

  -- A vhost whose queues are of this type by default.
  local function defaults_to(name, type)
    server:drop_vhost(name)
    for _, arguments in ipairs { { "add_vhost", name, "--default-queue-type", type },
                                 { "set_permissions", "-p", name, "guest", ".*", ".*", ".*" } } do
      local result = server:ctl(unpack(arguments))
      assert(result.code == 0, result.stderr)
    end
  end

  local function new(options, default)
    local function url(h)
      local address = contract.url(h) .. (options or "&queue_type=quorum")
      if default then defaults_to(h.vhost, default) end
      return address
    end
    return open(setmetatable({ url = url, late = 2 }, { __index = contract }))
  end

  local function attempts(h, id)
    local list = {}
    for _, line in ipairs(h.trace:of "try") do
      if line.id == id then list[#list + 1] = line.attempt end
    end
    return list
  end

  local function argument(h, queue, name) return server:argument(h.vhost, queue, name) end

  local function tier_of(h, channel)
    return h:wait(function() return server:tiers(h.vhost, channel)[1] end, 20, "a delay queue of " .. channel)
  end

  it("a retry of a quorum queue waits in a quorum queue, which keeps it until its queue has it", function()
    local h = new()
    h:start { settings = RETRY:format(1), handler = [[
      function M.handle(msg)
        trace("try", msg, mw.now())
        if msg.attempt < 3 then error("later", 0) end
      end]] }
    h:publish { { "x", id = "m1" } }
    h:wait_for("try", 1, 20)
    local tier = tier_of(h, "in")
    assert.matches(DATED .. "1000%.in$", tier)
    assert.equal("quorum", argument(h, tier, "x-queue-type"))
    assert.equal("at-least-once", argument(h, tier, "x-dead-letter-strategy"))
    assert.equal("reject-publish", argument(h, tier, "x-overflow"))
    assert.is_true(argument(h, tier, "x-expires") > 2 * 86400 * 1000) -- RabbitMQ counts them from the making on
    h:wait_for("try", 3, 30)
    h:wait_settled("in", 20)
    assert.same({ 1, 2, 3 }, attempts(h, "m1"))
    local tries = h.trace:of "try"
    for i = 2, 3 do
      local waited = tonumber(tries[i].more) - tonumber(tries[i - 1].more)
      assert.is_true(waited > 0.99 and waited < 1.5 * h.late, "it waited " .. waited .. " s")
    end
    assert.equal(1, #server:tiers(h.vhost, "in"))
    assert.same({}, h:dead())
  end)

  -- A quorum queue with the expiry of a classic one would be removed under its messages.
  it("what is not known to be a quorum queue has a classic delay queue, whatever the vhost's default is", function()
    local h = new("", "quorum")
    h:publish { { "x", id = "m1", delay = 60 } }
    assert.equal("quorum", argument(h, "in", "x-queue-type"))
    local tier = tier_of(h, "in")
    assert.equal("mw.delay.60000.in", tier)
    assert.equal("classic", argument(h, tier, "x-queue-type"))
    assert.equal(240000, argument(h, tier, "x-expires"))
    assert.is_nil(argument(h, tier, "x-dead-letter-strategy"))
  end)

  it("a message that waits survives a broker that is killed, and keeps its number", function()
    local h = new()
    h:start { settings = RETRY:format(6), handler = [[
      function M.handle(msg)
        trace("try", msg)
        if msg.attempt < 2 then error("later", 0) end
      end]] }
    h:publish { { "x", id = "first" } }
    h:wait_for("try", 2, 30) -- all queues are made
    local list = {}
    for i = 1, 50 do list[i] = { "x", id = "m" .. i } end
    h:publish(list)
    h:wait_for("try", 52, 30)
    local tier = tier_of(h, "in")
    h:wait(function() return server:count(h.vhost, tier) == 50 and server:count(h.vhost, "in") == 0 end, 20,
      "all of them to wait")
    server:stop "KILL"
    server:start()
    h:wait_for("try", 102, 60)
    h:wait_settled("in", 30)
    for i = 1, 50 do assert.same({ 1, 2 }, attempts(h, "m" .. i)) end
    assert.same({}, h:dead())
  end)

  for _, type in ipairs { "classic", "quorum" } do
    it("nothing is lost when its queue is full at the end of the delay: " .. type, function()
      local old = server:setting("dead_letter_worker_publisher_confirm_timeout", 1000)
      finally(function() server:setting("dead_letter_worker_publisher_confirm_timeout", old) end)
      local h = new()
      server:declare(h.vhost, "in", ([=[[{<<"x-queue-type">>, longstr, <<"%s">>}, {<<"x-max-length">>, long, 20},
        {<<"x-overflow">>, longstr, <<"reject-publish">>}]]=]):format(type))
      local list = {}
      for i = 1, 20 do list[i] = { "x", id = "m" .. i } end
      for i = 21, 120 do list[i] = { "x", id = "m" .. i, delay = 1 } end
      h:publish(list)
      h:stay(3) -- the delay is over
      assert.equal(120, server:unsettled(h.vhost, "in"))
      h:start { settings = 'order = "none",', handler = [[function M.handle(msg) trace("try", msg) end]] }
      h:wait_for("try", 120, 60)
      h:wait_settled("in", 20)
      for i = 1, 120 do assert.same({ 1 }, attempts(h, "m" .. i)) end
    end)
  end

  for _, options in ipairs { "", "&queue_type=quorum" } do
    it("a delayed message finds its queue, which was not there when it was published" .. options, function()
      local h = new(options)
      h:publish("fresh", { { "x", id = "m1", delay = 1 } })
      h:wait(function() return server:queue_exists(h.vhost, "fresh") and server:count(h.vhost, "fresh") == 1 end, 10,
        "it to arrive")
    end)
  end

  it("a message that is tried again and again is in one of its queues at every moment", function()
    local h = new()
    h:start { settings = (RETRY:format(0.03):gsub("attempts = 5", "attempts = 10000")), handler = [[
      function M.handle(msg) trace("try", msg) error("no", 0) end]] }
    h:publish { { "x", id = "m1" } }
    h:wait_for("try", 3, 20)
    local looks, tries = 0, h.trace:count "try"
    h:wait(function()
      looks = looks + 1
      assert.is_true(server:unsettled(h.vhost, "in") >= 1, "it is in none of them, at look " .. looks)
      return looks >= 300 and h.trace:count "try" >= tries + 15
    end, 60, "300 looks")
  end)

  it("what waits in a classic delay queue of an older version returns as ever", function()
    local h = new()
    h:publish { { "x", id = "before" } }
    server:declare(h.vhost, "mw.delay.3000.in", [=[[{<<"x-dead-letter-exchange">>, longstr, <<>>},
      {<<"x-dead-letter-routing-key">>, longstr, <<"in">>}, {<<"x-message-ttl">>, signedint, 3000},
      {<<"x-expires">>, signedint, 126000}]]=])
    h.broker:publish("mw.delay.3000.in", { { "x", id = "old" } })
    h:start { settings = RETRY:format(3), handler = [[
      function M.handle(msg)
        trace("try", msg)
        if msg.attempt < 2 then error("later", 0) end
      end]] }
    h:wait_for("try", 4, 30)
    h:wait_settled("in", 20)
    assert.same({ 1, 2 }, attempts(h, "old"))
    assert.same({ 1, 2 }, attempts(h, "before"))
    assert.equal(2, #server:tiers(h.vhost, "in"))
  end)

  it("a delay queue that is deleted is made again, for many at once", function()
    local h = new()
    local n = h:scaled(1000)
    h:start { settings = "concurrency = 50, " .. RETRY:format(0.5), handler = [[
      function M.handle(msg)
        trace("try", msg)
        if msg.attempt < 3 then error("later", 0) end
      end]] }
    h:publish { { "x", id = "first" } }
    h:wait_for("try", 3, 30)
    h:wait_settled("in", 20)
    server:delete_queue(h.vhost, tier_of(h, "in"))
    local list = {}
    for i = 1, n do list[i] = { "x", id = "m" .. i } end
    h:publish(list)
    h:wait_for("try", 3 * n + 3, 60)
    h:wait_settled("in", 30)
    for i = 1, n do assert.same({ 1, 2, 3 }, attempts(h, "m" .. i)) end
    assert.same({}, h:dead())
  end)
end)
