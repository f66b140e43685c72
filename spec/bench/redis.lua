--- Consumes a filled stream with Moonwire:
---   moonwire lua spec/bench/redis.lua PORT COUNT trivial|data|echo FOLDER     -> one JSON object
--- trivial: a handler that does nothing; data: it decodes the JSON; echo: it publishes the body to "out".
local bench = dofile((arg[0]:match "^(.*/)" or "./") .. "bench.lua")
local C = require "moonwire.internal.cdef"
local json = require "moonwire.json"

C.mw_log_setup(0, 9) -- "connected" is no result
local port, count, kind, folder = tonumber(arg[1]), tonumber(arg[2]), arg[3], arg[4]
local HANDLERS = {
  trivial = "function(msg) end",
  data = "function(msg) return msg.data.number == nil and mw.drop 'none' or nil end",
  echo = "function(msg) mw.publish('out', msg.body) end",
}
bench.write(folder, {
  ["moonwire.lua"] = ([[
local mw = require "moonwire"
local broker = mw.connect "redis://127.0.0.1:%d"
mw.pipeline "bench" { from = broker:channel "in", handler = %s, order = "key", concurrency = 64 }
]]):format(port, HANDLERS[kind]),
})

local app = bench.open(folder)
local handled = 0
local function done()
  local status = app:status()[1]
  handled = status.handled
  return handled >= count and status.in_flight == 0 -- every ack is answered
end
local wall, cpu = bench.timed(done)
local peak
for line in io.lines "/proc/self/status" do peak = line:match "^VmHWM:%s+(%d+)" or peak end
bench.close(app)
assert(handled == count, handled .. " were handled, not " .. count)
print(json.encode { wall = wall, cpu = cpu, peak_kb = tonumber(peak) })
