-- What RabbitMQ does to a client that is slow, wrong or unlucky: bodies larger than the room for them, messages
-- that cannot be represented, queues that cannot be declared or are not there, channels that are closed. Each case
-- asks for two things: nothing is lost, and the rest goes on.
local C = require "moonwire.internal.cdef"
local clock = require "spec.support.wait"
local cli = require "spec.functional.cli.support"
local contract = require("spec.contract.rabbitmq").classic
local harness = require "spec.support.harness"
local process = require "spec.support.process"
local rabbitmq = require "spec.support.servers.rabbitmq"

C.mw_log_setup(0, 9) -- the spec's own links lose their broker too

local MB = 1024 * 1024

describe("rabbitmq, the protocol", function()
  local server
  local open = harness.closing(after_each)

  setup(function() server = rabbitmq.get() end)

  local function new(options)
    local driver = setmetatable(options and { url = function(h) return contract.url(h) .. options end } or {},
      { __index = contract })
    return open(driver)
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

    it("lets the broker send few ahead of large bodies, and more of small ones, order = " .. order, function()
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

  --- Messages that are none of ours -----------------------------------------------------------------------------------

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
        function M.handle(msg)
          mw.publish("out", msg.body, { id = msg.id, headers = { deep = msg.headers.deep } })
        end]] }
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

  --- Queues that cannot be had ----------------------------------------------------------------------------------------

  local function project(text)
    local work = cli.workdir()
    local head = 'local mw = require "moonwire"\nlocal broker = mw.connect(mw.env "BROKER_URL")\n'
    work:write("moonwire.lua", head .. text)
    return work
  end

  local function start(work, url)
    return process.spawn { { cli.binary, "run", ".", "--workers", "0" }, cwd = work.path, env = { BROKER_URL = url } }
  end

  -- How often the broker wrote into its log that it closed a channel, or something else.
  local function logged(pattern)
    local count = 0
    for name in io.popen("ls " .. server.dir .. "/log/*.log"):lines() do
      for line in io.lines(name) do count = count + (line:find(pattern) and 1 or 0) end
    end
    return count
  end

  it("uses the URL's defaults for queues only, and refuses what cannot be", function()
    local h = new()
    local url = h.url .. "&queue_type=quorum&single_active=true"
    local work = project [[
mw.pipeline "p" { from = broker:channel("ev", { type = "stream" }), handler = function() end }
]]
    local run = start(work, url)
    h:wait(function() return server:queue_exists(h.vhost, "mw.place.p@ev") end, 20, "the stream")
    run:stop(10)
    for line, text in pairs {
      [ [[mw.pipeline "p" { from = broker:channel "q", handler = function() end }]] ] = false,
      [ [[mw.pipeline "p" { from = broker:channel("q", { max_priority = 9 }), handler = function() end }]] ] =
        'moonwire.lua:3: channel "q": max_priority does not go with type = "quorum", as the URL says',
    } do
      local result = project(line):run({ "check", "." }, { env = { BROKER_URL = url } })
      assert.equal(text and 78 or 0, result.code, result.stderr)
      if text then assert.truthy(result.stderr:find(text, 1, true), result.stderr) end
    end
    local both = work:run({ "check", "." }, { env = { BROKER_URL = h.url .. "&queue_type=quorum&max_priority=9" } })
    assert.equal(78, both.code)
    assert.matches("max_priority does not go with queue_type=quorum", both.stderr)
  end)

  it("says once why a queue cannot be made, shows it, and tries again seldom", function()
    local h = new()
    local before = logged "Channel error on connection"
    local work = project [[
broker:topology { queues = { q = { arguments = { ["x-max-priority"] = "nine" } } } }
mw.pipeline "p" { from = broker:channel "q", handler = function() end }
]]
    local run = start(work, h.url)
    h:wait(function() return run:stderr():find("does not make this queue", 1, true) end, 10, "the complaint")
    h:stay(5)
    local _, told = run:stderr():gsub("does not make this queue", "")
    assert.equal(1, told, run:stderr())
    assert.matches("x%-max%-priority", run:stderr())
    local errors = logged "Channel error on connection" - before
    assert.is_true(errors <= 8, errors .. " errors in the broker's log")
    assert.matches("x%-max%-priority", work:run({ "status", "--json", "." }).stdout)
    run:stop(10)
  end)

  --- The topology of the project --------------------------------------------------------------------------------------

  local DECLARED = [[
broker:topology {
  exchanges = { e = { type = "fanout" }, upper = { type = "topic" } },
  queues = { ["in"] = { max_priority = 5, max_length = 1000 } },
  bindings = { { exchange = "e", queue = "in" }, { exchange = "upper", to_exchange = "e", key = "#" } },
}
mw.pipeline "p" { from = broker:channel "in", handler = function(msg) mw.publish("out", msg.body, { id = msg.id }) end }
mw.pipeline "q" { from = broker:channel "other", handler = function(msg)
  mw.publish(broker:exchange "upper", msg.body, { routing_key = "k" })
end }
]]

  -- Without the type: RabbitMQ 4 notes its default one there.
  local function arguments(h, queue)
    return queue_eval(h, queue, [[
      lists:sort([A || A <- amqqueue:get_arguments(Q), element(1, A) =/= <<"x-queue-type">>])]])
  end

  it("makes a queue as the topology says, with its exchanges and bindings, at start and when it was deleted", function()
    local h = new()
    local work = project(DECLARED)
    local run = start(work, h.url)
    local wanted = '[{<<"x-max-length">>,long,1000},{<<"x-max-priority">>,long,5}]'
    h:wait(function() return server:queue_exists(h.vhost, "in") end, 10, "the queue")
    assert.equal(wanted, arguments(h, "in"))
    h:publish("other", { { "one", id = "m1" } })
    h:wait(function() return #h:messages "out" == 1 end, 10, "a message through the exchanges")
    queue_eval(h, "in", "rabbit_amqqueue:delete(Q, false, false, <<\"spec\">>)")
    h:wait(function() return run:stderr():find("declaring it again", 1, true) end, 10, "the cancel")
    h:wait(function() return server:queue_exists(h.vhost, "in") end, 10, "the queue, again")
    assert.equal(wanted, arguments(h, "in"))
    h:publish("other", { { "two", id = "m2" } })
    h:wait(function() return #h:messages "out" == 2 end, 10, "another one")
    local plan = work:run({ "topology", "apply", "." }, { env = { BROKER_URL = h.url } })
    assert.equal(0, plan.code, plan.stdout .. plan.stderr)
    assert.equal(0, (run:stop(20)), run:stderr())
  end)

  it("makes a queue as the topology says for a publish, too", function()
    local h = new()
    local work = project [[
broker:topology { exchanges = { e = { type = "fanout" } }, queues = { out = { max_length = 7 } },
  bindings = { { exchange = "e", queue = "out" } } }
mw.pipeline "p" { from = broker:channel "in", handler = function(msg) mw.publish("out", msg.body) end }
]]
    h:publish { { "x", id = "m1" } }
    local result = work:run({ "run", ".", "--once", "--workers", "0" }, { env = { BROKER_URL = h.url } })
    assert.equal(0, result.code, result.stderr)
    assert.equal('[{<<"x-max-length">>,long,7}]', arguments(h, "out"))
    assert.equal("1", server:eval(("length(rabbit_binding:list_for_source(rabbit_misc:r(%s, exchange, <<\"e\">>)))")
      :format(binary(h.vhost))))
  end)

  it("makes a queue without the part of the topology that is otherwise there, and says so", function()
    local h = new()
    server:eval(([[rabbit_exchange:declare(rabbit_misc:r(%s, exchange, <<"e">>), direct, true, false, false, [],
      <<"spec">>)]]):format(binary(h.vhost)))
    local run = start(project(DECLARED), h.url)
    h:wait(function() return run:stderr():find "a part of the topology cannot be made" end, 10, "the complaint")
    h:publish { { "x", id = "m1" } }
    h:wait(function() return #h:messages "out" == 1 end, 10, "the message")
    assert.matches('part="exchange e"', run:stderr())
    run:stop(20)
  end)

  it("makes nothing of the topology with declare=passive", function()
    local h = new()
    local run = start(project(DECLARED), h.url .. "&declare=passive")
    h:wait(function() return run:stderr():find("waiting for it", 1, true) end, 10, "the complaint")
    assert.is_false(server:queue_exists(h.vhost, "in"))
    run:stop(20)
  end)

  --- Channels that are closed -----------------------------------------------------------------------------------------

  it("keeps the connection when the broker closes a channel twice", function()
    local h = new()
    local function limits(timeout, tick)
      server:eval(("[application:set_env(rabbit, N, V) || {N, V} <- [%s]]"):format(
        ("{consumer_timeout, %d}, {channel_tick_interval, %d}"):format(timeout, tick)))
    end
    limits(1000, 300) -- what has waited so long for its ack costs the channel, and is looked at again and again
    finally(function() limits(1800000, 60000) end)
    local worker = h:start { settings = "timeout = 60,", handler = [[
      local first = true
      function M.handle(msg)
        trace("try", msg)
        if first then
          first = false
          mw.sleep(5)
        end
      end]] }
    h:publish { { "x", id = "m1" } }
    h:wait(function() return worker.child:stderr():find "consumer_timeout" end, 20, "the timeout")
    h:wait_settled("in", 20)
    assert.is_nil(worker.child:stderr():find("connection lost", 1, true), worker.child:stderr())
  end)

  it("asks a broker that cuts it off after the login more and more seldom", function()
    local h = new()
    local worker = h:start { handler = "function M.handle() end" }
    h:ready()
    server:eval [[spawn(fun() ->
      Close = fun Close(0) -> ok; Close(N) ->
        [catch rabbit_networking:close_connection(P, "closed by a spec") || P <- rabbit_networking:connections()],
        timer:sleep(20),
        Close(N - 1)
      end,
      Close(200) end)]]
    h:stay(5)
    local status = process.run { { cli.binary, "status", "--json", worker.dir }, timeout = 20 }
    local connects = 0
    for n in status.stdout:gmatch '"connects":(%d+)' do connects = math.max(connects, tonumber(n)) end
    assert.is_true(connects > 1 and connects < 14, connects .. " logins\n" .. status.stdout)
    h:publish { { "x", id = "m1" } }
    h:wait_settled("in", 20)
  end)

  --- Requests and replies ---------------------------------------------------------------------------------------------

  it("does not send a request later that nobody waits for any more", function()
    local h = new()
    server:declare(h.vhost, "prices")
    local worker = h:start { settings = "retry = { attempts = 1 },", handler = [[
      function M.handle(msg) mw.request("prices", "x", { timeout = 1 }) end]] }
    h:publish { { "warm", id = "m0" } }
    h:wait(function() return server:unsettled(h.vhost, "prices") == 1 and #h:dead() == 1 end, 20, "the first request")
    server:alarm(true)
    finally(function() server:alarm(false) end)
    raw_publish(h, "in", binary "x", "m1", "[]") -- the broker tells whoever publishes next
    h:wait(function() return worker.child:stderr():find("blocks publishing", 1, true) end, 20, "the notice")
    raw_publish(h, "in", binary "x", "m2", "[]")
    h:stay(2.5)
    server:alarm(false)
    h:wait(function() return #h:dead() == 3 end, 20, "the others")
    assert.equal(2, server:unsettled(h.vhost, "prices"))
  end)

  it("makes no queue for a reply, and drops one that nobody waits for", function()
    local h = new()
    server:declare(h.vhost, "there")
    local worker = h:start { handler = [[function M.handle(msg) mw.reply "answer" trace("done", msg) end]] }
    h:publish { { "x", id = "m1", headers = { ["reply-to"] = "gone" } },
                { "x", id = "m2", headers = { ["reply-to"] = "there" } } }
    h:wait_for("done", 2)
    h:wait_settled()
    assert.is_false(server:queue_exists(h.vhost, "gone"))
    assert.equal("answer", h:messages("there")[1].body)
    assert.matches("a reply was dropped[^\n]+queue=gone", worker.child:stderr())
    assert.equal(0, #h:dead(), worker.child:stderr())
  end)

  -- 3.10 closes the whole connection over these. The second one can be read, and is of a node that it does not know.
  for name, address in pairs { nonsense = "nobody.here",
                               ["another cluster"] = "g2dkAAxyZXBseUA5OTk5OTkAAAABAAAAAAAAAAA=.aGVyZQ==" } do
    it("loses nothing but the reply to an address that the broker cannot read: " .. name, function()
      local h = new()
      local worker = h:start {
        settings = "concurrency = 50, retry = { attempts = 3, base = 0.05 },",
        more = [[mw.pipeline "server" { from = broker:channel "prices", order = "none", concurrency = 50,
          handler = function(msg)
            mw.reply "answer"
            mw.publish("done", "x", { id = msg.id })
          end }]],
        handler = [[function M.handle(msg)
          mw.publish("out", mw.request("prices", "x", { timeout = 20 }).body, { id = msg.id })
        end]],
      }
      local list, bad = {}, {}
      for i = 1, 100 do list[i] = { "x", id = "m" .. i } end
      local headers = { ["reply-to"] = "amq.rabbitmq.reply-to." .. address }
      for i = 1, 3 do bad[i] = { "x", id = "bad" .. i, headers = headers } end
      h:publish(list)
      h:publish("prices", bad)
      h:wait_settled("in", 60)
      if server:version():find "^3%." then -- RabbitMQ 4 may drop such a reply itself
        h:wait(function() return #h.broker:messages "prices.dead" == 3 end, 20, "the dead letters")
      end
      local out = {}
      for _, m in ipairs(h:messages "out") do out[m.id] = m.body end
      for i = 1, 100 do assert.equal("answer", out["m" .. i]) end
      for _, m in ipairs(h.broker:messages "prices.dead") do
        assert.matches("cannot reply to \"amq.rabbitmq.reply-to." .. address, m.headers["mw-dead-last-error"], 1, true)
        assert.equal("1", m.headers["mw-dead-attempts"])
      end
      assert.same({}, h:dead())
      assert.is_nil(worker.child:stderr():find("connection lost", 1, true), worker.child:stderr())
    end)
  end

  --- Rights -----------------------------------------------------------------------------------------------------------

  it("loses nothing where it may declare and read, but not write", function()
    local h = new()
    local function permit(write)
      server:eval(('rabbit_auth_backend_internal:set_permissions(<<"reader">>, %s, <<".*">>, %s, <<".*">>, <<"spec">>)')
        :format(binary(h.vhost), binary(write)))
    end
    permit "^$"
    local before = logged "ACCESS_REFUSED"
    h:publish { { "x", id = "m1" } }
    local url = h.url
    h.url = url:gsub("guest:guest", "reader:reader")
    local worker = h:start { settings = "retry = { attempts = 2, base = 0.1 },", handler = [[
      function M.handle(msg) trace("try", msg) mw.publish("out", "x", { id = msg.id }) end]] }
    h:wait(function() return worker.child:stderr():find("ACCESS_REFUSED", 1, true) end, 20, "the refusal")
    h:stay(4)
    assert.equal(1, server:unsettled(h.vhost, "in"))
    assert.is_true(worker.child:alive())
    local refused = logged "ACCESS_REFUSED" - before
    assert.is_true(refused < 60, refused .. " refusals")
    permit ".*"
    h:wait(function() return #h:messages "out" + #h:dead() == 1 end, 30, "the message, or its letter")
    h:wait_settled("in", 20)
  end)

  --- Manners ----------------------------------------------------------------------------------------------------------

  it("fills no log of the broker by standing by, and takes over at once", function()
    local h = new()
    local first = h:start { handler = [[function M.handle(msg) trace("done", msg) end]] }
    h:ready()
    h:publish { { "x", id = "m1" } }
    h:wait_for("done", 1)
    local second = h:start()
    h:wait(function() return second.child:stderr():find("standing by", 1, true) end, 10, "the standby")
    h:stay(0.5)
    local before = logged "Channel error"
    h:stay(3)
    assert.equal(before, logged "Channel error")
    h:kill(first)
    local from = clock.now()
    h:publish { { "x", id = "m2" } }
    h:wait_for("done", 2)
    assert.is_true(clock.now() - from < 3 * h.late, clock.now() - from .. " s to take over")
  end)

  it("says goodbye", function()
    local h = new()
    local lost = "warning.*closing AMQP connection.*vhost: '" .. h.vhost:gsub("%p", "%%%0") .. "'"
    h:publish { { "x", id = "m1" } }
    local before = logged(lost)
    local run = start(project [[mw.pipeline "p" { from = broker:channel "in",
      handler = function(msg) mw.publish("out", msg.body) end }]], h.url)
    h:wait(function() return server:queue_exists(h.vhost, "out") end, 20, "the message")
    assert.equal(0, (run:stop(20)), run:stderr())
    local result = process.run { { cli.binary, "publish", "--broker", h.url, "in", "x" }, timeout = 20 }
    assert.equal(0, result.code, result.stderr)
    h:stay(0.5)
    assert.equal(before, logged(lost))
  end)

  it("lets a command end while the broker has an alarm", function()
    local h = new()
    server:declare(h.vhost, "q")
    server:alarm(true)
    finally(function() server:alarm(false) end)
    local result = process.run { { cli.binary, "publish", "--broker", h.url .. "&blocked_timeout=1", "q", "x" },
                                 timeout = 20 }
    assert.equal(69, result.code, result.stderr)
    assert.matches("the broker blocks publishing: it has an alarm", result.stderr)
  end)

  it("says which lines it could not publish while the broker has an alarm", function()
    local h = new()
    h:publish("q", { { "before", id = "m0" } })
    server:alarm(true)
    finally(function() server:alarm(false) end)
    local result = process.run { { cli.binary, "publish", "--broker", h.url .. "&blocked_timeout=1", "--lines", "q" },
                                 stdin = "one\ntwo\nthree\n", timeout = 20 }
    assert.equal(69, result.code, result.stderr)
    assert.matches("the broker blocks publishing: it has an alarm", result.stderr)
    server:alarm(false)
    -- Whether the broker has what was written before it blocked us nobody knows; but nothing was said to be there.
    assert.is_nil(result.stdout:find("%d"), result.stdout)
    result = process.run { { cli.binary, "publish", "--broker", h.url, "--lines", "q" }, stdin = "four\nfive\n",
                           timeout = 20 }
    assert.equal(0, result.code, result.stderr)
  end)
end)
