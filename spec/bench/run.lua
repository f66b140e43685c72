--- Measures Moonwire against what it stands on, and says which targets it meets. docs/benchmarks.md tells what the
--- numbers mean.
---   moonwire lua spec/bench/run.lua [--json] [--quick] [--strict] [NAME…]
--- NAME: dispatch, embedded, memory, start, json, redis, rabbitmq, kafka; all of them when none is given. The exit code
--- is 1 when something could not be measured, and with --strict when a target was missed.
local bench = dofile((arg[0]:match "^(.*/)" or "./") .. "bench.lua")
local json = require "moonwire.json"

local here = arg[0]:match "^(.*/)" or "./"
local options, wanted = {}, {}
local NAMES = { "dispatch", "embedded", "memory", "start", "json", "redis", "rabbitmq", "kafka" }

local function usage(text)
  local names = table.concat(NAMES, "|")
  io.stderr:write("bench: ", text, "\nusage: run.lua [--json] [--quick] [--strict] [", names, "]...\n")
  os.exit(64)
end

for _, word in ipairs(arg) do
  local option = word:match "^%-%-(.+)"
  if option == "json" or option == "quick" or option == "strict" then
    options[option] = true
  elseif not option and (" " .. table.concat(NAMES, " ") .. " "):find(" " .. word .. " ", 1, true) then
    wanted[word] = true
  else
    usage("unknown argument: " .. word)
  end
end

local function note(text) io.stderr:write(text, "\n") end

local function build_tools()
  local ok, said = bench.capture(("cmake --build '%s' --target bench_tools"):format(bench.build))
  if not ok then
    note(said)
    error("the C side of the benchmarks does not build", 0)
  end
end

--- The JSON object that a script or tool prints.
local function run(command)
  local said, err = bench.capture(command)
  if not said then error(("%s\n%s"):format(command, err), 0) end
  return (assert(json.decode(said), command .. " said: " .. said))
end

