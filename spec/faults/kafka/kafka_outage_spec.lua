-- A broker that goes away while it is asked something else than messages, and comes back later than that question
-- waits. librdkafka 2.0 ends the process then, where requests of its admin API to a coordinator are concerned. The
-- moment is too short for a real broker: librdkafka's mock cluster can be made slow.
local client = require "spec.support.servers.kafka_client"
local clock = require "spec.support.wait"
local supervised = require "spec.support.supervised"

local SLOW_MS, AWAY = 400, 10 -- seconds: one question fails, the next one is asked and given up (stranded.c)

describe("Kafka's coordinator", function()
  it("may go away while a consumer asks for topics it reads no more, and come back much later", function()
    local mock = client.mock_cluster()
    local s = supervised.scene {
      flags = { "--workers", "0" }, handler = [[function M.handle(msg) trace("done", msg) end]],
    }
    s.url = "kafka://" .. mock.bootstrap .. "/"
    s:publish { { id = "a" } }
    client.mock_slow(mock, SLOW_MS)
    s:start()
    clock.until_(function() return s.trace:count "done" == 1 end, 30 * supervised.late, "the message")
    client.mock_down(mock, true)
    clock.sleep(AWAY)
    client.mock_slow(mock, 0)
    client.mock_down(mock, false)
    clock.sleep(2) -- what was asked is answered now
    s:publish { { id = "b" } }
    clock.until_(function() return s.trace:of("done")[2] end, 30 * supervised.late, "the next message")
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
  end)
end)
