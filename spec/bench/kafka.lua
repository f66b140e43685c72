--- Kafka, on a real broker of its own: consuming and producing against librdkafka alone, and the table that the
--- Parallel Consumer publishes. One JSON object:
---   moonwire lua spec/bench/kafka.lua COUNT ROUNDS
local root = (arg[0]:match "^(.*)/spec/bench/" or ".")
package.path = root .. "/?.lua;" .. package.path
local bench = dofile(root .. "/spec/bench/bench.lua")
local C = require "moonwire.internal.cdef"
local client = require "spec.support.servers.kafka_client"
local ffi = require "ffi"
local json = require "moonwire.json"
local kafka = require "spec.support.servers.kafka"
local process = require "spec.support.process"
local wait = require "moonwire.internal.wait"
local F = bench.fill()

C.mw_log_setup(0, 3)
local count, rounds = tonumber(arg[1]), tonumber(arg[2])
local BODY, KEYS, AT_ONCE, A_TURN = 100, 1000, 50000, 1000

local server = kafka.new { properties = "log.flush.interval.messages=100000000" }
if not server then
  print(json.encode { skipped = "no Kafka broker here" })
  return
end
local at = server.bootstrap
client.create(at, { raw = { partitions = 4 }, ours = { partitions = 4 }, waits = { partitions = 1 } })

local function raw(...)
  local words = { bench.build .. "/bench/raw_kafka" }
  for _, word in ipairs { ... } do words[#words + 1] = tostring(word) end
  return json.decode(assert(bench.capture(table.concat(words, " "))))
end

local function project(channel, settings, handler)
  return ([[
local mw = require "moonwire"
local broker = mw.connect "kafka://%s"
mw.pipeline "bench" { from = broker:channel "%s", handler = function(msg) %s end, %s }
]]):format(at, channel, handler, settings)
end

local groups = 0

-- From the first message to the last one settled.
local function consume(channel, n, settings, handler)
  groups = groups + 1
  return bench.with_folder(function(folder)
    settings = ("group = 'bench-%d', %s"):format(groups, settings)
    bench.write(folder, { ["moonwire.lua"] = project(channel, settings, handler) })
    local app = bench.open(folder)
    bench.timed(function() return app:status()[1].received > 0 end)
    local wall, cpu = bench.timed(function() return app:idle() end)
    assert(app:status()[1].handled >= n, "not every message was handled")
    bench.close(app)
    return { wall = wall, cpu = cpu }
  end)
end

local function produce(channel, n)
  local failure = ffi.new "mw_failure"
  local link = C.mw_vm_link(wait.vm, "kafka://" .. at, failure)
  assert(link ~= nil and C.mw_vm_link_open(link, failure) == 0, ffi.string(failure.text))
  F.mw_bench_publish(link, channel, 1, KEYS, BODY, false) -- the producer exists by then, as in a running system
  bench.timed(function() return F.mw_bench_unconfirmed() == 0 end)
  local left = n
  local wall, cpu = bench.timed(function() -- made as they are sent, as handlers do, and by raw_kafka.c
    if left > 0 and F.mw_bench_unconfirmed() < AT_ONCE then
      local some = math.min(left, A_TURN)
      F.mw_bench_publish(link, channel, some, KEYS, BODY, false)
      left = left - some
    end
    return left == 0 and F.mw_bench_unconfirmed() == 0
  end)
  return { wall = wall, cpu = cpu }
end

local result = { messages = count, body = BODY, consume = {}, raw_consume = {}, produce = {}, raw_produce = {},
                 waits = {} }
raw("produce", at, "raw", count, BODY, KEYS)
for i = 1, rounds do
  result.raw_consume[i] = raw("consume", at, "raw", count, "raw-" .. i)
  result.consume[i] = consume("raw", count, "", "")
  result.raw_produce[i] = raw("produce", at, "ours", count, BODY, KEYS)
  result.produce[i] = produce("ours", count)
end
raw("produce", at, "waits", 10000, BODY, KEYS)
for i = 1, rounds do
  result.waits[i] = consume("waits", 10000, "concurrency = 100,", "mw.sleep(math.random() * 0.005)")
end
print(json.encode(result))
process.cleanup()