local function script(name, ...)
  local words = { ("'%s' lua '%s%s.lua'"):format(bench.moonwire, here, name) }
  for _, word in ipairs { ... } do words[#words + 1] = ("'%s'"):format(tostring(word)) end
  return run(table.concat(words, " "))
end

-- ---- results ----

local LINE = "%-46s %11s %11s %11s %7s  %-16s %s"
local rows = {}

local function number(value)
  if value >= 1e6 then return ("%.2f M"):format(value / 1e6) end
  if value >= 1e4 then return ("%.0f k"):format(value / 1e3) end
  if value >= 100 then return ("%.0f"):format(value) end
  return ("%.2f"):format(value)
end

--- fields: group, name, unit, ours, wall (ours by the wall clock), baseline, ratio, target (text), ok (nil: no target)
local function add(fields)
  rows[#rows + 1] = fields
  if options.json then return end
  local ok = fields.ok == nil and "" or fields.ok and "ok" or "MISS"
  local function cell(value, unit) return value and number(value) .. unit or "-" end
  local unit, ratio = fields.unit, fields.ratio and ("%.2f"):format(fields.ratio) or "-"
  print(LINE:format(fields.name, cell(fields.ours, unit), cell(fields.wall, unit), cell(fields.baseline, unit), ratio,
    fields.target or "", ok))
end

local function heading(text)
  if not options.json then print("\n" .. text) end
end

-- ---- dispatch ----

local DISPATCH = {
  { "key", 'trivial handler, order = "key", 1,000 keys', 400000, target = 1e6 },
  { "none", 'trivial handler, order = "none"', 400000, target = 1e6 },
  { "unwatched", 'the same with watchdog = false, order = "key"', 400000 },
  { "get", "reads 2 fields with msg:get", 300000 },
  { "data", "reads msg.data", 200000 },
  { "publish", "publishes one message", 100000 },
  { "wait", "waits: mw.sleep(0)", 50000 },
}

local per_message = {} -- CPU seconds, by case

local function dispatch()
  heading "dispatch: memory broker -> core -> Lua handler -> settled; 200 B JSON; CPU, wall, and a bare C loop"
  for _, case in ipairs(DISPATCH) do
    local n, rounds = case[3], options.quick and 3 or 7
    if options.quick then n = n / 2 end
    local r = script("dispatch", case[1], n, rounds)
    local cpu, wall, bare = bench.median(r.cpu) / n, bench.median(r.wall) / n, bench.median(r.bare_cpu) / n
    per_message[case[1]] = cpu
    add {
      group = "dispatch", name = case[2], unit = "/s", ours = 1 / cpu, wall = 1 / wall, baseline = 1 / bare,
      ratio = bare / cpu, target = case.target and ">= 1 M/s", ok = case.target and 1 / cpu >= case.target,
    }
  end
  add { group = "dispatch", name = "what the watchdog leaves: watched / unwatched", unit = "",
    ours = per_message.unwatched / per_message.key }
end

-- ---- embedded ----

local function embedded_once(n)
  return bench.with_folder(function(folder)
    local ours = script("embedded", n, folder)
    local puts, deletes = math.ceil(n / ours.put_commits), math.ceil(n / ours.delete_commits)
    os.execute(("rm -rf '%s/data'; mkdir '%s/raw'"):format(folder, folder))
    local raw = run(("'%s/bench/raw_lmdb' '%s/raw' %d %d %d %d"):format(
      bench.build, folder, n, puts, deletes, ours.body))
    return { ours = ours, raw = raw, puts = puts, deletes = deletes }
  end)
end

local function embedded()
  heading "embedded: publish -> handle -> durable ack; 200 B; wall time, against raw LMDB at the same commit sizes"
  local n, rounds = options.quick and 50000 or 200000, options.quick and 3 or 5
  local all = { put = {}, delete = {}, whole = {} }
  local raws, puts, deletes = { put = {}, delete = {}, whole = {} }, {}, {}
  for i = 1, rounds do
    local once = embedded_once(n)
    for _, phase in ipairs { "put", "delete" } do
      all[phase][i], raws[phase][i] = once.ours[phase .. "_wall"], once.raw[phase .. "_wall"]
    end
    all.whole[i] = all.put[i] + all.delete[i]
    raws.whole[i] = raws.put[i] + raws.delete[i]
    puts[i], deletes[i] = once.puts, once.deletes
  end
  local names = {
    put = ("publish, confirmed (%d a commit)"):format(bench.median(puts)),
    delete = ("handle and ack (%d a commit)"):format(bench.median(deletes)),
    whole = "publish -> handle -> durable ack",
  }
  for _, phase in ipairs { "put", "delete", "whole" } do
    local ratios = {}
    for i = 1, rounds do ratios[i] = raws[phase][i] / all[phase][i] end
    local whole = phase == "whole"
    local ratio = bench.median(ratios)
    local rate = n / bench.median(all[phase])
    local row = {
      group = "embedded", name = names[phase], unit = "/s", ours = rate, wall = rate,
      baseline = n / bench.median(raws[phase]),
      ratio = ratio, target = whole and ">= 0.50 of raw" or nil,
    }
    if whole then row.ok = ratio >= 0.5 end
    add(row)
  end
end

-- ---- Kafka ----

local function kafka()
  heading "Kafka: 100 B, 4 partitions, one broker beside it; by the wall clock, and by CPU, against librdkafka alone"
  local n = options.quick and 500000 or 1000000
  local r = script("kafka", n, options.quick and 3 or 5)
  if r.skipped then return note("SKIPPED: kafka, because " .. r.skipped) end
  local function median(list, field)
    local values = {}
    for i, round in ipairs(list) do values[i] = round[field] end
    return bench.median(values)
  end
  local function against(name, ours, theirs)
    local wall, raw = median(ours, "wall"), median(theirs, "wall")
    add { group = "kafka", name = name, unit = "/s", ours = n / wall, wall = n / wall, baseline = n / raw,
          ratio = raw / wall, target = ">= 0.90 of raw", ok = raw / wall >= 0.9 }
    local cpu, raw_cpu = median(ours, "cpu") / n * 1e6, median(theirs, "cpu") / n * 1e6
    add { group = "kafka", name = "  CPU a message", unit = " us", ours = cpu, baseline = raw_cpu,
          ratio = cpu / raw_cpu, target = "<= 1.30 of raw", ok = cpu / raw_cpu <= 1.3 }
  end
  against("consume, trivial handler, key order", r.consume, r.raw_consume)
  against("produce, confirmed", r.produce, r.raw_produce)
  local waits = median(r.waits, "wall")
  add { group = "kafka", name = "10,000 that wait 0-5 ms, 1 partition, 1,000 keys", unit = " s", ours = waits,
        baseline = 2.06, ratio = waits / 2.06, target = "<= 0.50 of it", ok = waits <= 1.03 }
end

-- ---- a project like the demo ----

local PROJECT = {
  ["moonwire.lua"] = [[
local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "embedded:data"))

mw.pipeline "orders" {
  from = broker:channel "order.created.v1",
  handler = "handlers.orders",
  retry = { attempts = 5, backoff = "exponential", base = 1, cap = 60 },
  dedupe = { ttl = 600 },
}
mw.pipeline "emails" { from = broker:channel "emails", handler = "handlers.emails", order = "none" }
]],
  ["handlers/orders.lua"] = [[
local mw = require "moonwire"
local M = { schema = "schemas/order.json" }

function M.handle(msg)
  local order = msg.data
  mw.publish("emails", { to = order.customer.id, total = order.total })
  mw.log.info("first-message", { number = order.number })
end

return M
]],
  ["handlers/emails.lua"] = [[
local mw = require "moonwire"
return { handle = function(msg) mw.log.info("email", { to = msg.data.to }) end }
]],
  ["schemas/order.json"] = [[
{
  "type": "object",
  "required": ["number", "total", "customer"],
  "properties": {
    "number": { "type": "integer", "minimum": 0 },
    "total": { "type": "number" },
    "customer": { "type": "object", "required": ["id"], "properties": { "id": { "type": "string" } } }
  }
}
]],
}

