-- What is Kafka's own: properties, where a group begins, retry topics, what a dead letter tells, compression, TLS and
-- SASL, and the commands on a Kafka broker. What every broker must keep is in spec/contract.
local C = require "moonwire.internal.cdef"
local broker = require "spec.support.broker"
local client = require "spec.support.servers.kafka_client"
local driver = require "spec.contract.kafka"
local clock = require "spec.support.wait"
local harness = require "spec.support.harness"
local json = require "moonwire.json"
local kafka = require "spec.support.servers.kafka"
local process = require "spec.support.process"

local binary = os.getenv "MOONWIRE_BIN"
local real = not kafka.shared().mock

C.mw_log_setup(0, 9)

local function new(case)
  local h = harness.new(driver, case)
  finally(function() h:close() end)
  return h
end

local DONE = [[function M.handle(msg) trace("done", msg) end]]

local function ids(list)
  local names = {}
  for i, x in ipairs(list) do names[i] = x.id end
  table.sort(names)
  return names
end

describe("a Kafka URL", function()
  local function problem(url)
    local ok, err = pcall(broker.open, url)
    assert.is_false(ok, url)
    return err
  end

  it("takes librdkafka's properties, and names the nearest right one", function()
    assert.matches('unknown property "sesion.timeout.ms" in the URL; did you mean "session.timeout.ms"?',
      problem "kafka://127.0.0.1:1/?sesion.timeout.ms=6000", 1, true)
    assert.matches('did you mean "message.timeout.ms"?', problem "kafka://127.0.0.1:1/?mesage.timeout.ms=1", 1, true)
    assert.matches('unknown property "colour" in the URL', problem "kafka://127.0.0.1:1/?colour=red", 1, true)
    assert.matches("session.timeout.ms", problem "kafka://127.0.0.1:1/?session.timeout.ms=soon", 1, true)
    assert.matches("acks", problem "kafka://127.0.0.1:1/?acks=1", 1, true) -- idempotence needs all
  end)

  it("tells which values there are, and what contradicts itself", function()
    assert.matches("compression.type in the URL: it can be none, gzip, snappy, lz4 or zstd, not \"brotli\"",
      problem "kafka://127.0.0.1:1/?compression.type=brotli", 1, true)
    assert.matches("it can be random, consistent,", problem "kafka://127.0.0.1:1/?partitioner=md5", 1, true)
    assert.matches("it can be read_committed or", problem "kafka://127.0.0.1:1/?isolation.level=dirty", 1, true)
    assert.matches("it can be plaintext, ssl,", problem "kafka://127.0.0.1:1/?security.protocol=tls", 1, true)
    assert.matches("receive.message.max.bytes", problem "kafka://127.0.0.1:1/?receive.message.max.bytes=1000", 1, true)
    assert.matches("same protocol type",
      problem "kafka://127.0.0.1:1/?partition.assignment.strategy=range,cooperative-sticky", 1, true)
    assert.matches("acks cannot be 0", problem "kafka://127.0.0.1:1/?enable.idempotence=false&acks=0", 1, true)
    -- settings that librdkafka would leave aside in silence
    assert.matches("sasl.mechanisms has no effect with security.protocol=plaintext: set that to sasl_plaintext or "
      .. "sasl_ssl", problem "kafka://127.0.0.1:1/?sasl.mechanisms=PLAIN", 1, true)
    assert.matches("ssl.ca.location has no effect with security.protocol=sasl_plaintext: set that to sasl_ssl",
      problem "kafka://me:secret@127.0.0.1:1/?ssl.ca.location=/ca.pem", 1, true)
    broker.open "kafka://127.0.0.1:1/fine?partition.assignment.strategy=cooperative-sticky&max.poll.interval.ms=9000"
  end)

  it("is checked by `moonwire check`, with file and line", function()
    local dir = process.tmpdir()
    local file = assert(io.open(dir .. "/moonwire.lua", "w"))
    file:write [[
local mw = require "moonwire"
local broker = mw.connect("kafka://127.0.0.1:1/", { ["compresion.type"] = "lz4" })
mw.pipeline "p" { from = broker:channel "in", handler = "log" }
]]
    file:close()
    local ran = process.run { binary, "check", dir }
    assert.equal(78, ran.code)
    assert.matches('moonwire.lua:2: mw.connect: unknown property "compresion.type" in the URL; did you mean '
      .. '"compression.type"?', ran.stdout .. ran.stderr, 1, true)
    ran = process.run { binary, "publish", "in", "x", "--broker", "kafka://127.0.0.1:1/?group.protocol=consumer" }
    assert.equal(64, ran.code)
    assert.matches("group.protocol cannot be set in the URL", ran.stderr, 1, true)
  end)

  it("leaves to the driver what its promises rest on", function()
    for _, name in ipairs { "enable.auto.commit", "group.id", "auto.offset.reset", "transactional.id", "group.protocol",
                            "delivery.report.only.error", "test.mock.num.brokers", "queuing.strategy" } do
      assert.matches("property " .. name .. " cannot be set in the URL",
        problem("kafka://127.0.0.1:1/?" .. name .. "=x"), 1, true)
    end
    assert.matches("no host", problem "kafka:", 1, true)
    assert.matches('"99999" is no port of "127.0.0.1": expected 1 to 65535',
      problem "kafka://127.0.0.1:99999/", 1, true)
    assert.matches('"abc" is no port of "b"', problem "kafka://a:1,b:abc/", 1, true)
    assert.matches("empty host name", problem "kafka://a:1,,b:2/", 1, true)
    assert.matches("IPv6 address is written in brackets", problem "kafka://::1:9092/", 1, true)
    assert.matches("letters, digits", problem "kafka://127.0.0.1:1/a/b", 1, true)
    assert.matches('it can be "spring"', problem "kafka://127.0.0.1:1/?dead.headers=summer", 1, true)
  end)

  it("shows no password", function()
    local b = broker.open "kafka://me:secret@127.0.0.1:1/x?security.protocol=sasl_ssl&ssl.key.password=hidden"
    local shown = require("ffi").string(C.mw_link_url(b.link))
    assert.equal("kafka://me@127.0.0.1:1/x?security.protocol=sasl_ssl&ssl.key.password=", shown)
  end)
end)

