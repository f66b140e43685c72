--- The embedded broker: publish, handle, durable ack. Everything is synced to the disk before it counts.
---   moonwire lua spec/bench/embedded.lua MESSAGES FOLDER     -> one JSON object
---   moonwire lua spec/bench/embedded.lua --seed FOLDER CHANNEL    puts one message there
--- FOLDER/data is left behind, so that the caller can count its commits and run raw LMDB on the same disk.
local bench = dofile((arg[0]:match "^(.*/)" or "./") .. "bench.lua")
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local ffi = require "ffi"
local json = require "moonwire.json"
local wait = require "moonwire.internal.wait"
local F = bench.fill()

local BODY = 200

local function open_link(folder)
  local failure = ffi.new "mw_failure"
  local link = C.mw_vm_link(wait.vm, "embedded:" .. folder .. "/data", failure)
  assert(link ~= nil and C.mw_vm_link_open(link, failure) == 0, ffi.string(failure.text))
  return link
end

local function confirmed() return F.mw_bench_unconfirmed() == 0 end

if arg[1] == "--seed" then
  local link = open_link(arg[2])
  F.mw_bench_publish(link, arg[3], 1, 1, BODY, true)
  bench.timed(confirmed)
  return
end

local count, folder = tonumber(arg[1]), arg[2]
bench.write(folder, {
  ["moonwire.lua"] = [[
local mw = require "moonwire"
local broker = mw.connect "embedded:data"
mw.pipeline "bench" { from = broker:channel "in", handler = function(msg) end, buffer = { count = 8192 } }
]],
})

local function commits()
  local text = assert(bench.capture(("%s/bench/raw_lmdb %s/data/moonwire.mdb"):format(bench.build, folder)))
  return json.decode(text).commits
end

-- The group exists before the first message, as it does in a running system.
local app = bench.open(folder)
local function idle() return app:idle() end
for _ = 1, 20 do core.step(5) end
bench.close(app)

local link = open_link(folder)
local at = commits()
local result = { messages = count, body = BODY }
F.mw_bench_publish(link, "in", count, 1000, BODY, true)
result.put_wall, result.put_cpu = bench.timed(confirmed)
result.put_commits = commits() - at

at = commits()
app = bench.open(folder)
result.delete_wall, result.delete_cpu = bench.timed(idle)
result.delete_commits = commits() - at
assert(app:status()[1].handled == count, "not every message was handled once")
bench.close(app)
print(json.encode(result))
