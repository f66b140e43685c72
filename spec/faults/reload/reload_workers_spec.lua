-- Reload under load with a supervisor, two workers and a real Redis: good and broken code in turn, while messages flow.
-- None is lost, none is handled twice because of a reload, keys keep their order, the workers' memory stays flat, and
-- messages hardly notice: the run has windows with reloads and windows without, and the times from publishing a message
-- to handling it are compared, in milliseconds.
local clock = require "spec.support.wait"
local core = require "moonwire.core"
local door = require "moonwire.cli.process.door"
local json = require "moonwire.json"
local process = require "spec.support.process"
local project = require "spec.support.project"
local redis = require "spec.support.servers.redis"
local supervised = require "spec.support.supervised"

local binary, late = supervised.binary, supervised.late
local FULL = late == 1 -- the sanitized build is slower, and keeps what is freed: it is not asked for times and memory
local WORKERS, KEYS = 2, 50
local WINDOW, PAIRS = 1, FULL and 16 or 4 -- seconds; one window without and one with reloads
local PER_SECOND = FULL and 1600 or 400
local BETWEEN = 0.005 * late -- seconds between two reloads
local P99_MOST = 0.010 -- seconds: how much later p99 may be with reloads
local GROWTH_MOST = 8 * 1024 * 1024 -- of a worker
local WARM_UP = 3 -- pairs of windows, before memory is looked at
-- Others on the machine only add to the times, so the calmer windows of each kind are compared; each with reloads has
-- many of them. Where even those without are this slow, times tell of the machine: the run is repeated, and in the end
-- it is asked what a reload costs a worker in CPU time, which nobody else adds to.
local CALM, TRIES, TOO_LATE, CPU_MOST = 0.25, 2, 0.010, 0.010

-- Stamps each message with the time right before it hands it over. It goes on until it is killed: what it has sent is
-- known to be complete when it was handled.
local PUBLISHER = [[
local C = require "moonwire.internal.cdef"
local clock = require "spec.support.wait"
local core = require "moonwire.core"
local ffi = require "ffi"
local publish = require "moonwire.internal.api.publish"
local wait = require "moonwire.internal.wait"
local url, count, per_second, keys = arg[1], tonumber(arg[2]), tonumber(arg[3]), tonumber(arg[4])
local failure = ffi.new "mw_failure"
local link = C.mw_vm_link(wait.vm, url, failure)
assert(link ~= nil and C.mw_vm_link_open(link, failure) == 0, ffi.string(failure.text))
local began, sent = clock.now(), 0
while true do
  for n = sent + 1, math.min(count, math.floor((clock.now() - began) * per_second)) do
    local body = ('{"n":%d,"at":%.6f}'):format(n, clock.wall())
    local m = assert(publish.message(body, { id = "m" .. n, key = "k" .. n % keys }))
    C.mw_vm_publish(wait.vm, link, "in", m, 0, -1)
    C.mw_message_unref(m)
    sent = n
  end
  core.step(1)
end
]]

-- Some wait: they end on the generation that they began with, when that is gone for long.
local HANDLER = [[
function M.handle(msg)
  local n = msg.data.n
  if n %% 200 == 0 then mw.sleep(0.05) end
  trace("done", msg, ("%%d %s %%.6f"):format(n, msg.data.at))
end]]

local BROKEN = { "return {", "error 'not today'", "return { handel = function() end }",
  "local mw = require 'moonwire' mw.nothing.at_all()", "return require 'no.such.module'" }

