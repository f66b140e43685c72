--- RabbitMQ with Moonwire:
---   moonwire lua spec/bench/rabbitmq.lua URL COUNT consume|echo|publish FOLDER [BODY]     -> one JSON object
--- consume: a handler that does nothing; echo: it publishes the body to "out"; publish: fills "in", each confirmed.
local bench = dofile((arg[0]:match "^(.*/)" or "./") .. "bench.lua")
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local ffi = require "ffi"
local json = require "moonwire.json"
local wait = require "moonwire.internal.wait"

C.mw_log_setup(0, 9) -- "connected" is no result
local url, count, kind, folder, body = arg[1], tonumber(arg[2]), arg[3], arg[4], tonumber(arg[5])
local F = bench.fill()

if kind == "publish" then
  local failure = ffi.new "mw_failure"
  local link = C.mw_vm_link(wait.vm, url, failure)
  assert(link ~= nil and C.mw_vm_link_open(link, failure) == 0, ffi.string(failure.text))
  F.mw_bench_publish(link, "in", 1, 1, body, true)
  bench.timed(function() return F.mw_bench_unconfirmed() == 0 end)
  local left = count - 1
  local wall, cpu = bench.timed(function()
    while left > 0 and F.mw_bench_unconfirmed() < 1000 do
      local n = math.min(left, 100, 1000 - F.mw_bench_unconfirmed())
      F.mw_bench_publish(link, "in", n, 1000, body, true)
      left = left - n
    end
    return left == 0 and F.mw_bench_unconfirmed() == 0
  end)
  print(json.encode { wall = wall, cpu = cpu })
  return 0
end

local HANDLERS = {
  consume = "function(msg) end",
  echo = "function(msg) mw.publish('out', msg.body) end",
}
bench.write(folder, {
  ["moonwire.lua"] = ([[
local mw = require "moonwire"
local broker = mw.connect(%q)
mw.pipeline "bench" { from = broker:channel "in", handler = %s, order = "key", concurrency = 64 }
]]):format(url, HANDLERS[kind]),
})

local app = bench.open(folder)
local handled, asked = 0, 0
local function reached(wanted) -- status is for people: asked for every turn it would be half of the work
  return function()
    local now = F.mw_bench_now(false)
    if now - asked > 0.02 then handled, asked = app:status()[1].handled, now end
    return handled >= wanted
  end
end
bench.timed(reached(count / 10)) -- connecting and compiling belong to the start
local measured = count - handled
local wall, cpu = bench.timed(reached(count))
for _ = 1, 20 do core.step(5) end -- the last acks
bench.close(app)
assert(handled == count, handled .. " were handled, not " .. count)
print(json.encode { wall = wall / measured * count, cpu = cpu / measured * count }) -- as if for all of them
