-- Reload under load, as an operator does it: `moonwire reload` against a supervisor with two workers, while messages
-- flow. None is lost, none is handled twice because of a reload, keys keep their order, and nothing waits long.
local clock = require "spec.support.wait"
local process = require "spec.support.process"
local project = require "spec.support.project"
local supervised = require "spec.support.supervised"

local binary, late = supervised.binary, supervised.late
local RELOADS, BATCHES, PER_BATCH, KEYS = 20, 40, 50, 20
local P99_MOST = 2 * late -- seconds from publishing to done; what a machine is busy with otherwise counts, too

local HANDLER = [[
function M.handle(msg)
  mw.sleep(msg.data.n %% 50 == 0 and 0.05 or 0.001)
  trace("done", msg, ("%%d %%s %%.3f"):format(msg.data.n, %q, mw.now() - msg.data.at))
end]]

describe("moonwire reload under load", function()
  teardown(function() process.cleanup() end)

  local function publish(s, batch)
    local lines, at = {}, os.time()
    for i = 1, PER_BATCH do
      local n = (batch - 1) * PER_BATCH + i
      lines[i] = ('{"id":"m%d","k":"k%d","n":%d,"at":%d}\n'):format(n, n % KEYS, n, at)
    end
    return process.spawn {
      { binary, "publish", "--broker", s.url, "in", "--lines", "--id-path", "id", "--key-path", "k" },
      stdin = table.concat(lines),
    }
  end

  it("loses nothing, handles nothing twice, and keeps the order of each key", function()
    local s = supervised.scene { flags = { "--workers", "2" }, settings = "retry = { attempts = 1 },",
                                 handler = HANDLER:format "g0" }
    s:start()
    s:see "all workers started"
    local refused, sent = 0, nil
    for batch = 1, BATCHES do
      if sent then assert.equal(0, (sent:wait(30 * late)), sent:stderr()) end
      sent = publish(s, batch)
      if batch % 2 == 0 then
        local n = batch / 2
        local broken = n % 4 == 0
        local text = broken and "return {" or project.handler(HANDLER:format("g" .. n))
        project.write(s.dir .. "/handlers/p.lua", text)
        local result = process.run { binary, "reload", s.dir }
        assert.equal(broken and 78 or 0, result.code, result.stderr)
        if broken then refused = refused + 1 end
      end
    end
    assert.equal(0, (sent:wait(30 * late)), sent:stderr())
    local total = BATCHES * PER_BATCH
    clock.until_(function() return s.trace:count "done" >= total end, 60 * late, "all to be handled")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
    assert.equal(0, s:left "in")
    local seen, last, waits, by = {}, {}, {}, {}
    for _, line in ipairs(s.trace:of "done") do
      local n, generation, waited = line.more:match "^(%d+) (%S+) (%S+)"
      n = tonumber(n)
      assert.is_nil(seen[n], "m" .. n .. " was handled twice")
      assert.is_true(n > (last[n % KEYS] or 0), "m" .. n .. " is out of order")
      seen[n], last[n % KEYS], waits[#waits + 1] = true, n, tonumber(waited)
      by[generation] = (by[generation] or 0) + 1
    end
    assert.equal(total, #waits)
    local generations = 0
    for _ in pairs(by) do generations = generations + 1 end
    assert.is_true(generations >= (RELOADS - refused) / 2, "only " .. generations .. " generations handled anything")
    table.sort(waits)
    local p99 = waits[math.ceil(#waits * 0.99)]
    assert.is_true(p99 - 1 < P99_MOST, "p99 is " .. p99) -- the time of publishing is one of whole seconds
    assert.equal(0, s:count "dead letter")
  end)
end)
