-- RabbitMQ under attack, and what only RabbitMQ has: alarms, a broker that stops or restarts, connections and queues
-- that are taken away, one byte at a time, bodies of all sizes, unroutable messages, wrong logins; topology, requests,
-- dead letters. Each case counts: nothing may be lost.
local C = require "moonwire.internal.cdef"
local cli = require "spec.functional.cli.support"
local contract = require("spec.contract.rabbitmq").classic
local harness = require "spec.support.harness"
local json = require "moonwire.json"
local process = require "spec.support.process"
local proxies = require "spec.support.tcp_proxy"
local rabbitmq = require "spec.support.servers.rabbitmq"
local supervised = require "spec.support.supervised"

C.mw_log_setup(0, 9) -- the spec's own links lose their broker too

local FORWARD = [[
  function M.handle(msg)
    mw.publish("out", msg.body, { id = "out-" .. msg.id })
    mw.sleep(0.002)
    trace("done", msg)
  end]]
local SETTINGS = "concurrency = 8, buffer = { count = 64 }, retry = { attempts = 1000, base = 0.05, cap = 0.5 },"

local function messages(n)
  local list = {}
  for i = 1, n do list[i] = { "body " .. i, id = "m" .. i, key = "k" .. i % 10 } end
  return list
end

describe("rabbitmq", function()
  local server
  local open = harness.closing(after_each)

  setup(function() server = rabbitmq.get() end)

  local function new(fields)
    return open(setmetatable(fields or {}, { __index = contract }))
  end

  -- Everything that came in was handled, and what was published for it stands there.
  local function assert_forwarded(h, n)
    h:wait_settled("in", 60)
    local out = {}
    for _, m in ipairs(h:messages "out") do out[m.id] = true end
    for i = 1, n do assert.is_true(out["out-m" .. i], "out-m" .. i .. " is missing") end
  end

  local function binary(text) return "<<" .. table.concat({ text:byte(1, -1) }, ",") .. ">>" end

  local function queue_eval(h, queue, then_do)
    return server:eval(("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s)), %s"):format(binary(h.vhost),
      binary(queue), then_do))
  end

  -- A publish from outside of us, with any properties: headers as Erlang terms. RabbitMQ 4 has other messages inside.
  local function raw_publish(h, exchange, key, body, properties)
    server:eval(([[
      Exchange = rabbit_misc:r(%s, exchange, %s),
      Key = %s,
      Body = %s,
      Content = rabbit_basic:build_content({'P_basic', %s}, Body),
      case code:ensure_loaded(mc_amqpl) of
        {module, _} ->
          {ok, M} = mc_amqpl:message(Exchange, Key, Content),
          rabbit_queue_type:publish_at_most_once(rabbit_exchange:lookup_or_die(Exchange), M);
        _ ->
          M = case rabbit_basic:message(Exchange, Key, element(3, Content), Body) of {ok, X} -> X; X -> X end,
          rabbit_basic:publish(rabbit_basic:delivery(false, false, M, undefined))
      end]]):format(binary(h.vhost), binary(exchange), binary(key), binary(body), properties))
  end

  it("loses nothing when every connection is closed, again and again", function()
    local h = new()
    h:start { settings = SETTINGS, handler = FORWARD }
    h:publish(messages(600))
    local closed = 0
    for i = 1, 4 do
      h:wait_for("done", 100 * i, 30)
      closed = closed + server:close_connections()
    end
    assert.is_true(closed >= 8, closed .. " connections were closed")
    assert_forwarded(h, 600)
  end)

  it("declares a queue again that was deleted under its consumer", function()
    local h = new()
    local worker = h:start { settings = SETTINGS, handler = FORWARD }
    h:publish(messages(20))
    h:wait_for("done", 20)
    h:wait_settled()
    queue_eval(h, "in", "rabbit_amqqueue:delete(Q, false, false, <<\"spec\">>)")
    h:wait(function() return worker.child:stderr():find("declaring it again", 1, true) end, 10, "the cancel")
    h:publish { { "x", id = "m21" }, { "x", id = "m22" } }
    h:wait_for("done", 22)
    assert_forwarded(h, 22)
  end)

  it("lets publications wait while the broker has an alarm, and goes on living", function()
    local h = new()
    local worker = h:start { settings = SETTINGS, handler = FORWARD }
    h:publish(messages(50))
    h:wait_for("done", 5)
    server:alarm(true)
    finally(function() server:alarm(false) end)
    h:wait(function() return worker.child:stderr():find("blocks publishing", 1, true) end, 20, "the notice")
    h:stay(2.5) -- more than two heartbeats: the connections must live through it
    assert.is_true(worker.child:alive())
    assert.is_nil(worker.child:stderr():find("connection lost", 1, true))
    local status = process.run { { cli.binary, "status", worker.dir }, timeout = 20 }
    assert.equal(0, status.code, status.stderr)
    assert.is_nil(worker.child:stderr():find("dead", 1, true))
    server:alarm(false)
    assert_forwarded(h, 50)
    assert.is_truthy(worker.child:stderr():find("takes publications again", 1, true))
  end)

  it("notices a broker that stands still, and comes back to it", function()
    local h = new()
    local worker = h:start { settings = SETTINGS, handler = FORWARD }
    h:publish(messages(300))
    h:wait_for("done", 50)
    server:signal "STOP"
    h:wait(function() return worker.child:stderr():find("connection lost", 1, true) end, 20, "the loss to be noticed")
    server:signal "CONT"
    assert_forwarded(h, 300)
  end)

  it("keeps what was confirmed through a restart of the broker", function()
    local h = new()
    h:publish(messages(300))
    h:start { settings = SETTINGS, handler = FORWARD }
    h:wait_for("done", 50)
    server:stop()
    server:start()
    h:wait_for("done", 300, 60)
    assert_forwarded(h, 300)
  end)

  it("reads and writes one byte at a time", function()
    local h = new()
    local proxy = proxies.start(server.port)
    proxy:say "bytes"
    h.url = ("amqp://guest:guest@127.0.0.1:%d/%s?heartbeat=20"):format(proxy.port, h.vhost)
    h:publish(messages(5))
    h:start { settings = SETTINGS, handler = FORWARD }
    h:wait_for("done", 5, 60)
    assert_forwarded(h, 5)
    h:close()
    proxy:stop()
  end)

  it("carries bodies of nothing, over a frame, and of 64 MB", function()
    local h = new()
    local sizes = { 0, 1, 131064, 131065, 300000, math.floor(64 * 1024 * 1024 * (harness.scale < 1 and 0.25 or 1)) }
    h:start { settings = "buffer = { bytes = 1000000 },", handler = FORWARD }
    local list = {}
    for i, size in ipairs(sizes) do list[i] = { ("%d"):format(i):rep(size), id = "m" .. i } end
    h:publish(list)
    h:wait_settled("in", 60)
    local found = {}
    for _, m in ipairs(h:messages "out") do found[m.id] = m.body end
    for i, m in ipairs(list) do assert.is_true(found["out-m" .. i] == m[1], "body " .. i .. " changed") end
  end)

  it("takes no more than its window out of a flood", function()
    local h = new()
    h:publish(messages(3000))
    h:start { settings = "concurrency = 4, buffer = { count = 50 },", handler = [[
      function M.handle(msg) mw.sleep(0.001) trace("done", msg) end]] }
    local most = 0
    h:wait(function()
      most = math.max(most, tonumber((queue_eval(h, "in", "rabbit_amqqueue:info(Q, [messages_unacknowledged])")
        :match "(%d+)}")))
      return h.trace:count "done" >= 3000
    end, 60, "3000 handled")
    assert.is_true(most <= 50 and most > 10, "unacknowledged: " .. most)
  end)

  -- What the window lets in, and nothing more, however much there is.
  for _, order in ipairs { "none", "key" } do
    it("keeps little of a flood in memory, order = " .. order, function()
      local h = new()
      local size, count, each = 10000, 100, 100
      for i = 1, count do
        local list = {}
        for k = 1, each do list[k] = { ("x"):rep(size), id = ("m%d.%d"):format(i, k), key = "k" .. k } end
        h:publish(list)
      end
      local worker = h:start { settings = ([[order = %q, concurrency = 4, timeout = 600,
                                 buffer = { count = 100, bytes = 1000000 },]]):format(order), handler = [[
        function M.handle(msg) trace("begin", msg) mw.sleep(600) end]] }
      h:wait_for("begin", 4, 30)
      h:stay(3)
      local peak = process.hwm(worker.child.pid) / 1e6
      io.write(("\n  flood: %d MB, at most %.0f MB of memory\n"):format(size * count * each / 1e6, peak))
      assert.is_true(peak < 40 * (harness.late > 1 and 8 or 1), peak .. " MB")
      h:kill(worker)
    end)
  end

  local function quorum()
    return { url = function(h) return contract.url(h) .. "&queue_type=quorum" end }
  end

  for case, order in pairs { ['order = "key"'] = "key", ['order = "none"'] = "none", ["none, quorum"] = "none" } do
    it("gives up a message that kills its worker again and again, and none of those beside it: " .. case, function()
      local h = new(case:find "quorum" and quorum() or nil)
      local given = { settings = ("order = %q, retry = { attempts = 3, base = 0.02 }, timeout = 60,"):format(order),
                      handler = [[
        function M.handle(msg)
          trace("begin", msg)
          if msg.id == "m3" then mw.sleep(60) end
          trace("done", msg)
        end]] }
      h:publish(messages(20))
      h:start(given)
      local begun = 0
      for _ = 1, 10 do
        local before = begun
        h:wait(function()
          begun = 0
          for _, line in ipairs(h.trace:of "begin") do begun = begun + (line.id == "m3" and 1 or 0) end
          return begun > before or #h:dead() > 0
        end, 20, "m3 to begin")
        if #h:dead() > 0 then break end
        h:kill()
        h:start()
      end
      h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
      h:wait_settled "in"
      assert.equal("m3", h:dead()[1].id)
      assert.equal("crash", h:dead()[1].headers["mw-dead-class"])
      local done = {}
      for _, line in ipairs(h.trace:of "done") do done[line.id] = true end
      for i = 1, 20 do assert.is_true(done["m" .. i] or i == 3, "m" .. i .. " was never handled") end
    end)
  end

  it("finds the message that kills also where two processes read side by side", function()
    local h = new()
    local workers = {}
    local function start(given)
      local worker = h:start(given)
      workers[worker.name] = worker
    end
    h:publish(messages(20))
    for _ = 1, 2 do
      start { settings = [[order = "none", retry = { attempts = 3, base = 0.02 }, timeout = 60, concurrency = 4,]],
              handler = [[
        function M.handle(msg)
          trace("begin", msg)
          if msg.id == "m3" then mw.sleep(60) end
          mw.sleep(0.01)
          trace("done", msg)
        end]] }
    end
    local begun = 0
    for _ = 1, 30 do -- deaths of the one without the journal do not count
      local last
      h:wait(function()
        local n = 0
        for _, line in ipairs(h.trace:of "begin") do
          if line.id == "m3" then n, last = n + 1, line.worker end
        end
        local more = n > begun
        begun = n
        return more or #h:dead() > 0
      end, 20, "m3 to begin")
      if #h:dead() > 0 then break end
      h:stay(0.2)
      h:kill(workers[last])
      start()
    end
    h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
    h:wait_settled("in", 30)
    assert.equal("m3", h:dead()[1].id)
    assert.equal("crash", h:dead()[1].headers["mw-dead-class"])
    local done = {}
    for _, line in ipairs(h.trace:of "done") do done[line.id] = true end
    for i = 1, 20 do assert.is_true(done["m" .. i] or i == 3, "m" .. i .. " was never handled") end
  end)

  -- The supervisor knows what its worker had begun, and counts by itself.
  for _, type in ipairs { "classic", "quorum" } do
    it("gives up a message that kills its worker with order = none, under the supervisor: " .. type, function()
      local h = new(type == "quorum" and quorum() or nil)
      local s = supervised.scene {
        flags = { "--workers", "1" }, settings = [[order = "none", timeout = 60, retry = { attempts = 1 },]],
        env = { ASAN_OPTIONS = (os.getenv "ASAN_OPTIONS" or "") .. ":handle_segv=0" },
        handler = [[
          function M.handle(msg)
            if msg.id == "m3" then
              mw.log.info "poison begun"
              mw.sleep(50)
            end
            mw.sleep(0.01)
            trace("done", msg)
          end]],
      }
      s.url = h.url
      h:publish(messages(20))
      s:start()
      for n = 1, 3 do
        h:wait(function() return s:count "poison begun" >= n end, 30, "the poison, time " .. n)
        s:kill_worker(1, "SEGV")
      end
      h:wait(function() return #h:dead() == 1 end, 30, "the dead letter")
      h:wait_settled("in", 30)
      assert.equal(0, (s.child:stop(20)), s.child:stderr())
      assert.equal("m3", h:dead()[1].id)
      assert.equal("crash", h:dead()[1].headers["mw-dead-class"])
      assert.equal("killed its worker 3 times", h:dead()[1].headers["mw-dead-reason"])
      local done = {}
      for _, line in ipairs(s.trace:of "done") do done[line.id] = true end
      for i = 1, 20 do assert.is_true(done["m" .. i] or i == 3, "m" .. i .. " was never handled") end
    end)
  end

  --- Wrong settings ---------------------------------------------------------------------------------------------------

  local function publish_to(url)
    return process.run { { cli.binary, "publish", "--broker", url, "in", "x" }, timeout = 40 }
  end

  it("says what is wrong with a login, a vhost, a permission, an option", function()
    local at = ("127.0.0.1:%d"):format(server.port)
    local cases = {
      { "amqp://guest:wrong@" .. at .. "/", "ACCESS_REFUSED", 69 },
      { "amqp://guest:guest@" .. at .. "/nowhere", "nowhere", 69 },
      { "amqp://reader:reader@" .. at .. "/", "access to vhost '/' refused", 69 },
      { "amqp://guest:guest@" .. at .. "/?heartbeet=5", 'did you mean "heartbeat"', 64 },
      { "amqp://guest:guest@" .. at .. "/?queue_type=quorom", "quorum", 64 },
      { "amqp:", "name the broker", 64 },
      { "amqps://" .. at .. "/?auth=external", "certificate", 64 },
    }
    for _, case in ipairs(cases) do
      local result = publish_to(case[1])
      assert.is_truthy(result.stderr:find(case[2], 1, true), case[1] .. ": " .. result.stderr)
      assert.is_true(result.code ~= 0)
      assert.is_nil(result.stderr:find("wrong@", 1, true))
    end
  end)

  it("logs in with a certificate", function()
    local h = new()
    server:eval(([[rabbit_auth_backend_internal:set_permissions(<<"certified">>, %s, <<".*">>, <<".*">>, <<".*">>,
      <<"spec">>)]]):format(binary(h.vhost)))
    local url = ("amqps://localhost:%d/%s?auth=external&ca=%s/ca.crt&cert=%s/client.crt&key=%s/client.key"):format(
      server.tls_port, h.vhost, server.dir, server.dir, server.dir)
    local result = publish_to(url)
    assert.equal(0, result.code, result.stderr)
    assert.equal(1, #h:messages "in")
  end)

  it("refuses a second pipeline on a queue, and a start in the middle of one", function()
    local h = new()
    local worker = h:start { more = [[mw.pipeline "q" { from = broker:channel "in", handler = "handlers.p" }]],
                             handler = FORWARD }
    assert.is_true(worker.child:wait(20) ~= 0)
    assert.is_truthy(worker.child:stderr():find("bind a second queue", 1, true), worker.child:stderr())
    worker = h:start { settings = "start = 'newest',", handler = FORWARD }
    assert.is_true(worker.child:wait(20) ~= 0)
    assert.is_truthy(worker.child:stderr():find("no place to begin at", 1, true), worker.child:stderr())
    h.workers = {}
  end)

  --- Topology ---------------------------------------------------------------------------------------------------------

  local TOPOLOGY = [[
local mw = require "moonwire"
local broker = mw.connect(mw.env "BROKER_URL")
broker:topology {
  exchanges = { orders = { type = "topic", alternate = "lost" }, lost = { type = "fanout" }, by = { type = "headers" },
                spread = { type = "x-consistent-hash" } },
  queues = {
    all = {}, high = { max_priority = 9 }, unroutable = { max_length = %s, overflow = "reject-publish" },
    certain = { type = "quorum", delivery_limit = 5, dead_exchange = "lost" }, short = { ttl = 60, lazy = true },
  },
  bindings = {
    { exchange = "orders", queue = "all", key = "order.#" },
    { exchange = "orders", queue = "high", key = "order.*.high" },
    { exchange = "lost", queue = "unroutable" },
    { exchange = "by", queue = "short", match = "any", headers = { colour = "red", size = 5 } },
    { exchange = "spread", queue = "all", key = "1" },
  },
}
local orders = broker:exchange "orders"
mw.pipeline "p" { from = broker:channel "in", retry = { attempts = 2, base = 0.02 }, handler = function(msg)
  mw.publish(orders, msg.body, { routing_key = msg:header "to", id = msg.id, ttl = 100 })
end }
]]

  local function states(result)
    local list = {}
    for _, item in ipairs(cli.objects(result.stdout)) do list[item.name] = item end
    return list
  end

  it("compares a topology with the broker, makes it, and explains what differs", function()
    local h = new()
    local work = cli.workdir()
    work:write("moonwire.lua", TOPOLOGY:format "100")
    local function topology(verb)
      return work:run({ "topology", verb, ".", "--json" }, { env = { BROKER_URL = h.url } })
    end
    local plan = topology "plan"
    assert.equal(1, plan.code, plan.stderr)
    assert.equal("missing", states(plan).all.state)
    local apply = topology "apply"
    assert.equal(0, apply.code, apply.stdout .. apply.stderr)
    assert.equal("created", states(apply).certain.state)
    local again = topology "plan"
    assert.equal(0, again.code, again.stdout .. again.stderr)
    assert.equal("same", states(again).orders.state)
    assert.equal("present", states(topology "show").high.state)
    work:write("moonwire.lua", TOPOLOGY:format "200")
    local different = topology "plan"
    assert.equal(1, different.code)
    assert.same({ field = "x-max-length", wanted = "200", found = "100" }, states(different).unroutable.differences[1])
    local refused = topology "apply"
    assert.equal(1, refused.code)
    assert.matches("cannot change what exists", states(refused).unroutable.error)
    local passive = work:run({ "topology", "apply", "." }, { env = { BROKER_URL = h.url .. "&declare=passive" } })
    assert.matches("declare=passive", passive.stderr)
    assert.is_true(passive.code ~= 0)

    -- and messages take the ways that were declared
    local worker = process.spawn { { cli.binary, "run", work.path }, env = { BROKER_URL = h.url } }
    h:publish {
      { "1", id = "m1", headers = { to = "order.new.high" } }, { "2", id = "m2", headers = { to = "order.new" } },
      { "3", id = "m3", headers = { to = "elsewhere" } },
    }
    h:wait_settled "in"
    assert.equal(2, #h:messages "all")
    assert.equal(1, #h:messages "high")
    assert.equal("order.new.high", h:messages("high")[1].headers["amqp-routing-key"])
    assert.equal("100000", h:messages("high")[1].headers.expiration)
    assert.equal(1, #h:messages "unroutable")
    worker:stop(20)
  end)

  it("turns an unroutable message into an error of the one who published it", function()
    local h = new()
    server:eval(([[rabbit_exchange:declare(rabbit_misc:r(%s, exchange, <<"orders">>), topic, true, false, false, [],
      <<"spec">>)]]):format(binary(h.vhost)))
    local work = cli.workdir()
    work:write("moonwire.lua", [[
local mw = require "moonwire"
local broker = mw.connect(mw.env "BROKER_URL")
local orders, quiet = broker:exchange "orders", broker:exchange("orders", { mandatory = false })
mw.pipeline "p" { from = broker:channel "in", retry = { attempts = 2, base = 0.02 }, handler = function(msg)
  if msg.body == "bad" then mw.publish(orders, msg.body, { routing_key = "no.way", id = msg.id }) end
  if msg.body == "quiet" then mw.publish(quiet, msg.body, { routing_key = "no.way", id = msg.id }) end
  mw.publish("out", msg.body, { id = msg.id })
end }
]])
    local list = {}
    for i = 1, 60 do list[i] = { i % 20 == 0 and "bad" or i % 3 == 0 and "quiet" or "good", id = "m" .. i } end
    local worker = process.spawn { { cli.binary, "run", work.path }, env = { BROKER_URL = h.url } }
    h:publish(list)
    h:wait(function() return #h:dead() == 3 end, 20, "three dead letters")
    h:wait_settled("in", 20)
    for _, letter in ipairs(h:dead()) do
      assert.equal("bad", letter.body)
      local why = letter.headers["mw-dead-last-error"]
      assert.matches('unroutable: exchange "orders" has no queue bound for "no.way"', why)
    end
    local out = {}
    for _, m in ipairs(h:messages "out") do out[m.id] = true end
    for i = 1, 60 do assert.is_true(out["m" .. i] or i % 20 == 0, "m" .. i .. " is missing") end
    worker:stop(20)
  end)

  it("runs examples/rabbitmq on a real broker", function()
    local h = new()
    local dir = cli.root .. "/examples/rabbitmq"
    local apply = process.run { { cli.binary, "topology", "apply", dir }, env = { BROKER_URL = h.url }, timeout = 30 }
    assert.equal(0, apply.code, apply.stdout .. apply.stderr)
    local tasks = {}
    for i = 1, 20 do tasks[i] = { ('{"task":%d}'):format(i), priority = i > 10 and 9 or 1, id = "t" .. i } end
    h.broker:publish("tasks", tasks)
    local worker = process.spawn { { cli.binary, "run", dir }, env = { BROKER_URL = h.url } }
    h.broker:publish("orders.incoming", {
      { '{"id":1,"customer":"ann"}' }, { '{"id":2,"customer":"bob","urgent":true}' },
      { '{"id":3,"customer":"ann","state":"paid","urgent":true}' }, { '{"id":4,"customer":"eve","state":"paid"}' },
    })
    h.broker:publish("image.uploaded", {
      { '{"image":"cat.png","format":"png"}' }, { '{"image":"x","format":"tiff"}' },
    })
    h:wait(function() return #h:messages "notes" == 8 and #h:messages "done" == 20 end, 30, "eight notes, twenty tasks")
    local notes, order = {}, {}
    for _, m in ipairs(h:messages "notes") do
      local note = json.decode(m.body)
      notes[#notes + 1] = ("%s %d %s"):format(note.service, note.order, note.key)
    end
    table.sort(notes)
    assert.same({ "audit 1 order.new.normal", "audit 2 order.new.high", "audit 3 order.paid.high",
                  "audit 4 order.paid.normal", "urgent 2 order.new.high", "urgent 3 order.paid.high",
                  "welcome 1 order.new.normal", "welcome 2 order.new.high" }, notes)
    for _, m in ipairs(h:messages "done") do order[#order + 1] = json.decode(m.body).task end
    for i = 1, 10 do assert.is_true(order[i] > 10, table.concat(order, " ")) end
    h:wait(function() return #h:messages "image.published" == 1 and #h:messages "image.uploaded.dead" == 1 end, 20,
      "images")
    assert.equal(0, (worker:stop(20)), worker:stderr())
  end)

  --- Foreign messages -------------------------------------------------------------------------------------------------

  it("reads what others publish: tables, arrays, times, numbers, properties, and messages without an id", function()
    local h = new()
    h:publish { { "x", id = "m0" } }
    raw_publish(h, "", "in", "hello", [[<<"text/plain">>, <<"gzip">>, [
      {<<"n">>, signedint, -5}, {<<"big">>, long, 9007199254740993}, {<<"yes">>, bool, true}, {<<"real">>, double, 1.5},
      {<<"when">>, timestamp, 1700000000}, {<<"bytes">>, binary, <<0,255>>}, {<<"none">>, void, undefined},
      {<<"list">>, array, [{signedint, 1}, {longstr, <<"two">>}, {table, [{<<"a">>, bool, false}]}]},
      {<<"table">>, table, [{<<"inner">>, longstr, <<"v">>}, {<<"n">>, short, 3}]}],
      2, 7, <<"corr-1">>, <<"answers">>, undefined, undefined, 1700000001, <<"kind">>, undefined, <<"app">>,
      undefined]])
    local found
    for _, m in ipairs(h:messages "in") do if m.body == "hello" then found = m end end
    assert.equal("text/plain", found.type)
    assert.equal(7, found.priority)
    assert.equal(1700000001, found.time)
    assert.matches("^%x+%-%x+%-", found.id)
    local expected = {
      n = "-5", big = "9007199254740993", yes = "true", real = "1.5", when = "2023-11-14T22:13:20Z", bytes = "\0\255",
      none = "", list = '[1,"two",{"a":false}]', table = '{"inner":"v","n":3}', ["correlation-id"] = "corr-1",
      ["reply-to"] = "answers", ["content-encoding"] = "gzip", ["amqp-type"] = "kind", ["amqp-app-id"] = "app",
    }
    for name, value in pairs(expected) do assert.equal(value, found.headers[name], name) end
  end)

  -- The headers of the first message of a queue, as the broker sees them, without those that are ours. Takes it.
  -- Whoever has just looked at it may hold it for a moment still.
  local function raw_headers(h, queue)
    return queue_eval(h, queue, [[
      Get = fun Get(Tries) ->
        case rabbit_amqqueue:basic_get(Q, true, self(), <<"spec">>, rabbit_queue_type:init()) of
          {ok, _, {_, _, _, _, Found}, _} -> Found;
          {empty, _} when Tries > 0 -> timer:sleep(50), Get(Tries - 1)
        end
      end,
      Message = Get(100),
      Raw = case code:ensure_loaded(mc) of
        {module, _} -> mc:protocol_state(mc:convert(mc_amqpl, Message));
        _ -> element(4, Message)
      end,
      Content = rabbit_binary_parser:ensure_content_decoded(Raw),
      lists:sort([H || H <- element(4, element(3, Content)),
        binary:match(element(1, H), [<<"mw-">>, <<"x-">>]) == nomatch])]])
  end

  local TYPED = [[{<<"big">>,long,9007199254740993},{<<"bytes">>,binary,<<0,255>>},
    {<<"list">>,array,[{signedint,1},{longstr,<<"two">>},{table,[{<<"a">>,bool,false}]}]},{<<"n">>,signedint,-5},
    {<<"none">>,void,undefined},{<<"real">>,double,1.5},{<<"small">>,byte,-3},
    {<<"table">>,table,[{<<"inner">>,longstr,<<"v">>},{<<"n">>,short,3}]},{<<"text">>,longstr,<<"plain">>},
    {<<"when">>,timestamp,1700000000},{<<"yes">>,bool,true}]]

  for _, order in ipairs { "none", "key" } do
    it("keeps the types of headers through retries and the dead letter, order = " .. order, function()
      local h = new()
      h:start { settings = ("order = %q, retry = { attempts = 3, base = 0.02 },"):format(order), handler = [[
        function M.handle(msg)
          trace("try", msg)
          local h = msg.headers
          if h.n ~= "-5" or h.when ~= "2023-11-14T22:13:20Z" then error(mw.reject "not what was sent") end
          error("again", 0)
        end]] }
      h:publish { { "x", id = "first" } }
      h:wait_for("try", 1)
      h:wait(function() return #h:dead() == 1 end, 20, "the first dead letter")
      raw_headers(h, "in.dead")
      raw_publish(h, "", "in", "typed", "undefined, undefined, [" .. TYPED .. [[], 2, undefined, undefined, undefined,
        undefined, <<"m1">>, undefined, undefined, undefined, undefined, undefined]])
      h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
      local tries = 0
      for _, line in ipairs(h.trace:of "try") do if line.id == "m1" then tries = tries + 1 end end
      assert.equal(3, tries)
      assert.equal(("[" .. TYPED .. "]"):gsub("%s+", ""), (raw_headers(h, "in.dead"):gsub("%s+", "")))
    end)
  end

  it("counts a native dead-lettering as an attempt", function()
    local h = new()
    h:publish { { "x", id = "m0" } }
    raw_publish(h, "", "in", "came back", [[undefined, undefined, [{<<"x-death">>, array, [{table, [
      {<<"queue">>, longstr, <<"in">>}, {<<"reason">>, longstr, <<"rejected">>}, {<<"count">>, long, 2}]}]}],
      2, undefined, undefined, undefined, undefined, <<"m1">>, undefined, undefined, undefined, undefined, undefined]])
    h:start { handler = [[function M.handle(msg) trace("done", msg, msg.headers["x-death"]) end]] }
    h:wait_for("done", 2)
    local attempts = {}
    for _, line in ipairs(h.trace:of "done") do attempts[line.id] = line.attempt end
    assert.same({ m0 = 1, m1 = 3 }, attempts)
  end)

  --- Requests ---------------------------------------------------------------------------------------------------------

  it("answers requests by direct reply-to, and gives up in time", function()
    local h = new()
    h:start {
      settings = "concurrency = 16, retry = { attempts = 1 },",
      more = [[mw.pipeline "server" { from = broker:channel "prices", order = "none", handler = function(msg)
        if msg.data.item == "silent" then return end
        mw.reply { item = msg.data.item, price = #msg.data.item }
      end }]],
      handler = [[function M.handle(msg)
        local reply = mw.request("prices", { item = msg.body }, { timeout = msg.body == "silent" and 0.3 or 10 })
        mw.publish("out", reply.data.item .. "=" .. reply.data.price, { id = msg.id })
      end]],
    }
    local list = {}
    for i = 1, 40 do list[i] = { ("x"):rep(i), id = "m" .. i } end
    list[41] = { "silent", id = "m41" }
    h:publish(list)
    h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
    h:wait_settled("in", 20)
    local out = h:messages "out"
    assert.equal(40, #out)
    for _, m in ipairs(out) do assert.equal(#m.body:match "^x+", tonumber(m.body:match "=(%d+)")) end
    assert.matches("no reply in time", h:dead()[1].headers["mw-dead-last-error"])
  end)

  --- Dead letters -----------------------------------------------------------------------------------------------------

  it("shows dead letters without moving them, and sends single ones back", function()
    local h = new()
    h:start { settings = "retry = { attempts = 1 },", handler = [[
      function M.handle(msg)
        trace("try", msg)
        if not msg:header "mw-replay" then error "not yet" end
        trace("done", msg)
      end]] }
    h:publish(messages(10))
    h:wait(function() return #h:dead() == 10 end, 20, "ten dead letters")
    local function dlq(...)
      local result = process.run { { cli.binary, "dlq", ... }, env = { BROKER_URL = h.url }, timeout = 30 }
      assert.equal(0, result.code, result.stderr)
      return result
    end
    local function order()
      local ids = {}
      for _, m in ipairs(h:dead()) do ids[#ids + 1] = m.id end
      return table.concat(ids, " ")
    end
    local before = order()
    for _ = 1, 3 do dlq("ls", "in.dead", "--broker", h.url) end
    assert.equal(before, order())
    local shown = dlq("show", "in.dead", "m5", "--json", "--broker", h.url)
    assert.equal("m5", json.decode(shown.stdout).id)
    dlq("replay", "in.dead", "m5", "--broker", h.url)
    h:wait_for("done", 1, 20)
    assert.equal((before:gsub(" m5", "")), order())
    dlq("replay", "in.dead", "--yes", "--broker", h.url)
    h:wait_for("done", 10, 20)
    h:wait_settled()
    assert.equal("", order())
  end)
end)