local function launch(folder, idle_ms, flags)
  local seed = ("'%s' lua '%sembedded.lua' --seed '%s' order.created.v1"):format(bench.moonwire, here, folder)
  assert(bench.capture(seed))
  return run(("'%s/bench/launch' 1 %d first-message '%s' run '%s' %s"):format(
    bench.build, idle_ms, bench.moonwire, folder, flags or ""))
end

local function starts()
  heading "start: from exec to the handler's line in the log, embedded broker, the message is there already"
  bench.with_folder(function(folder)
    bench.write(folder, PROJECT)
    launch(folder, 0) -- the first one makes the groups, and warms the page cache
    local ms, cpu, alone = {}, {}, {}
    for i = 1, options.quick and 10 or 20 do
      local r = launch(folder, 0)
      ms[i], cpu[i] = r.ms, r.cpu_ms
      alone[i] = launch(folder, 0, "--workers 0").ms
    end
    local median = bench.median(ms)
    table.sort(ms)
    add {
      group = "start", name = "first message handled, median", unit = " ms", ours = median, target = "<= 100 ms",
      ok = median <= 100,
    }
    add { group = "start", name = "slowest of them", unit = " ms", ours = ms[#ms] }
    add { group = "start", name = "  without a supervisor (--workers 0), median", unit = " ms",
      ours = bench.median(alone) }
    add { group = "start", name = "CPU time by then, both processes, median", unit = " ms", ours = bench.median(cpu) }
  end)
end

local function memory()
  heading "memory"
  local r = bench.with_folder(function(folder)
    bench.write(folder, PROJECT)
    return launch(folder, 2000)
  end)
  assert(r.rss_kb > 0, "the process ended before its memory was read")
  add {
    group = "memory", name = "idle `moonwire run`, its worker, resident (VmRSS)", unit = " MB", ours = r.rss_kb / 1000,
    target = "< 15 MB", ok = r.rss_kb < 15000,
  }
  add { group = "memory", name = "  of that its own, not files (RssAnon)", unit = " MB", ours = r.anon_kb / 1000 }
  add { group = "memory", name = "its supervisor, resident (VmRSS)", unit = " MB", ours = r.supervisor_kb / 1000 }
  add { group = "memory", name = "  of that its own, not files (RssAnon)", unit = " MB",
    ours = r.supervisor_anon_kb / 1000 }
  local count = options.quick and 250000 or 1000000
  local retries = script("retries", count, 24)
  add {
    group = "memory", name = ("a scheduled retry, whole message (%s)"):format(number(count)), unit = " B",
    ours = retries.whole, target = "<= 200 B", ok = retries.whole <= 200,
  }
  add { group = "memory", name = "  more than the same message in the queue", unit = " B", ours = retries.scheduled }
end

-- ---- JSON ----

local function codec()
  heading "JSON: orders of about 1 KiB, each one different; microseconds, best round of each side"
  local rounds = options.quick and 3 or 11
  local r = run(("MW_BENCH_ROUNDS=%d '%s' lua '%sjson_bench.lua' --json"):format(rounds, bench.moonwire, here))
  local node = r.node["JSON.parse"]
  if not node then note "SKIPPED: everything against Node, because there is no node here (Debian package: nodejs)" end
  local function against(name, ours, limit, baseline)
    local ratio = baseline and ours / baseline
    add {
      group = "json", name = name, unit = " us", ours = ours, baseline = baseline, ratio = ratio,
      target = ("<= %.2f of Node"):format(limit), ok = ratio and ratio <= limit,
    }
  end
  against("into tables (Node: JSON.parse of a string)", r.us["decode_at"], 1, node)
  against("two fields", r.us["parse + 2 finds"], 0.25, node)
  add {
    group = "json", name = "tables to JSON (Node: JSON.stringify)", unit = " us", ours = r.us["encode"],
    baseline = r.node["JSON.stringify"],
    ratio = r.node["JSON.stringify"] and r.us["encode"] / r.node["JSON.stringify"],
  }
  if per_message.data then
    local share = 1 - per_message.key / per_message.data
    add { group = "json", name = "share of decoding in a handler that reads data", unit = " %", ours = share * 100 }
  end
end

-- ---- Redis Streams, against hiredis ----

local function redis_run(port, folder, kind, n)
  os.execute(("rm -rf '%s/p'; mkdir '%s/p'"):format(folder, folder))
  if kind == "raw" then return run(("'%s/bench/raw_redis' consume %d %d"):format(bench.build, port, n)) end
  bench.capture(("redis-cli -p %d XGROUP DESTROY in bench"):format(port))
  bench.capture(("redis-cli -p %d DEL '{in}:mw:group:bench'"):format(port)) -- else it goes on where it was
  return script("redis", port, n, kind, folder .. "/p")
end

local function redis_consume(port, folder, size)
  local n, rounds = options.quick and 100000 or 300000, options.quick and 3 or 5
  local got = {}
  run(("'%s/bench/raw_redis' fill %d %d %d"):format(bench.build, port, n, size))
  for i = 1, rounds do
    for _, kind in ipairs { "raw", "trivial", "data" } do
      got[kind] = got[kind] or { wall = {}, cpu = {}, peak = {} }
      local r = redis_run(port, folder, kind, n)
      got[kind].wall[i], got[kind].cpu[i], got[kind].peak[i] = r.wall, r.cpu, r.peak_kb
    end
  end
  local raw_wall, raw_cpu = bench.median(got.raw.wall), bench.median(got.raw.cpu)
  for _, kind in ipairs { "trivial", "data" } do
    local wall, cpu = bench.median(got[kind].wall), bench.median(got[kind].cpu)
    local what = ("%d B, %s"):format(size, kind == "data" and "decodes the JSON" or "trivial handler")
    local aim = kind == "trivial"
    local speeds, costs = {}, {} -- of each round: its two sides ran one after the other
    for i = 1, rounds do
      speeds[i], costs[i] = got.raw.wall[i] / got[kind].wall[i], got[kind].cpu[i] / got.raw.cpu[i]
    end
    local speed, cost = bench.median(speeds), bench.median(costs)
    local fast, cheap -- nil: no target
    if aim then fast, cheap = speed >= 0.9, cost <= 1.3 end
    add { group = "redis", name = what .. ": messages", unit = "/s", ours = n / wall, baseline = n / raw_wall,
          ratio = speed, target = aim and ">= 0.90 of raw" or nil, ok = fast }
    add { group = "redis", name = what .. ": CPU per million", unit = " s", ours = cpu / n * 1e6,
          baseline = raw_cpu / n * 1e6, ratio = cost, target = aim and "<= 1.30 of raw" or nil,
          ok = cheap }
    add { group = "redis", name = what .. ": memory (VmHWM)", unit = " MB", ours = bench.median(got[kind].peak) / 1000,
          baseline = bench.median(got.raw.peak) / 1000 }
  end
end

--- In at a fixed rate, through a consumer that publishes each body again and acks, and out.
local function redis_latency(port, folder)
  local rate, n = 2000, options.quick and 4000 or 10000
  local function measure(consumer)
    bench.capture(("redis-cli -p %d FLUSHALL"):format(port))
    bench.capture(("'%s/bench/raw_redis' group %d 0"):format(bench.build, port))
    os.execute(("rm -rf '%s/p'; mkdir '%s/p'; %s > '%s/echo' 2>&1 & sleep 1"):format( -- its start is no latency
      folder, folder, consumer, folder))
    return run(("'%s/bench/raw_redis' latency %d %d %d"):format(bench.build, port, n, rate))
  end
  local raw = measure(("'%s/bench/raw_redis' echo %d %d"):format(bench.build, port, n))
  local ours = measure(("'%s' lua '%sredis.lua' %d %d echo '%s/p'"):format(bench.moonwire, here, port, n, folder))
  for _, which in ipairs { "p50", "p99" } do
    add { group = "redis", name = ("consume, publish, ack at %d/s: %s"):format(rate, which), unit = " ms",
          ours = ours[which] * 1000, baseline = raw[which] * 1000, ratio = ours[which] / raw[which] }
  end
end

local function redis()
  local found = bench.capture "command -v redis-server redis-cli" and io.open(bench.build .. "/bench/raw_redis")
  if not found then
    note "SKIPPED: redis, because redis-server or hiredis is missing (Debian packages: redis-server, libhiredis-dev)"
    return
  end
  found:close()
  heading "redis: XREADGROUP -> handler -> XACK on loopback, against hiredis (COUNT 100, one XACK per 100)"
  bench.with_folder(function(folder)
    package.path = here .. "../../?.lua;" .. package.path
    local server = require("spec.support.servers.redis").start { extra = { "--appendonly", "no" } }
    local ok, err = pcall(function()
      redis_consume(server.port, folder, 100)
      redis_consume(server.port, folder, 1024)
      redis_latency(server.port, folder)
    end)
    server:stop()
    if not ok then error(err, 0) end
  end)
end

-- ---- RabbitMQ, against rabbitmq-c ----

local rabbitmq = assert(loadfile(here .. "rabbitmq_group.lua"))(bench, { add = add, run = run, note = note,
  heading = heading, options = options, here = here })

-- ---- all of it ----

local GROUPS = {
  dispatch = dispatch, embedded = embedded, memory = memory, start = starts, json = codec, redis = redis,
  rabbitmq = rabbitmq, kafka = kafka,
}

local function has_embedded()
  local ffi, C = require "ffi", require "moonwire.internal.cdef"
  return C.mw_vm_link(require("moonwire.internal.wait").vm, "embedded:" .. os.tmpname(), ffi.new "mw_failure") ~= nil
end

build_tools()
if not options.json then
  print(LINE:format("", "ours", "by wall", "baseline", "ratio", "target", ""))
end
local failed = {}
for _, name in ipairs(NAMES) do
  if next(wanted) == nil or wanted[name] then
    if (name == "embedded" or name == "start" or name == "memory") and not has_embedded() then
      note(("SKIPPED: %s, because this binary has no embedded broker"):format(name))
    else
      local ok, err = xpcall(GROUPS[name], function(e) return e end)
      if not ok then
        failed[#failed + 1] = name
        note(("FAILED: %s: %s"):format(name, tostring(err)))
      end
    end
  end
end

local misses = 0
for _, row in ipairs(rows) do
  if row.ok == false then misses = misses + 1 end
end
if options.json then
  print(json.encode({
    version = require("moonwire.core").version, quick = options.quick or false, results = rows, misses = misses,
    failed = json.array(failed),
  }, { sort = true }))
else
  local bad = #failed > 0 and ", FAILED: " .. table.concat(failed, " ") or ""
  print(("\n%d results, %d targets missed%s"):format(#rows, misses, bad))
end
if #failed > 0 or (options.strict and misses > 0) then os.exit(1) end
