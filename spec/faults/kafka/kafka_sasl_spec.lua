-- librdkafka's fetchers are woken through its credentials (drivers/kafka/consume/ahead.c): after thousands of times the
-- worker must still be let in when it has to introduce itself anew, because the broker was restarted.
local C = require "moonwire.internal.cdef"
local driver = require "spec.contract.kafka"
local harness = require "spec.support.harness"
local kafka = require "spec.support.servers.kafka"
local process = require "spec.support.process"

C.mw_log_setup(0, 9)

local PASSWORD = "let me in: 100% @/?&=" -- everything that means something in a URL
local MODULES = "org.apache.kafka.common.security."
local LISTENER = "listener.name.sasl_plaintext."

local function escaped(text)
  return (text:gsub("%W", function(c) return ("%%%02X"):format(c:byte()) end))
end

local function secured(port)
  return kafka.new {
    sasl = { port = port },
    scram = { ("SCRAM-SHA-256=[name=me,password=%s]"):format(PASSWORD) },
    properties = table.concat({
      "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
      LISTENER .. "plain.sasl.jaas.config=" .. MODULES
        .. ('plain.PlainLoginModule required user_me="%s";'):format(PASSWORD),
      LISTENER .. "scram-sha-256.sasl.jaas.config=" .. MODULES .. "scram.ScramLoginModule required;",
    }, "\n"),
  }
end

local WAYS = {
  { name = "PLAIN, with the password of the URL", user = "me:" .. escaped(PASSWORD) .. "@", options = "" },
  { name = "SCRAM, with the password of an option", user = "", options = "&security.protocol=sasl_plaintext"
    .. "&sasl.mechanisms=SCRAM-SHA-256&sasl.username=me&sasl.password=" .. escaped(PASSWORD) },
  { name = "PLAIN, exactly once", user = "me:" .. escaped(PASSWORD) .. "@", options = "",
    settings = "exactly_once = true," },
}

describe("kafka with SASL", function()
  if kafka.shared().mock then
    it("needs a real broker", function() pending "no Kafka broker here" end)
    return
  end

  -- A worker on the secured listener. Each message fills the share of its partition, and comes alone: each is a wake.
  local function start(server, port, way)
    local h = harness.new(driver, { name = "sasl", partitions = 2, server = server })
    h.url = ("kafka://%s127.0.0.1:%d/%s?session.timeout.ms=6000&queued.max.messages.kbytes=1"
      .. "&max.partition.fetch.bytes=2000%s"):format(way.user, port, h.prefix, way.options)
    h.worker = h:start { settings = "concurrency = 1, buffer = { count = 1 }," .. (way.settings or ""), handler = [[
      function M.handle(msg)
        trace("done", msg)
        if msg.id:find "0$" then mw.publish("out", "x", { id = msg.id }) end
      end]] }
    return h
  end

  local function publish(h, from, to)
    local list = {}
    for i = from, to do list[#list + 1] = { ("x"):rep(1000), id = "m" .. i, key = "k" .. i % 20 } end
    h:publish(list)
  end

  local function wait_done(h, way, n)
    h:wait(function()
      local seen, count = {}, 0
      for _, line in ipairs(h.trace:of "done") do
        if not seen[line.id] then seen[line.id], count = true, count + 1 end
      end
      return count == n
    end, 90, function() return ("%d messages, %s: %s"):format(n, way.name, h.worker.child:stderr():sub(-1500)) end)
  end

  local function assert_published(h, way, n)
    local out = {}
    h:wait(function()
      for _, m in ipairs(h:messages "out") do out[m.id] = true end
      for i = 10, n, 10 do if not out["m" .. i] then return false end end
      return true
    end, 30, "what was published, " .. way.name)
  end

  it("is let in again after thousands of wakes", function()
    local port = process.free_port()
    local server, scenes, more = assert(secured(port)), {}, 100
    local function count(way) -- a transaction for each message takes its time
      return math.max(200, math.floor((way.settings and 300 or 2000) * harness.scale))
    end
    finally(function()
      for _, h in ipairs(scenes) do h:close() end
      server:stop()
    end)
    for i, way in ipairs(WAYS) do
      scenes[i] = start(server, port, way)
      publish(scenes[i], 1, count(way))
    end
    for i, way in ipairs(WAYS) do wait_done(scenes[i], way, count(way)) end
    server:stop()
    scenes[1]:stay(0.5)
    server:start()
    for i, way in ipairs(WAYS) do
      local h, n = scenes[i], count(way)
      publish(h, n + 1, n + more)
      wait_done(h, way, n + more)
      h:wait_settled("in", 30)
      assert_published(h, way, n + more)
      local log = h.worker.child:stderr()
      assert.is_nil(log:find "[Aa]uthentication", way.name)
      assert.is_nil(log:find("let me in", 1, true), way.name)
      h:stop()
    end
  end)
end)
