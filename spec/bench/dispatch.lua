--- Dispatch: messages that lie in a memory broker go through the whole core and a handler, against the same messages in
--- a bare C loop. One process a case, so that each starts with a fresh compiler; both sides in turn, so that a busy
--- neighbour hits both.
---   moonwire lua spec/bench/dispatch.lua CASE MESSAGES ROUNDS     -> one JSON object
local bench = dofile((arg[0]:match "^(.*/)" or "./") .. "bench.lua")
local json = require "moonwire.json"

local BODY = 200

local CASES = {
  key = { handler = "function(msg) end" },
  unwatched = { handler = "function(msg) end", more = "mw.settings { watchdog = false }" },
  none = { order = "none", handler = "function(msg) end" },
  data = { handler = "function(msg) local total = msg.data.total; if total ~= 129.95 then error 'wrong' end end" },
  get = {
    handler = [[function(msg)
      local total, customer = msg:get("total", "customer.id")
      if total ~= 129.95 or not customer then error "wrong" end
    end]],
  },
  wait = { handler = "function(msg) mw.sleep(0) end" },
  publish = { handler = [[function(msg) mw.publish("out", { order = msg.id }) end]] },
}

local name, count, rounds = arg[1], tonumber(arg[2]), tonumber(arg[3])
local case = assert(CASES[name], "no such case")
local F = bench.fill()

bench.with_folder(function(folder)
  bench.write(folder, {
    ["moonwire.lua"] = ([[
local mw = require "moonwire"
local broker = mw.connect "memory:bench"
mw.pipeline "bench" { from = broker:channel "in", order = %q, handler = %s }
%s
]]):format(case.order or "key", case.handler, case.more or ""),
  })
  local app = bench.open(folder)
  local function idle() return app:idle() end
  local function ours(n)
    F.mw_bench_fill("bench", "in", n, 1000, BODY)
    return bench.timed(idle)
  end
  ours(20000) -- compiled by now
  local result = { messages = count, wall = {}, cpu = {}, bare_wall = {}, bare_cpu = {} }
  for i = 1, rounds do
    collectgarbage()
    result.wall[i], result.cpu[i] = ours(count)
    result.bare_wall[i] = F.mw_bench_bare(count, 1000, BODY, false)
    result.bare_cpu[i] = F.mw_bench_bare(count, 1000, BODY, true)
  end
  local status = app:status()[1]
  assert(status.handled == 20000 + rounds * count, "not every message was handled once")
  print(json.encode(result))
  bench.close(app)
end)
