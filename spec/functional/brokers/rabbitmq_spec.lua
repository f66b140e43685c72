-- RabbitMQ as a user meets it: the demo, options right and wrong, what the commands say. Attacks: spec/faults.
local C = require "moonwire.internal.cdef"
local cli = require "spec.functional.cli.support"
local contract = require("spec.contract.rabbitmq").classic
local harness = require "spec.support.harness"
local json = require "moonwire.json"
local process = require "spec.support.process"
local rabbitmq = require "spec.support.servers.rabbitmq"

C.mw_log_setup(0, 9)

describe("examples/rabbitmq/demo", function()
  it("tells its stories on a broker of its own, and ends it", function()
    local home = rabbitmq.home()
    local env = { MOONWIRE = cli.binary, BROKER_URL = false, RABBITMQ_SERVER = home.bin .. "/rabbitmq-server" }
    for name, value in pairs(home.env) do env[name] = value end
    local result = process.run { { cli.root .. "/examples/rabbitmq/demo" }, env = env, timeout = 200 }
    local out = result.stdout
    assert.equal(0, result.code, out .. result.stderr)
    local function told(heading) return out:match("\n" .. heading .. "[^\n]*\n(.-)\n\n") or out end
    local notes = {}
    for order, service in told("Which service"):gmatch "order (%d), %S+ +(%a+)" do
      notes[#notes + 1] = order .. " " .. service
    end
    assert.same({ "1 audit", "1 welcome", "2 audit", "2 urgent", "2 welcome", "3 audit" }, notes)
    local tasks = {}
    for task in told("Tasks"):gmatch '"task":"(.-)"' do tasks[#tasks + 1] = task end
    assert.same({ "urgent 1", "urgent 2", "later 1", "later 2", "later 3" }, tasks)
    assert.matches("cat.png", told "Images")
    assert.matches("cannot read tiff", told "moonwire dlq ls")
    local letter = out:match "moonwire dlq show.*$"
    assert.matches("gave up after 3 attempts", letter)
    assert.matches("first error  [^\n]*no such amount", letter)
    assert.is_nil(letter:find("x-first-death", 1, true), letter)
    local port = out:match "on port (%d+)"
    local found = process.run { "sh", "-c", "ps ax -o args | grep -c '[m]oonwire-demo-" .. port .. "'" }
    assert.equal("0", (found.stdout:match "%d+"))
  end)

  it("says what is missing", function()
    local result = process.run { { cli.root .. "/examples/rabbitmq/demo" },
                                 env = { MOONWIRE = cli.binary, BROKER_URL = false, RABBITMQ_SERVER = "/nowhere" } }
    assert.equal(69, result.code)
    assert.matches("apt%-get install .*rabbitmq%-server", result.stderr)
    assert.matches("BROKER_URL", result.stderr)
  end)
end)

--- Without a broker ---------------------------------------------------------------------------------------------------

describe("what cannot be is said before a broker is asked:", function()
  local function check(text, url)
    local work = cli.workdir()
    work:write("moonwire.lua", ([[
local mw = require "moonwire"
local broker = mw.connect(%q)
%s
mw.pipeline "p" { from = broker:channel "in", handler = function() end }
]]):format(url or "amqp://127.0.0.1:1/", text))
    return work:run { "check", "." }
  end

  for field, case in pairs {
    ["exchanges = { [''] = {} }"] = "an exchange needs a name",
    ["exchanges = { ['amq.mine'] = {} }"] = "names that begin with amq. are the broker's own",
    ["exchanges = { e = { type = 'hedders' } }"] = 'did you mean "headers"?',
    ["exchanges = { e = { alternat = 'x' } }"] = 'did you mean "alternate"?',
    ["queues = { q = { type = 'clasic' } }"] = 'did you mean "classic"?',
    ["queues = { q = { ttl = -1 } }"] = "ttl must be seconds",
    ["queues = { q = { overflow = 'drop' } }"] = '"reject-publish"',
    ["queues = { q = { type = 'quorum', max_priority = 5 } }"] = "a quorum queue has none",
    ["queues = { q = { type = 'quorum', durable = false } }"] = "durable = false does not go",
    ["queues = { q = { type = 'classic', delivery_limit = 5 } }"] = "only a quorum queue has one",
    ["queues = { q = { type = 'stream', ttl = 5 } }"] = "a stream has none",
    ["queues = { q = { type = 'stream', single_active = true } }"] = "one process reads for each group anyway",
    ["queues = { q = { exclusive = true } }"] = "as an option of the channel that reads it",
    ["queues = { q = { dead_key = 'x' } }"] = "dead_key needs dead_exchange",
    ["queues = { q = { dead_exchange = {} } }"] = "dead_exchange must be a string",
    ["queues = { q = { arguments = { ['x-a'] = {} } } }"] = "arguments.x-a must be a text, a number or true or false",
    ["bindings = { { exchange = 'e' } }"] = "where to?",
    ["bindings = { { queue = 'q' } }"] = "name the exchange",
    ["bindings = { { exchange = 'e', queue = 'q', to_exchange = 'f' } }"] = "exclude each other",
    ["bindings = { { exchange = 'e', queue = 'q', key = {} } }"] = "key must be a text",
    ["bindings = { { exchange = 'e', queue = 'q', match = 'any' } }"] = "match needs headers",
    ["bindings = { { exchange = 'e', queue = 'q', match = 'al', headers = { a = 1 } } }"] = 'did you mean "all"?',
    ["bindings = { { exchange = 'e', queue = 'q', headers = { a = {} } } }"] = "headers.a must be a text",
  } do
    it(field, function()
      local result = check("broker:topology { " .. field .. " }")
      assert.equal(78, result.code)
      assert.truthy(result.stderr:find(case, 1, true), result.stderr)
      assert.truthy(result.stderr:find("moonwire.lua:3:", 1, true), result.stderr)
    end)
  end

  it("options of a channel, and of the address", function()
    local result = check [[broker:channel("q", { type = "quorum", max_priority = 5 })]]
    assert.equal(78, result.code)
    local text_of_it = 'moonwire.lua:3: channel "q": max_priority does not go with'
    assert.truthy(result.stderr:find(text_of_it, 1, true), result.stderr)
    for option, text in pairs { ["heartbeet=1"] = 'did you mean "heartbeat"?', ["heartbeat=x"] = "from 0 to 3600",
                                ["frame_max=100"] = "from 4096", ["auth=exernal"] = "did you mean external?",
                                ["declare=pasive"] = "did you mean passive?",
                                ["auth=external"] = "login by certificate" } do
      result = check("", "amqp://127.0.0.1:1/?" .. option)
      assert.equal(78, result.code, option)
      assert.truthy(result.stderr:find(text, 1, true), result.stderr)
      result = process.run { cli.binary, "publish", "--broker", "amqp://127.0.0.1:1/?" .. option, "q", "x" }
      assert.equal(64, result.code, option)
    end
  end)
end)

--- With one -----------------------------------------------------------------------------------------------------------

describe("rabbitmq", function()
  local server
  local open = harness.closing(after_each)

  setup(function() server = rabbitmq.get() end)
  teardown(function() process.cleanup() end)

  local function new() return open(contract) end

  local function project(text)
    local work = cli.workdir()
    local pipeline = text:find "mw.pipeline" and ""
      or '\nmw.pipeline "p" { from = broker:channel "in", handler = function() end }'
    work:write("moonwire.lua", 'local mw = require "moonwire"\nlocal broker = mw.connect(mw.env "BROKER_URL")\n' .. text
      .. pipeline)
    return work
  end

  local function topology(h, work, verb, options)
    local result = work:run({ "topology", verb, ".", "--json" }, { env = { BROKER_URL = h.url .. (options or "") } })
    local items = {}
    for _, item in ipairs(cli.objects(result.stdout)) do items[item.name] = item end
    return items, result
  end

  local function bodies(h, channel)
    local list = {}
    for i, m in ipairs(h.broker:messages(channel)) do list[i] = m.body end
    table.sort(list)
    return list
  end

  -- Publishes { routing key, headers } through an exchange, once each; the body says which.
  local ROUTER = [[
local to = { %s }
mw.pipeline "p" { from = broker:channel "in", retry = { attempts = 1 }, handler = function(msg)
  local d = msg.data
  mw.publish(to[d.to] or broker:exchange(d.to), d.body, { routing_key = d.key, headers = d.headers })
end }
]]

  local function route(h, work, list)
    local sent = {}
    for i, m in ipairs(list) do sent[i] = { json.encode(m), id = "m" .. i } end
    h:publish(sent)
    local result = work:run({ "run", ".", "--once", "--workers", "0" }, { env = { BROKER_URL = h.url } })
    assert.equal(0, result.code, result.stderr)
    return result.stderr
  end

  it("routes by every kind of exchange, through others, and to the alternate", function()
    local h = new()
    local work = project([[
broker:topology {
  exchanges = {
    plain = { type = "direct", alternate = "lost" }, words = {}, all = { type = "fanout" }, inner = { type = "fanout",
      internal = true }, lost = { type = "fanout", auto_delete = false }, by = { type = "headers" },
    spread = { type = "x-consistent-hash" },
  },
  queues = { direct = {}, star = {}, hash = {}, one = {}, two = {}, unroutable = {}, every = {}, some = {}, real = {},
             left = {}, right = {} },
  bindings = {
    { exchange = "plain", queue = "direct", key = "k" }, { exchange = "lost", queue = "unroutable" },
    { exchange = "words", queue = "star", key = "order.*.high" },
    { exchange = "words", queue = "hash", key = "order.#" },
    { exchange = "all", queue = "one" }, { exchange = "all", to_exchange = "inner" },
    { exchange = "inner", queue = "two" },
    { exchange = "by", queue = "every", match = "all", headers = { a = "x", b = "y" } },
    { exchange = "by", queue = "some", match = "any", headers = { a = "x", b = "y" } },
    { exchange = "by", queue = "real", match = "any", headers = { size = "1.5" } },
    { exchange = "spread", queue = "left", key = 1 }, { exchange = "spread", queue = "right", key = 1 },
  },
}
]] .. ROUTER:format [[plain = broker:exchange "plain", words = broker:exchange "words", all = broker:exchange "all",
  by = broker:exchange "by", spread = broker:exchange "spread"]])
    local _, applied = topology(h, work, "apply")
    assert.equal(0, applied.code, applied.stdout)
    local list = {
      { to = "plain", key = "k", body = "d1" }, { to = "plain", key = "other", body = "d2" },
      { to = "words", key = "order.new.high", body = "w1" }, { to = "words", key = "order.new.low", body = "w2" },
      { to = "words", key = "order", body = "w3" }, { to = "all", body = "f1" },
      { to = "by", body = "h1", headers = { a = "x", b = "y" } }, { to = "by", body = "h2", headers = { a = "x" } },
      { to = "by", body = "h3", headers = { size = "1.5" } },
    }
    for i = 1, 60 do list[#list + 1] = { to = "spread", key = "key " .. i, body = "s" .. i } end
    route(h, work, list)
    assert.same({ "d1" }, bodies(h, "direct"))
    assert.same({ "d2" }, bodies(h, "unroutable"))
    assert.same({ "w1" }, bodies(h, "star"))
    assert.same({ "w1", "w2", "w3" }, bodies(h, "hash"))
    assert.same({ "f1" }, bodies(h, "one"))
    assert.same({ "f1" }, bodies(h, "two"))
    assert.same({ "h1" }, bodies(h, "every"))
    assert.same({ "h1", "h2" }, bodies(h, "some"))
    assert.same({ "h3" }, bodies(h, "real"))
    local left, right = #bodies(h, "left"), #bodies(h, "right")
    assert.equal(60, left + right)
    assert.is_true(left > 5 and right > 5, left .. " and " .. right)
    assert.same({}, h:dead())
  end)

  it("a missing exchange is an error of those who publish to it, and of nobody else", function()
    local h = new()
    h:start {
      settings = "concurrency = 8, retry = { attempts = 1 },",
      more = [[mw.pipeline "q" { from = broker:channel "other", retry = { attempts = 1 }, handler = function(msg)
        mw.publish(broker:exchange "nonesuch", "x", { routing_key = msg.id })
      end }]],
      handler = [[function M.handle(msg) mw.publish("out", msg.body, { id = msg.id }) trace("done", msg) end]],
    }
    local list, bad = {}, {}
    for i = 1, 300 do list[i] = { "x", id = "m" .. i } end
    for i = 1, 20 do bad[i] = { "x", id = "b" .. i } end
    h:publish("other", bad)
    h:publish(list)
    h:wait_settled("in", 30)
    h:wait_settled("other", 30)
    assert.equal(300, #h.broker:messages "out")
    assert.equal(0, #h:dead())
    local letters = h.broker:messages "other.dead"
    assert.equal(20, #letters)
    assert.matches('exchange "nonesuch": NOT_FOUND', letters[1].headers["mw-dead-last-error"])
  end)

  it("a plan says what AMQP cannot tell of bindings, and what is certainly missing", function()
    local h = new()
    local work = project [[
broker:topology { exchanges = { e = {} }, queues = { q = {} },
                  bindings = { { exchange = "e", queue = "q", key = "#" } } }
]]
    local before, planned = topology(h, work, "plan")
    assert.equal(1, planned.code)
    assert.equal("missing", before["e -> q (#)"].state)
    topology(h, work, "apply")
    local after
    after, planned = topology(h, work, "plan")
    assert.equal(0, planned.code)
    assert.equal("unchecked", after["e -> q (#)"].state)
    assert.matches("AMQP cannot tell whether it is there; apply makes it", after["e -> q (#)"].note)
    assert.equal("present", topology(h, work, "apply")["e -> q (#)"].state)
    assert.matches("declare=passive", topology(h, work, "plan", "&declare=passive").q.note)
  end)

  it("tells when a queue is not as its channel says, and does not read it where the order hangs on it", function()
    local h = new()
    h:publish("one", { { "x", id = "m1" } }) -- makes it, a classic one
    h:publish("limited", { { "x", id = "m1" } })
    local worker = h:start {
      more = [[
        mw.pipeline "ordered" { from = broker:channel("one", { type = "quorum", single_active = true }), order = "key",
          handler = function() mw.log.error "READ" end }
        mw.pipeline "any" { from = broker:channel("limited", { max_length = 5 }), handler = "handlers.p" }]],
      handler = [[function M.handle(msg) trace("done", msg) end]],
    }
    h:wait_for("done", 1)
    h:wait(function() return worker.child:stderr():find("not reading it", 1, true) end, 20, "the refusal")
    h:stay(1)
    local log = worker.child:stderr()
    assert.matches("level=error[^\n]*the order needs that[^\n]*queue=one[^\n]*PRECONDITION_FAILED", log)
    assert.matches("level=warn[^\n]*used as it is[^\n]*queue=limited[^\n]*x%-max%-length", log)
    assert.is_nil(log:find("READ", 1, true))
    assert.equal(1, #h.broker:messages "one")
  end)

  it("does not complain about what a channel leaves to the topology", function()
    local h = new()
    local text = [[
broker:topology { queues = { certain = { type = "quorum", single_active = true, delivery_limit = 7,
                                         max_length = 1000 } } }
mw.pipeline "certain" { from = broker:channel("certain", { type = "quorum", single_active = true }), order = "key",
                        handler = "handlers.p" }]]
    topology(h, project(text:gsub('"handlers.p"', "function() end")), "apply")
    local worker = h:start { more = text, handler = [[function M.handle(msg) trace("done", msg) end]] }
    h:publish("certain", { { "x", id = "m1" } })
    h:wait_for("done", 1, 20)
    assert.is_nil(worker.child:stderr():find("not as declared", 1, true))
  end)

  it("reads an exclusive queue, that goes with its connection", function()
    local h = new()
    h:start { handler = [[function M.handle(msg) trace("done", msg) end]],
              more = [[mw.pipeline "e" { from = broker:channel("mine", { exclusive = true, durable = false }),
                handler = "handlers.p" }]] }
    h:wait(function() return server:queue_exists(h.vhost, "mine") end, 20, "the queue")
    h:publish("mine", { { "x", id = "m1" } })
    h:wait_for("done", 1)
    server:close_connections()
    h:wait(function() return server:queue_exists(h.vhost, "mine") end, 20, "the queue, again")
    h:publish("mine", { { "x", id = "m2" } })
    h:wait_for("done", 2)
    h:stop()
    h:wait(function() return not server:queue_exists(h.vhost, "mine") end, 20, "the end of the queue")
  end)

  it("refuses a publish to a full queue, and says so", function()
    local h = new()
    local work = project [[broker:topology { queues = { full = { max_length = 2, overflow = "reject-publish" } } }]]
    topology(h, work, "apply")
    local codes, last = {}, nil
    for i = 1, 4 do
      last = process.run { cli.binary, "publish", "--broker", h.url, "full", "x" }
      codes[i] = last.code
    end
    assert.same({ 0, 0, 69, 69 }, codes)
    assert.matches("did not take the message: its queue is full", last.stderr)
  end)

  it("lets the broker give up a message by its own delivery limit and dead letters", function()
    local h = new()
    local work = project [[
broker:topology { exchanges = { over = { type = "fanout" } }, bindings = { { exchange = "over", queue = "given.up" } },
  queues = { ["given.up"] = {}, poison = { type = "quorum", delivery_limit = 2, dead_exchange = "over" } } }]]
    local _, applied = topology(h, work, "apply")
    assert.equal(0, applied.code, applied.stdout)
    h:publish("poison", { { "x", id = "m1", headers = { mine = "yes" } } })
    local given = { handler = [[function M.handle(msg) trace("begin", msg) mw.sleep(60) end]],
                    more = [[mw.pipeline "q" { from = broker:channel("poison", { type = "quorum", delivery_limit = 2,
                      dead_exchange = "over" }), order = "none", timeout = 90, handler = "handlers.p" }]] }
    for i = 1, 3 do
      h:start(given)
      h:wait_for("begin", i, 30)
      h:kill()
    end
    h:wait(function() return #h.broker:messages "given.up" == 1 end, 30, "the broker to give it up")
    local letter = h.broker:messages("given.up")[1]
    assert.equal("m1", letter.id)
    assert.equal("yes", letter.headers.mine)
    assert.matches('"reason":"delivery_limit"', letter.headers["x-death"])
  end)

  it("works for a user who may not declare", function()
    local h = new()
    h:publish { { "x", id = "m0" } }
    h:publish("free", { { "x", id = "m0" } })
    h:publish("in.dead", { { "x", id = "m0" } })
    h:publish("free.dead", { { "x", id = "m0" } })
    server:eval(([[rabbit_auth_backend_internal:set_permissions(<<"reader">>, <<%q>>, <<"">>, <<".*">>, <<".*">>,
      <<"spec">>)]]):format(h.vhost))
    local url = h.url
    h.url = url:gsub("guest:guest", "reader:reader") .. "&declare=passive"
    local worker = h:start {
      settings = "retry = { attempts = 3, base = 0.05 },",
      more = [[mw.pipeline "free" { from = broker:channel "free", order = "none", retry = { attempts = 3, base = 0.05 },
        handler = "handlers.p" }
        mw.pipeline "later" { from = broker:channel "later", handler = "handlers.p" }]],
      handler = [[function M.handle(msg) trace("try", msg) error("no", 0) end]],
    }
    h:wait(function() return #h.broker:messages "in.dead" == 2 and #h.broker:messages "free.dead" == 2 end, 20,
      "the dead letters")
    assert.equal(6, h.trace:count "try")
    assert.matches("there is no such queue; waiting for it[^\n]*queue=later", worker.child:stderr())
    h:publish("later", { { "x", id = "m1" } }) -- by somebody who may
    h:wait_for("try", 7)
    h:stop()
    local letter = h.broker:messages("free.dead")[2]
    assert.equal("3", letter.headers["mw-dead-attempts"])
    h.url = url
  end)

  it("finds the host that answers, and frames of the smallest size carry everything", function()
    local h = new()
    local url = h.url:gsub("@", "@127.0.0.1:" .. process.free_port() .. ",") .. "&frame_max=4096"
    local body = ("x"):rep(1e6)
    local result = process.run { { cli.binary, "publish", "--broker", url, "in", "-", "--quiet" }, stdin = body,
                                 timeout = 30 }
    assert.equal(0, result.code, result.stderr)
    assert.is_true(h.broker:messages("in")[1].body == body)
    result = process.run { cli.binary, "publish", "--broker", url, "in", "x", "--header", "h=" .. ("y"):rep(5000) }
    assert.equal(1, result.code)
    assert.matches("frame_max", result.stderr)
  end)
end)
