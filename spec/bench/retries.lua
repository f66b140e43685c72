--- What a scheduled retry costs in memory: messages that all fail and all wait for an hour, in the memory broker.
---   moonwire lua spec/bench/retries.lua MESSAGES BODY     -> one JSON object, bytes per message
---
--- `whole` is the growth of the resident set from before the messages were published to when every one of them waits
--- for its next attempt: the message with its id and body, its place at the broker, its timer and its error.
--- `scheduled` is what waiting for a retry adds to a message that merely lies in the queue.
local bench = dofile((arg[0]:match "^(.*/)" or "./") .. "bench.lua")
local json = require "moonwire.json"
local F = bench.fill()

local count, body = tonumber(arg[1]), tonumber(arg[2])
require("moonwire.internal.cdef").mw_log_setup(0, 3) -- errors only: a million warnings are not what is measured

print(json.encode(bench.with_folder(function(folder)
  bench.write(folder, {
    ["moonwire.lua"] = [[
local mw = require "moonwire"
local broker = mw.connect "memory:bench"
mw.pipeline "bench" {
  from = broker:channel "in", order = "none", retry = { attempts = 5, backoff = "fixed", base = 3600, cap = 3600 },
  handler = function(msg) return mw.retry { reason = "the stock service is away" } end,
}
]],
  })
  local app = bench.open(folder)
  local retried = 0
  local function run(n)
    F.mw_bench_fill("bench", "in", n, 0, body)
    local filled = F.mw_bench_rss()
    retried = retried + n
    local wall, cpu = bench.timed(function()
      local status = app:status()[1]
      return status.retried == retried and status.in_flight == 0
    end)
    return filled, wall, cpu
  end
  run(10000)
  collectgarbage()
  local before = F.mw_bench_rss()
  local filled, wall, cpu = run(count)
  local after = F.mw_bench_rss()
  return {
    messages = count, body = body, whole = (after - before) / count, scheduled = (after - filled) / count,
    wall = wall, cpu = cpu,
  }
end)))
io.stdout:flush()
os.exit(0) -- a million retries are not drained but forgotten