local function quantile(list, q)
  table.sort(list)
  return list[math.max(1, math.ceil(#list * q))]
end

local function least(list, from, to)
  local found = math.huge
  for i = from, to do found = math.min(found, list[i]) end
  return found
end

describe("reload under load, with workers", function()
  local server, scene, publisher

  setup(function() server = redis.start { extra = { "--appendonly", "no" } } end)
  teardown(function()
    server:stop()
    process.cleanup()
  end)
  after_each(function()
    if publisher then publisher:kill "KILL" end
    if scene and scene.child:alive() then scene.child:stop(20) end
  end)

  local function start()
    server:call "FLUSHALL"
    scene = supervised.scene {
      url = ("redis://127.0.0.1:%d/0"):format(server.port), handler = HANDLER:format "g0",
      flags = { "--workers", tostring(WORKERS) }, settings = "retry = { attempts = 1 },",
    }
    scene:start()
    scene:see "all workers started"
    local script = scene.dir .. "/../publisher.lua"
    project.write(script, PUBLISHER)
    publisher = process.spawn {
      { binary, "lua", script, scene.url, tostring(2 * PAIRS * WINDOW * PER_SECOND), tostring(PER_SECOND),
        tostring(KEYS) },
    }
    clock.until_(function() return scene.trace:count "done" > 0 end, 10 * late, "the first message")
  end

  -- As `moonwire reload` asks, but from here: starting a program each time would cost the machine more than the reload.
  local function reload(socket, n)
    local broken = n % 2 == 1 and BROKEN[(n - 1) / 2 % #BROKEN + 1]
    project.write(scene.dir .. "/handlers/p.lua", broken or project.handler(HANDLER:format("g" .. n)))
    local answer = json.decode(assert(core.control_call(socket, "reload", 30 * late)))
    assert.equal(WORKERS, #answer.workers)
    for _, worker in ipairs(answer.workers) do
      assert.equal(not broken, worker.reply.ok, json.encode(worker.reply))
    end
  end

  local function cpu()
    local sum = 0
    for k = 1, WORKERS do sum = sum + process.cpu(scene:pid(k)) end
    return sum
  end

  -- Returns the windows, in turn without and with reloads, the workers' memory after each pair, and how many reloads.
  local function run_windows()
    local socket = assert(door.sockets(scene.dir, scene.dir))[1]
    local windows, memory, reloads = {}, {}, 0
    for w = 1, 2 * PAIRS do
      local window = { from = clock.wall(), reloading = w % 2 == 0, times = {}, cpu = -cpu() }
      local ends = clock.now() + WINDOW
      while window.reloading and clock.now() < ends do
        reloads = reloads + 1
        reload(socket, reloads)
        clock.sleep(BETWEEN)
      end
      clock.sleep(ends - clock.now())
      window.till, window.cpu = clock.wall(), window.cpu + cpu()
      windows[w] = window
      if window.reloading then
        for k = 1, WORKERS do
          memory[k] = memory[k] or {}
          table.insert(memory[k], process.rss(scene:pid(k)))
        end
      end
    end
    return windows, memory, reloads
  end

  -- Every message once and in order; its time goes to the window that it was published in.
  local function check_messages(windows)
    local total = 2 * PAIRS * WINDOW * PER_SECOND
    clock.until_(function() return scene.trace:count "done" >= total end, 60 * late, "all to be handled")
    assert.equal(0, (scene.child:stop(20)), scene.child:stderr())
    local seen, last, generations, w = {}, {}, {}, 1
    local handled = scene.trace:of "done"
    for _, line in ipairs(handled) do
      local n, generation, at = line.more:match "^(%d+) (%S+) (%S+)$"
      line.n, line.at = tonumber(n), tonumber(at)
      assert.is_nil(seen[line.n], "m" .. n .. " was handled twice")
      assert.is_true(line.n > (last[line.n % KEYS] or 0), "m" .. n .. " is out of order")
      seen[line.n], last[line.n % KEYS], generations[generation] = true, line.n, true
    end
    assert.equal(total, #handled)
    table.sort(handled, function(a, b) return a.n < b.n end)
    for _, line in ipairs(handled) do
      while windows[w] and line.at >= windows[w].till do w = w + 1 end
      local sleeps = line.n % 200 == 0
      if windows[w] and line.at >= windows[w].from and not sleeps then
        table.insert(windows[w].times, line.time - line.at)
      end
    end
    assert.equal(0, scene:count "dead letter")
    assert.equal(0, scene:count 'msg="worker died"')
    local count = 0
    for _ in pairs(generations) do count = count + 1 end
    return count
  end

  -- Of all windows of a kind: the p99 of each, and the CPU seconds of the workers.
  local function figures(windows, reloading)
    local list, spent = {}, 0
    for _, window in ipairs(windows) do
      if window.reloading == reloading and #window.times > 0 then
        list[#list + 1] = quantile(window.times, 0.99)
        spent = spent + window.cpu
      end
    end
    return list, spent
  end

  local function growth(memory)
    local grown = 0
    for _, of in ipairs(memory) do
      local middle = math.floor((WARM_UP + #of) / 2)
      grown = math.max(grown, least(of, middle + 1, #of) - least(of, math.min(WARM_UP, middle), middle))
    end
    return grown
  end

  local function run()
    start()
    local windows, memory, reloads = run_windows()
    local generations = check_messages(windows)
    assert.is_true(generations > reloads / 4, ("%d generations, %d reloads"):format(generations, reloads))
    local quiet, quiet_cpu = figures(windows, false)
    local busy, busy_cpu = figures(windows, true)
    local result = {
      without = quantile(quiet, CALM), later = quantile(busy, CALM) - quantile(quiet, CALM), grown = growth(memory),
      cost = (busy_cpu - quiet_cpu) / reloads / WORKERS,
    }
    io.write(("reload under load, %d workers: %d messages, %d reloads (%d refused); p99 of calm windows %.2f ms "
      .. "without, %.2f ms with reloads, of all (median) %.2f and %.2f; a reload costs a worker %.1f ms; its memory "
      .. "grew by %.1f MB\n"):format(WORKERS, 2 * PAIRS * WINDOW * PER_SECOND, reloads, math.ceil(reloads / 2),
      result.without * 1000, quantile(busy, CALM) * 1000, quantile(quiet, 0.5) * 1000, quantile(busy, 0.5) * 1000,
      result.cost * 1000, result.grown / 2 ^ 20))
    return result
  end

  it("loses nothing, handles nothing twice, keeps the order and the memory, and delays hardly any message", function()
    local told, result
    for _ = 1, TRIES do
      result = run()
      if not FULL then return end
      assert.is_true(result.grown < GROWTH_MOST, ("a worker grew by %d bytes"):format(result.grown))
      if result.without < TOO_LATE then
        told = ("p99 is %.2f ms later with reloads"):format(result.later * 1000)
        if result.later < P99_MOST then return end
      end
    end
    assert.is_nil(told)
    assert.is_true(result.cost < CPU_MOST, ("a reload costs a worker %.1f ms"):format(result.cost * 1000))
    io.write "the machine is too busy to tell of times\n"
  end)
end)
