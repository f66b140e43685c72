-- What RabbitMQ does to a client that is slow, wrong or unlucky: bodies that are larger than the room for them, messages
-- that cannot be represented, queues that cannot be declared or are not there, channels that are closed. Each case
-- asks for two things: nothing is lost, and the rest goes on.
local C = require "moonwire.internal.cdef"
local cli = require "spec.functional.cli.support"
local contract = require("spec.contract.rabbitmq").classic
local harness = require "spec.support.harness"
local process = require "spec.support.process"
local rabbitmq = require "spec.support.servers.rabbitmq"

C.mw_log_setup(0, 9) -- the spec's own links lose their broker too

local MB = 1024 * 1024

describe("rabbitmq, the protocol", function()
  local server, open = nil, {}

  setup(function() server = rabbitmq.get() end)
  after_each(function()
    for _, h in ipairs(open) do h:close() end
    open = {}
  end)
  teardown(function() process.cleanup() end)

  local function new(options)
    local driver = setmetatable(options and { url = function(h) return contract.url(h) .. options end } or {},
      { __index = contract })
    local h = harness.new(driver)
    open[#open + 1] = h
    return h
  end

  local function binary(text) return "<<" .. table.concat({ text:byte(1, -1) }, ",") .. ">>" end

  local function queue_eval(h, queue, then_do)
    return server:eval(("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s)), %s"):format(binary(h.vhost),
      binary(queue), then_do))
  end

  local function unacked(h)
    return tonumber((queue_eval(h, "in", "rabbit_amqqueue:info(Q, [messages_unacknowledged])"):match "(%d+)}"))
  end

  -- As if the broker's send_timeout were this long; half a minute otherwise.
  local function hurry(ms)
    server:eval(("[catch inet:setopts(P, [{send_timeout, %d}]) || P <- erlang:ports(), %s]"):format(ms,
      "element(1, catch inet:peername(P)) == ok"))
  end

  --- Bodies -----------------------------------------------------------------------------------------------------------

  for _, order in ipairs { "none", "key" } do
    it("reads on while large bodies wait for slow handlers, and its acks go through, order = " .. order, function()
      local h = new()
      local list = {}
      for i = 1, 20 do list[i] = { ("x"):rep(2 * MB), id = "m" .. i, key = "k" } end
      h:publish(list)
      local settings = "order = %q, concurrency = 1, timeout = 60, buffer = { bytes = 1048576 },"
      local worker = h:start { settings = settings:format(order), handler = [[
        function M.handle(msg) trace("begin", msg) mw.sleep(3) trace("done", msg) end]] }
      h:wait_for("begin", 1, 20)
      hurry(1000)
      h:wait_for("done", 3, 40)
      assert.is_nil(worker.child:stderr():find("connection lost", 1, true), worker.child:stderr())
      assert.is_true(h.trace:count "begin" <= 4, "a message began again")
      h:wait(function() return server:unsettled(h.vhost, "in") <= 17 end, 5, "the acks")
    end)

    it("lets the broker send few ahead when bodies are large, and more when they are small, order = " .. order, function()
      local h = new()
      local list = {}
      for i = 1, 250 do list[i] = { ("x"):rep(i <= 150 and 400000 or 100), id = "m" .. i, key = "k" .. i } end
      h:publish(list)
      local settings = "order = %q, concurrency = 1, buffer = { bytes = 1048576, count = 100 },"
      h:start { settings = settings:format(order), handler = [[
        function M.handle(msg) mw.sleep(#msg.body > 100 and 0.03 or 0.01) trace("done", msg) end]] }
      h:wait_for("done", 120, 60)
      local large = unacked(h)
      assert.is_true(large <= 25, large .. " were sent ahead")
      h:wait(function() return unacked(h) > 40 end, 20, "more of the small ones")
      h:wait_for("done", 250, 60)
      h:wait_settled()
    end)
  end

  --- Messages that are none of ours --------------------------------------------------------------------------------------

  -- A publish from outside of us. RabbitMQ 4 has other messages inside.
  local function raw_publish(h, key, body, id, headers)
    server:eval(([[
      Exchange = rabbit_misc:r(%s, exchange, <<>>), Key = %s, Body = %s,
      Deep = fun Deep(0) -> [{<<"end">>, bool, true}]; Deep(N) -> [{<<"t">>, table, Deep(N - 1)}] end,
      Content = rabbit_basic:build_content({'P_basic', undefined, undefined, %s, 2, undefined, undefined, undefined,
        undefined, %s, undefined, undefined, undefined, undefined, undefined}, Body),
      case code:ensure_loaded(mc_amqpl) of
        {module, _} ->
          {ok, M} = mc_amqpl:message(Exchange, Key, Content),
          rabbit_queue_type:publish_at_most_once(rabbit_exchange:lookup_or_die(Exchange), M);
        _ ->
          M = case rabbit_basic:message(Exchange, Key, element(3, Content), Body) of {ok, X} -> X; X -> X end,
          rabbit_basic:publish(rabbit_basic:delivery(false, false, M, undefined))
      end]]):format(binary(h.vhost), binary(key), body, headers, binary(id)))
  end

  for _, order in ipairs { "none", "key" } do
    it("makes a dead letter of what it cannot represent, with all that can be kept, order = " .. order, function()
      local h = new()
      h:publish { { "before", id = "m1" } }
      raw_publish(h, "in", binary "twenty", "m2", [[[{<<"deep">>, table, Deep(20)}] ]])
      raw_publish(h, "in", binary "too deep", "m3",
        [[[{<<"first">>, longstr, <<"kept">>}, {<<"deep">>, table, Deep(600)}, {<<"last">>, signedint, 7}] ]])
      h:publish { { "after", id = "m4" } }
      h:start { settings = ("order = %q,"):format(order), handler = [[
        function M.handle(msg) mw.publish("out", msg.body, { id = msg.id, headers = { deep = msg.headers.deep } }) end]] }
      h:wait_settled("in", 20)
      local out = {}
      for _, m in ipairs(h:messages "out") do out[m.id] = m end
      assert.equal("before", out.m1.body)
      assert.equal("after", out.m4.body)
      assert.equal(('{"t":'):rep(20) .. '{"end":true}' .. ("}"):rep(20), out.m2.headers.deep)
      local dead = h:dead()
      assert.equal(1, #dead)
      assert.equal("m3", dead[1].id)
      assert.equal("too deep", dead[1].body)
      assert.equal("kept", dead[1].headers.first)
      assert.equal("7", dead[1].headers.last)
      assert.equal("invalid", dead[1].headers["mw-dead-class"])
      assert.matches("header table", dead[1].headers["mw-dead-reason"])
    end)
  end

  for _, order in ipairs { "none", "key" } do
    it("leaves a message over max_message in its queue, and goes on with the others, order = " .. order, function()
      local h = new "&max_message=10000"
      local worker = h:start { settings = ("order = %q, buffer = { count = 100 },"):format(order), handler = [[
        function M.handle(msg) trace("done", msg) end]] }
      h:ready()
      h:publish { { "before", id = "m1" } }
      for i = 1, 30 do raw_publish(h, "in", "binary:copy(<<\"x\">>, 300000)", "large" .. i, "[]") end
      local list = {}
      for i = 1, 200 do list[i] = { "x", id = "s" .. i } end
      h:publish(list)
      h:wait_for("done", 201, 20)
      h:wait(function() return unacked(h) == 30 end, 5, "acks of all but the large ones")
      local stderr = worker.child:stderr()
      assert.matches('over max_message[^\n]+queue=in[^\n]+id=large1 bytes=300000', stderr)
      assert.is_nil(stderr:find("connection lost", 1, true))
      local status = process.run { { cli.binary, "status", "--json", worker.dir }, timeout = 20 }
      assert.matches("30 left in in: over max_message", status.stdout)
      h:stop(worker)
      h:wait(function() return unacked(h) == 0 end, 5, "the end of the connection")
      assert.equal(30, server:unsettled(h.vhost, "in"))
    end)
  end

  it("rejects a message over max_message to the queue's dead-letter exchange", function()
    local h = new "&max_message=10000"
    server:eval(([[rabbit_amqqueue:declare(rabbit_misc:r(%s, queue, <<"gone">>), true, false, [], none, <<"spec">>)]])
      :format(binary(h.vhost)))
    h:start { more = [[
      mw.pipeline "q" { from = broker:channel("q", { dead_exchange = "", dead_key = "gone" }),
        handler = function(msg) mw.publish("out", msg.body, { id = msg.id }) end }]], handler = [[
      function M.handle(msg) trace("done", msg) end]] }
    h:wait(function() return server:queue_exists(h.vhost, "q") end, 10, "the queue")
    raw_publish(h, "q", "binary:copy(<<\"x\">>, 300000)", "large", "[]")
    raw_publish(h, "q", binary "small", "small", "[]")
    h:wait(function() return server:unsettled(h.vhost, "gone") == 1 and #h:messages "out" == 1 end, 10, "both")
  end)
end)