describe("a pipeline on Kafka", function()
  -- What `moonwire check` says about it; "" when it is content.
  local function check(settings, options)
    local dir = process.tmpdir()
    local file = assert(io.open(dir .. "/moonwire.lua", "w"))
    file:write(([[
local mw = require "moonwire"
local broker = mw.connect("kafka://127.0.0.1:1/?%s")
mw.pipeline "p" { from = broker:channel "in", handler = function() end, %s }
]]):format(options or "", settings))
    file:close()
    local ran = process.run { binary, "check", dir }
    assert.equal(ran.code == 0 and 0 or 78, ran.code, ran.stderr)
    return ran.code == 0 and "" or ran.stdout .. ran.stderr
  end

  it("refuses to publish with a delay, which Kafka cannot keep", function()
    local h = new { name = "delay", partitions = 1 }
    h:start { settings = "retry = { attempts = 1 },", handler = [[
      function M.handle(msg) mw.publish("out", "x", { delay = 60, now = msg.id == "now" }) end]] }
    h:publish { { "x", id = "later" }, { "x", id = "now" } }
    h:wait(function() return #h:dead() == 2 end, 20, "the dead letters")
    for _, letter in ipairs(h:dead()) do
      assert.matches("mw%.publish: delay: this broker cannot hold messages back", letter.headers["mw-dead-last-error"])
    end
    assert.equal(0, #h:messages "out")
  end)

  it("has so many retry topics, and their delays rise", function()
    local delays = {}
    for i = 1, 32 do delays[i] = i end
    local all = table.concat(delays, ", ")
    assert.equal("", check(("retry = { topics = { %s }, classes = { busy = { topics = { 5, 6 } } } }"):format(all)))
    assert.matches("moonwire.lua:3: .*retry.topics: 33 different delays, with those of its classes; a pipeline has at "
      .. "most 32", check(("retry = { topics = { %s }, classes = { busy = { topics = { 33 } } } }"):format(all)))
    assert.matches("retry.topics must list 1 to 32 delays", check(("retry = { topics = { %s, 33 } }"):format(all)))
    for _, list in ipairs { "1, 1", "5, 1", "1, 1.0001" } do
      assert.matches("retry.topics must rise from one attempt to the next",
        check(("retry = { topics = { %s } }"):format(list)), 1, true)
    end
    assert.matches("retry.classes.busy.topics must rise",
      check "retry = { classes = { busy = { topics = { 2, 1 } } } }", 1, true)
  end)

  it("cannot promise the order of a partition and give it up by retry topics", function()
    assert.matches('retry.topics gives up the order that order = "source" promises',
      check [[order = "source", retry = { topics = { 1 } }]], 1, true)
    assert.equal("", check [[order = "key", retry = { topics = { 1 } }]])
  end)

  it("is exactly once only with properties that allow it", function()
    local function refused(options, why)
      local said = check("exactly_once = true", options)
      assert.matches("moonwire.lua:3: .*exactly_once", said)
      assert.matches(why, said, 1, true)
      assert.equal("", check("exactly_once = false", options))
    end
    assert.equal("", check "exactly_once = true")
    assert.equal("", check("exactly_once = true", "transaction.timeout.ms=60000&acks=all"))
    refused("enable.idempotence=false", "enable.idempotence")
    refused("isolation.level=read_uncommitted", "needs isolation.level=read_committed")
    refused("message.timeout.ms=60000", "transaction.timeout.ms")
    refused("enable.idempotence=false&acks=1", "enable.idempotence")
    refused("enable.idempotence=false&max.in.flight.requests.per.connection=20", "enable.idempotence")
  end)

  it("has times that go together", function()
    assert.matches("heartbeat.interval.ms=6000 must be less than session.timeout.ms (6000 ms)",
      check("", "session.timeout.ms=6000&heartbeat.interval.ms=6000"), 1, true)
    assert.matches("heartbeat.interval.ms=6000 must be less than the pipeline's lease (5000 ms)",
      check("lease = 5", "heartbeat.interval.ms=6000"), 1, true)
    assert.matches("max.poll.interval.ms=9000 must not be less than the pipeline's lease (10000 ms)",
      check("lease = 10", "max.poll.interval.ms=9000"), 1, true)
    assert.equal("", check("lease = 10", "max.poll.interval.ms=10000&heartbeat.interval.ms=2000"))
  end)
end)

describe("kafka", function()
  if not real then
    it("needs a real broker", function() pending "no Kafka broker here" end)
    return
  end

  it("begins a new group at a time or an offset", function()
    local h = new { name = "start", partitions = 1 }
    for i = 1, 5 do h:publish { { "x", id = "m" .. i } } end
    h:stay(0.05)
    local time = require("moonwire").now()
    h:stay(0.05)
    for i = 6, 9 do h:publish { { "x", id = "m" .. i } } end
    h:start { settings = ("start = { time = %.3f }, group = 'by-time',"):format(time), handler = DONE }
    h:wait_for("done", 4)
    h:stop()
    assert.same({ "m6", "m7", "m8", "m9" }, ids(h.trace:of "done"))
    h:start { settings = "start = { offset = 7 }, group = 'by-offset',", handler = [[
      function M.handle(msg) trace("offset", msg) end]] }
    h:wait_for("offset", 2)
    h:stop()
    assert.same({ "m8", "m9" }, ids(h.trace:of "offset"))
  end)

  it("retries through topics: each attempt after its delay, other messages of the key go on", function()
    local h = new { name = "tiers", partitions = 2, options = "&dead.headers=spring",
                    topics = { ["in.retry.300ms"] = 1, ["in.retry.1s"] = 1 } }
    h:publish { { "x", id = "before", key = "a" } } -- so that the place of the next one is not the first
    h:start { settings = "retry = { topics = { 0.3, 1 } },", handler = [[
      function M.handle(msg)
        trace("try", msg)
        if msg.id == "bad" then error("no " .. msg.attempt, 0) end
        trace("done", msg)
      end]] }
    h:publish { { "x", id = "bad", key = "a", headers = { mine = "1" } }, { "x", id = "good", key = "a" } }
    h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
    local tries = {}
    for _, line in ipairs(h.trace:of "try") do if line.id == "bad" then tries[#tries + 1] = line end end
    assert.equal(3, #tries)
    for i, line in ipairs(tries) do assert.equal(i, line.attempt) end
    local first, second = tries[2].time - tries[1].time, tries[3].time - tries[2].time
    assert.is_true(first >= 0.29 and first < 0.3 + 1 * h.late, "first after " .. first)
    assert.is_true(second >= 0.99 and second < 1 + 1 * h.late, "second after " .. second)
    local good = h.trace:of "done"
    assert.equal("good", good[2].id)
    assert.is_true(good[2].time < tries[2].time)
    local letter = h:dead()[1]
    assert.equal("3", letter.headers["mw-dead-attempts"])
    assert.equal("no 1", letter.headers["mw-dead-first-error"])
    assert.equal("no 3", letter.headers["mw-dead-last-error"])
    assert.equal("in", letter.headers["mw-dead-channel"])
    assert.equal(h.prefix .. "in", letter.headers["mw-dead-topic"]) -- where it stood first, not the retry topic
    assert.equal("1", letter.headers["mw-dead-offset"])
    assert.equal(h.prefix .. "in", letter.headers["kafka_dlt-original-topic"])
    assert.equal("\0\0\0\0\0\0\0\1", letter.headers["kafka_dlt-original-offset"])
    assert.equal("1", letter.headers.mine)
    for name in pairs(letter.headers) do assert.is_nil(name:match "^mw%-retry%-") end
    h:wait_settled "in"
  end)

  it("has retry topics for each class of errors", function()
    local h = new { name = "tiers-class", partitions = 1,
                    topics = { ["in.retry.200ms"] = 1, ["in.retry.700ms"] = 1, ["in.retry.900ms"] = 1 } }
    h:start { settings = "retry = { topics = { 0.2 }, classes = { busy = { topics = { 0.7, 0.9 } } } },", handler = [[
      function M.handle(msg)
        trace("try", msg)
        if msg.id == "held" and msg.attempt == 1 then return mw.retry { after = 0.1 } end
        if msg.id == "busy" then error(mw.error("busy", "full")) end
        if msg.id == "plain" then error("no", 0) end
      end]] }
    h:publish { { "x", id = "busy" }, { "x", id = "plain" }, { "x", id = "held" } }
    h:wait(function() return #h:dead() == 2 end, 20, "the dead letters")
    local times = {}
    for _, line in ipairs(h.trace:of "try") do
      times[line.id] = times[line.id] or {}
      table.insert(times[line.id], line.time)
    end
    assert.same({ 3, 2, 2 }, { #times.busy, #times.plain, #times.held })
    local waited = { times.busy[2] - times.busy[1], times.busy[3] - times.busy[2], times.plain[2] - times.plain[1] }
    for i, least in ipairs { 0.69, 0.89, 0.19 } do assert.is_true(waited[i] >= least, waited[i] .. " < " .. least) end
    assert.equal(1, #h:messages "in.retry.200ms")
    assert.equal(1, #h:messages "in.retry.700ms")
    assert.equal(1, #h:messages "in.retry.900ms")
  end)

  it("leaves the failures of other groups to them", function()
    local h = new { name = "tiers-groups", partitions = 1, topics = { ["in.retry.200ms"] = 1 } }
    local project = require "spec.support.project"
    h:start { settings = "retry = { topics = { 0.2 } },", handler = [[
      function M.handle(msg)
        trace("mine", msg)
        if msg.attempt == 1 then error("once", 0) end
      end]] }
    local other = h.dir .. "/other"
    local trace = project.trace(h.dir .. "/other-trace")
    project.make(other, { settings = 'group = "q", retry = { topics = { 0.2 } },', handler = [[
      function M.handle(msg) trace("theirs", msg) end]] }, trace.path)
    local child = process.spawn { { binary, "run", other }, env = { BROKER_URL = h.url } }
    h:publish { { "x", id = "m1" } }
    h:wait_for("mine", 2, 20)
    h:wait(function() return trace:count "theirs" == 1 end, 20, "the other group")
    h:stay(1)
    assert.equal(2, h.trace:count "mine")
    assert.equal(1, trace:count "theirs")
    assert.equal(0, child:stop(20))
  end)

  it("keeps what waits in a retry topic through a crash", function()
    local h = new { name = "tiers-crash", partitions = 1, topics = { ["in.retry.2s"] = 1 } }
    h:start { settings = "retry = { topics = { 2 } },", handler = [[
      function M.handle(msg)
        trace("try", msg)
        if msg.attempt == 1 then error("once", 0) end
      end]] }
    h:publish { { "x", id = "m1" } }
    h:wait_for("try", 1)
    h:wait_settled "in"
    h:kill()
    h:start()
    h:wait_for("try", 2, 20)
    assert.equal(2, h.trace:of("try")[2].attempt)
    assert.is_true(h.trace:of("try")[2].time - h.trace:of("try")[1].time >= 1.99)
    assert.equal(0, #h:dead())
  end)

  it("reads the retry topics of every class, more than eight of them", function()
    local topics, delays = {}, {}
    for i = 1, 9 do
      topics[("in.retry.%dms"):format(i * 100)] = 1
      if i < 9 then delays[i] = i / 10 end
    end
    local h = new { name = "many-tiers", partitions = 1, topics = topics }
    local settings = "retry = { topics = { %s }, classes = { busy = { topics = { 0.9 } } } },"
    h:start { settings = settings:format(table.concat(delays, ", ")), handler = [[
      function M.handle(msg)
        trace("try", msg)
        if msg.attempt == 1 then return mw.retry { class = "busy", reason = "later" } end
        trace("done", msg)
      end]] }
    h:publish { { "x", id = "m1" } }
    h:wait_for("done", 1, 20)
    local tries = h.trace:of "try"
    assert.is_true(tries[2].time - tries[1].time >= 0.89)
  end)

  it("repeats the last delay of the retry topics when there are more attempts", function()
    local h = new { name = "tier-attempts", partitions = 1, topics = { ["in.retry.200ms"] = 1 } }
    h:start { settings = "retry = { topics = { 0.2 }, attempts = 4 },", handler = [[
      function M.handle(msg) trace("try", msg) error("no", 0) end]] }
    h:publish { { "x", id = "m1" } }
    h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
    assert.equal("4", h:dead()[1].headers["mw-dead-attempts"])
    assert.equal(4, h.trace:count "try")
  end)

  it("reads what waits in a retry topic whose delay is not configured any more, and says so", function()
    local h = new { name = "stranded", partitions = 2, topics = { ["in.retry.1s"] = 2, ["in.retry.2s"] = 1 } }
    local handler = [[
      function M.handle(msg)
        trace("try", msg)
        if msg.attempt == 1 then error("once", 0) end
        trace("done", msg)
      end]]
    h:start { settings = "retry = { topics = { 1, 2 } },", handler = handler }
    local list = {}
    for i = 1, 20 do list[i] = { "x", id = "m" .. i, key = "k" .. i } end
    h:publish(list)
    h:wait_for("try", 20)
    h:wait_settled "in"
    h:kill()
    client.create(h.server.bootstrap, { [h.prefix .. "in.retry.3s"] = { partitions = 1 } })
    h:publish("in.retry.3s", { { "x", id = "foreign" } }) -- this group was never there
    local worker = h:start { settings = "retry = { attempts = 2 },", handler = handler }
    h:wait_for("done", 20, 30)
    local log = worker.child:stderr()
    assert.matches("no delay of `retry.topics` names any more still has messages; reading them, too[^\n]*"
      .. "topic=\"?" .. h.prefix:gsub("%p", "%%%0") .. "in.retry.1s\"?[^\n]*messages=20", log)
    assert.is_nil(log:find("retry.3s", 1, true))
    h:stop()
    for _, line in ipairs(h.trace:of "try") do assert.is_true(line.attempt <= 2) end
    worker = h:start() -- nothing is left there
    h:publish { { "x", id = "last" } }
    h:wait_for("try", 41)
    h:stay(1)
    assert.is_nil(worker.child:stderr():find("reading them", 1, true))
    assert.equal(0, #h:dead())
  end)

  it("tells where a dead letter stood, and on request as Spring does", function()
    local h = new { name = "spring", partitions = 1, options = "&dead.headers=spring" }
    h:publish { { "x", id = "first" }, { "y", id = "m2", key = "k" } }
    h:start { handler = [[function M.handle(msg) if msg.id == "m2" then return mw.reject "no stock" end end]] }
    h:wait(function() return #h:dead() == 1 end, 15, "the dead letter")
    local d = h:dead()[1].headers
    assert.equal(h.prefix .. "in", d["mw-dead-topic"])
    assert.equal("0", d["mw-dead-partition"])
    assert.equal("1", d["mw-dead-offset"])
    assert.equal(h.prefix .. "in", d["kafka_dlt-original-topic"])
    assert.equal("\0\0\0\0", d["kafka_dlt-original-partition"])
    assert.equal("\0\0\0\0\0\0\0\1", d["kafka_dlt-original-offset"])
    assert.equal(8, #d["kafka_dlt-original-timestamp"])
    assert.equal("no stock", d["kafka_dlt-exception-message"])
    assert.equal(h.prefix .. "p", d["kafka_dlt-original-consumer-group"])
  end)

  for _, codec in ipairs { "none", "gzip", "snappy", "lz4", "zstd" } do
    it("publishes and reads with compression " .. codec, function()
      local h = new { name = "codec", options = "&compression.type=" .. codec }
      local body = ("squeeze me "):rep(2000)
      h:publish { { body, id = "m1" } }
      assert.equal(body, h:messages("in")[1].body)
      if not real then return end
      local files = process.run { "sh", "-c", ("cat '%s'/data/'%sin'-*/*.log | wc -c"):format(h.server.dir, h.prefix) }
      local stored = tonumber(files.stdout)
      if codec == "none" then
        assert.is_true(stored >= #body, stored .. " bytes")
      else
        assert.is_true(stored > 0 and stored < #body / 4, stored .. " bytes of " .. #body)
      end
    end)
  end

  -- The numbers are those of Kafka's own tests of its murmur2.
  it("puts keys where Java's clients put them, on request", function()
    local h = new { name = "partitioner", options = "&partitioner=murmur2_random" }
    local hashes = { ["21"] = -973932308, foobar = -790332482, ["a-little-bit-long-string"] = -985981536,
                     ["a-little-bit-longer-string"] = -1486304829, abc = 479470107 }
    for key in pairs(hashes) do h:publish { { "x", id = key, key = key } } end
    local found = 0
    for _, m in ipairs(h:messages "in") do
      found = found + 1
      local partition = tonumber(tostring(m.position):match "^(%d+)%-" or 0)
      assert.equal(bit.band(hashes[m.key], 0x7fffffff) % h.partitions, partition, m.key)
    end
    assert.equal(5, found)
  end)

  it("keeps time and order of messages whose batch was too large", function()
    local h = new { name = "batch", topics = {
      small = { partitions = 1, config = { ["max.message.bytes"] = 2000 } } } }
    local list, before = {}, os.time() - 5
    for i = 1, 200 do list[i] = { ("y"):rep(400), id = "m" .. i, key = "k" } end
    h.broker:publish("small", list)
    local found = h:messages "small"
    assert.equal(200, #found)
    for i, m in ipairs(found) do
      assert.equal("m" .. i, m.id)
      assert.is_true(m.time >= before, "its time is " .. tostring(m.time))
    end
  end)

  it("counts a queue that is full as no failure", function()
    local h = new { name = "full", partitions = 1, options = "&queue.buffering.max.messages=50" }
    local list = {}
    for i = 1, 2000 do list[i] = { "x", id = "m" .. i } end
    h:publish(list)
    local found = h:messages "in"
    assert.equal(2000, #found)
    for i, m in ipairs(found) do assert.equal("m" .. i, m.id) end
  end)

  it("gives every message its own id and headers, however late they are asked for", function()
    local h = new { name = "late", partitions = 1 }
    local list = {}
    for i = 1, 60 do -- the later ones have large headers
      list[i] = { "x", id = "m" .. i, key = "k" .. i,
                  headers = { mine = "v" .. i, long = i > 30 and ("l"):rep(3000) or "" } }
    end
    h:publish(list)
    h:start { settings = "concurrency = 100,", handler = [[
      function M.handle(msg)
        if tonumber(msg.key:match "%d+") % 2 == 0 then mw.sleep(2.5) end -- long enough to be read by itself
        mw.publish("out", msg:header "mine", { id = msg.id, headers = { long = tostring(#msg:header "long") } })
      end]] }
    h:wait(function() return #h:messages "out" == 60 end, 30, "all of them")
    local seen = {}
    for _, m in ipairs(h:messages "out") do
      local i = tonumber(m.id:match "^m(%d+)$")
      assert.equal("v" .. i, m.body)
      assert.equal(i > 30 and "3000" or "0", m.headers.long)
      seen[i] = true
    end
    assert.equal(60, #seen)
  end)

  it("is told of a tombstone, and passes it on", function()
    local h = new { name = "tombstone", partitions = 1 }
    h:start { handler = [[
      function M.handle(msg)
        local tombstone = msg:header "mw-tombstone"
        mw.publish("out", msg.body, { id = "t", key = msg.key, headers = { ["mw-tombstone"] = tombstone } })
      end]] }
    h:publish { { "", id = "m1", key = "k", headers = { ["mw-tombstone"] = "1" } }, { "", id = "m2", key = "k" } }
    h:wait(function() return #h:messages "out" == 2 end, 15, "both")
    local out = h:messages "out"
    assert.equal("1", out[1].headers["mw-tombstone"])
    assert.is_nil(out[2].headers["mw-tombstone"])
  end)

  it("explains where a message stands: handled, not fetched, waiting in a retry topic, running", function()
    local h = new { name = "explain", partitions = 1, topics = { ["in.retry.60s"] = 1 } }
    local settings = "concurrency = 1, buffer = { count = 1 }, retry = { topics = { 60 } },"
    local worker = h:start { settings = settings, handler = [[
      function M.handle(msg)
        trace("begin", msg)
        if msg.id == "fails" then error("no stock", 0) end
        if msg.id == "slow" then mw.sleep(20) end
      end]] }
    local function says(what, pattern)
      local ran = process.run { { binary, "explain", what, worker.dir }, env = { BROKER_URL = h.url }, timeout = 30 }
      assert.matches(pattern, ran.stdout .. ran.stderr)
    end
    h:publish { { "x", id = "done" }, { "x", id = "fails" }, { "x", id = "slow" } }
    h:wait_for("begin", 3, 20)
    h:publish { { "x", id = "later-1" }, { "x", id = "later-2" } }
    says("done", "Message done is on channel in: this pipeline has settled it")
    says("fails", "Message fails is on channel in%.retry%.60s: it waits here for attempt 2 until .* error: no stock")
    says("slow", "Message slow is in pipeline p .*a handler has had it")
    says("later-2", "Message later%-2 is on channel in: it is ready, and no process has fetched it yet")
    h:kill()
  end)

  it("shows its commands: publish, tail, dlq, status, topology", function()
    local h = new { name = "cli", partitions = 3 }
    local function moonwire(...)
      local ran = process.run { { binary, ... }, env = { BROKER_URL = h.url }, timeout = 30 * h.late }
      return ran.code, ran.stdout, ran.stderr
    end
    for i = 1, 6 do
      assert.equal(0, moonwire("publish", "in", ('{"n":%d}'):format(i), "--id", "m" .. i, "--key", "k" .. i))
    end
    local code, text = moonwire("tail", "in", "--no-follow", "--json")
    assert.equal(0, code)
    local _, lines = text:gsub("\n", "")
    assert.equal(6, lines)
    local tail = process.spawn { { binary, "tail", "out", "--count", "2" }, env = { BROKER_URL = h.url } }
    h:wait(function() -- it follows every partition from where it stood
      h:publish("out", { { "news", id = "n" .. math.random(1e9), key = "k" .. math.random(100) } })
      h:stay(0.1)
      return not tail:alive()
    end, 20, "tail to print two messages")
    assert.equal(0, tail.code)
    local worker = h:start { handler = [[
      function M.handle(msg)
        if msg.id == "m2" or msg.id == "m5" then return mw.reject "bad number" end
        trace("done", msg)
      end]] }
    h:wait(function() return #h:dead() == 2 end, 15, "two dead letters")
    h:wait_settled "in"
    code, text = moonwire("status", worker.dir, "--json")
    assert.equal(0, code)
    assert.matches('"lag":0', text)
    assert.matches('"partitions":[{"behind":0,"lag":0,"name":"', text, 1, true)
    code, text = moonwire("dlq", "ls", "in.dead")
    assert.equal(0, code)
    assert.matches("m2", text)
    assert.matches("m5", text)
    h:stop()
    assert.equal(0, (moonwire("dlq", "replay", "in.dead", "m2")))
    code, text = moonwire("dlq", "ls", "in.dead")
    assert.equal(0, code)
    assert.is_nil(text:find "m2")
    assert.matches("m5", text)
    assert.equal(7, #h.broker:messages "in")
    assert.equal(0, (moonwire("dlq", "purge", "in.dead", "--yes")))
    assert.equal(0, #h:dead())
  end)

  it("tells how old the oldest message is that waits, of the pipeline and of each partition", function()
    local h = new { name = "age", partitions = 1 }
    local worker = h:start { settings = "concurrency = 1, buffer = { count = 1 }, timeout = 600,", handler = ([[
      function M.handle(msg)
        trace("begin", msg)
        if msg.id == "second" then mw.sleep(%g) end
      end]]):format(8 * h.late) }
    local at = {}
    local function publish(id)
      h:publish { { "x", id = id } }
      at[id] = clock.now()
    end
    local function assert_age(seconds, id)
      local age = clock.now() - at[id]
      assert.is_true(seconds > 0 and math.abs(seconds - age) < 0.7 * h.late, ("%g s, not %g"):format(seconds, age))
    end
    publish "first"
    h:wait_for("begin", 1)
    h:wait_settled "in"
    h:stay(3 * h.late)
    publish "second"
    h:wait_for("begin", 2)
    h:stay(2 * h.late)
    publish "third"
    h:stay(2 * h.late)
    publish "fourth"
    h:stay(0.5)
    local ran = process.run { { binary, "status", worker.dir, "--json" }, env = { BROKER_URL = h.url } }
    local p = json.decode(ran.stdout).pipelines[1]
    assert_age(p.oldest, "second")
    assert.equal(2, p.lag)
    assert.equal(2, p.partitions[1].lag)
    assert_age(p.partitions[1].behind, "third")
    h:wait_for("begin", 4, 20) -- what was looked at comes, too
    h:wait_settled "in"
    local order = {}
    for i, line in ipairs(h.trace:of "begin") do order[i] = line.id end
    assert.same({ "first", "second", "third", "fourth" }, order)
  end)

  it("plans and applies topics", function()
    local h = new { name = "topology" }
    local dir = h.dir .. "/project"
    process.run { "mkdir", "-p", dir }
    local function write(topics)
      local file = assert(io.open(dir .. "/moonwire.lua", "w"))
      file:write(([[
local mw = require "moonwire"
local broker = mw.connect(mw.env "BROKER_URL")
broker:topology { topics = { %s } }
mw.pipeline "p" { from = broker:channel "in", handler = function() end }
]]):format(topics))
      file:close()
    end
    local function moonwire(...)
      local ran = process.run { { binary, "topology", ... }, env = { BROKER_URL = h.url }, timeout = 30 * h.late }
      return ran.code, ran.stdout .. ran.stderr
    end
    write "new = { partitions = 2, retention = 3600 }"
    local code, text = moonwire("plan", dir)
    assert.equal(1, code)
    assert.matches("new%s+missing", text)
    assert.is_nil(client.topics(h.server.bootstrap)[h.prefix .. "new"])
    code, text = moonwire("apply", dir)
    assert.equal(0, code)
    assert.matches("new%s+created", text)
    h:wait(function() return client.topics(h.server.bootstrap)[h.prefix .. "new"] == 2 end, 10, "the topic")
    assert.equal(0, (moonwire("plan", dir)))
    write "new = { partitions = 4, retention = 60 }"
    code, text = moonwire("plan", dir, "--json")
    assert.equal(1, code)
    assert.matches('"field":"partitions","found":"2","wanted":"4"', text, 1, true)
    code, text = moonwire("apply", dir)
    assert.equal(1, code)
    assert.matches("--force", text, 1, true)
    assert.equal(0, (moonwire("apply", dir, "--force")))
    h:wait(function() return client.topics(h.server.bootstrap)[h.prefix .. "new"] == 4 end, 10, "more partitions")
    assert.equal(0, (moonwire("plan", dir)))
    write "new = { partitions = 1 }"
    code, text = moonwire("apply", dir)
    assert.equal(1, code)
    assert.matches("cannot make them fewer", text)
    write "new = {}" -- as many as there are
    assert.equal(0, (moonwire("plan", dir)))
    local replicas = {} -- a value of any length goes there and back
    for i = 1, 100 do replicas[i] = i % 4 .. ":" .. i end
    local property = "leader.replication.throttled.replicas"
    write(("long = { config = { ['%s'] = '%s' } }"):format(property, table.concat(replicas, ",")))
    assert.equal(0, (moonwire("apply", dir)))
    h:wait(function() return (moonwire("plan", dir)) == 0 end, 10, "the long value to be the same")
    for given, problem in pairs {
      ["new = { retention = 60, config = { ['retention.ms'] = 5 } }"] =
        'topics.new: retention and config["retention.ms"] say the same thing: leave one out',
      ["['not this'] = {}"] = "is no name of a topic",
      ["new = { config = { x = {} } }"] = "topics.new: config must be a table of names and texts",
    } do
      write(given)
      code, text = moonwire("plan", dir)
      assert.equal(78, code)
      assert.matches(problem, text, 1, true)
    end
    write "new = { config = { ['max.message.bytes'] = 1e6, ['retention.msx'] = 1 } }" -- an unknown one
    code, text = moonwire("apply", dir)
    assert.equal(1, code)
    assert.matches("retention.msx: the broker knows no such property of a topic", text, 1, true)
    write "new = { compact = true }"
    assert.equal(0, (moonwire("apply", dir, "--force")))
    write "new = { compact = false }" -- deletes by age what was kept by key
    code, text = moonwire("apply", dir)
    assert.equal(1, code)
    assert.matches("cleanup.policy: this change makes the broker delete messages: say --force", text, 1, true)
    write "new = { partitons = 1 }"
    code, text = moonwire("plan", dir)
    assert.equal(78, code)
    local expected = 'moonwire.lua:3: topology: unknown field "topics.new.partitons"; did you mean "partitions"?'
    assert.matches(expected, text, 1, true)
  end)

  it("gives a static member its partitions back at once when it was killed", function()
    local h = new { name = "static", session = 40000, options = "&group.instance.id=one" }
    h:start { handler = DONE }
    h:publish { { "x", id = "m1" } }
    h:wait_for("done", 1, 20)
    h:wait_settled "in"
    h:kill()
    h:start()
    h:publish { { "x", id = "m2" } }
    h:wait_for("done", 2, 20) -- a new member would have to wait until the session of the dead one is over
    h:stop()
  end)

  -- A broker with a second door: TLS, and SASL with PLAIN or SCRAM.
  local function secure_server()
    local dir, port = process.tmpdir(), process.free_port()
    local function run(...)
      local ran = process.run { { ... }, cwd = dir, timeout = 60 }
      assert(ran.code == 0, ran.stdout .. ran.stderr)
    end
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", "key.pem", "-out",
      "ca.pem", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    run("openssl", "pkcs12", "-export", "-inkey", "key.pem", "-in", "ca.pem", "-out", "store.p12", "-passout",
      "pass:password")
    local plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_me="let me in";'
    local scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    local server = assert(kafka.new {
      secure = { port = port },
      scram = { "SCRAM-SHA-256=[name=me,password=let me in]", "SCRAM-SHA-512=[name=me,password=let me in]" },
      properties = table.concat({
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", "ssl.keystore.location=" .. dir .. "/store.p12",
        "ssl.keystore.password=password", "ssl.key.password=password", "ssl.keystore.type=PKCS12",
        "listener.name.sasl_ssl.plain.sasl.jaas.config=" .. plain,
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=" .. scram,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=" .. scram,
      }, "\n"),
    })
    return server, port, dir .. "/ca.pem"
  end

  it("speaks TLS and SASL: PLAIN and SCRAM, and says when the password is wrong", function()
    local server, port, ca = secure_server()
    finally(function() server:stop() end)
    client.create(server.bootstrap, { ["safe.in"] = { partitions = 1 } })
    local safe = "kafka://me:let%%20me%%20in@127.0.0.1:%d/safe.?security.protocol=sasl_ssl"
    for _, mechanism in ipairs { "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512" } do
      local b = broker.open(safe:format(port) .. "&ssl.ca.location=" .. ca .. "&sasl.mechanisms=" .. mechanism)
      b:publish("in", { { "hello", id = mechanism } })
      local found = b:messages "in"
      assert.equal(mechanism, found[#found].id)
    end
    local wrong = ("kafka://me:wrong@127.0.0.1:%d/safe.?security.protocol=sasl_ssl&ssl.ca.location=%s"):format(port, ca)
    local ran = process.run { { binary, "publish", "in", "x", "--broker", wrong .. "&message.timeout.ms=3000" },
                              timeout = 60 }
    assert.is_true(ran.code ~= 0)
    assert.matches("[Aa]uthentication", ran.stderr)
    local untrusted = safe:format(port) .. "&message.timeout.ms=3000"
    ran = process.run { { binary, "publish", "in", "x", "--broker", untrusted }, timeout = 60 }
    assert.is_true(ran.code ~= 0)
    assert.matches("certificate verify failed", ran.stderr)
    assert.is_nil(ran.stderr:find "let me in")
  end)
end)
