-- Handlers that compute: the loop gets its turns between them; acks, signals, commands and other pipelines do not wait.
local clock = require "spec.support.wait"
local process = require "spec.support.process"
local supervised = require "spec.support.supervised"

local late = supervised.late

-- For so many seconds, on the processor.
local BURN = [[
local function burn(seconds)
  local ends = os.clock() + seconds
  while os.clock() < ends do end
end
]]

local function many(count)
  local list = {}
  for i = 1, count do list[i] = { id = "m" .. i, key = "k" .. i } end
  return list
end

describe("handlers that compute", function()
  teardown(function() process.cleanup() end)

  it("leave a drain its time: what has ended is settled, the rest is handed back", function()
    local s = supervised.scene {
      flags = { "--workers", "1", "--drain", tostring(5 * late) }, settings = "order = \"none\",",
      handler = BURN .. [[function M.handle(msg) trace("begin", msg) burn(0.2) trace("done", msg) end]] }
    s:publish(many(60))
    s:start()
    clock.until_(function() return s.trace:count "done" >= 3 end, 15 * late, "some to be handled")
    s.child:kill "TERM"
    assert.equal(0, (s.child:wait(10 * late)), s.child:stderr())
    assert.equal(0, s:count "drain limit reached", s.child:stderr())
    local done = s.trace:count "done"
    assert.is_true(done < 60, "all were handled before the drain began")
    assert.equal(60 - done, s:left "in")
    assert.equal(done, s.trace:count "begin")
  end)

  it("do not keep commands waiting", function()
    local s = supervised.scene { flags = { "--workers", "1" }, settings = "order = \"none\", concurrency = 1000,",
      handler = BURN .. [[function M.handle(msg) trace("begin", msg) burn(0.05) trace("done", msg) end]] }
    s:publish(many(200))
    s:start()
    clock.until_(function() return s.trace:count "done" >= 1 end, 15 * late, "the first to be handled")
    local before = s.trace:count "done"
    local _, p = s:status()
    assert.equal(1, p.workers, "the worker did not answer in time")
    local between = s.trace:count "done" - before
    assert.is_true(between < 60, "the answer took " .. between .. " handlers")
    s.child:stop(10)
  end)

  it("do not keep another pipeline waiting, nor make its handlers late", function()
    local s = supervised.scene {
      flags = { "--workers", "1" }, settings = "order = \"none\",",
      handler = BURN .. [[function M.handle() burn(0.01) end]],
      more = [[
        mw.pipeline "q" {
          from = broker:channel "other", order = "none", timeout = 2, retry = { attempts = 1 },
          handler = function(msg)
            local began = mw.now()
            mw.sleep(0.1)
            mw.log.info("slept", { took = mw.now() - began })
          end,
        }]],
    }
    s:publish(many(1000))
    local others = {}
    for i = 1, 20 do others[i] = ('{"id":"o%d"}\n'):format(i) end
    local sent = process.run { { supervised.binary, "publish", "--broker", s.url, "other", "--lines" },
                               stdin = table.concat(others) }
    assert.equal(0, sent.code, sent.stderr)
    s:start()
    clock.until_(function() return s:count "msg=slept" >= 20 end, 20 * late, "the others to be handled")
    for took in s.child:stderr():gmatch "msg=slept[^\n]* took=([%d.]+)" do
      assert.is_true(tonumber(took) < 0.6 * late, "a sleep of 0.1 s took " .. took)
    end
    assert.is_true(s:left "in" > 0, "the first pipeline was done before")
    assert.equal(0, s:count "timed out", s.child:stderr())
    s.child:stop(10)
  end)

  it("share the time with those that go on after a wait", function()
    local s = supervised.scene { flags = { "--workers", "1" }, settings = "order = \"none\", concurrency = 500,",
      handler = BURN .. [[function M.handle(msg) mw.sleep(0.3) burn(0.02) trace("done", msg) end]] }
    s:publish(many(300))
    s:start()
    clock.until_(function() return s.trace:count "done" >= 1 end, 15 * late, "the first to be handled")
    s.child:kill "TERM"
    s:see "msg=draining"
    assert.is_true(s.trace:count "done" < 60, "the signal waited for " .. s.trace:count "done" .. " handlers")
    s.child:kill "TERM"
    s.child:wait(10 * late)
  end)
end)
