-- Kafka when not everything is allowed, or nobody is there: it is said at once what is wrong, and when that is mended
-- work goes on by itself.
local C = require "moonwire.internal.cdef"
local broker = require "spec.support.broker"
local client = require "spec.support.servers.kafka_client"
local clock = require "spec.support.wait"
local kafka = require "spec.support.servers.kafka"
local process = require "spec.support.process"
local supervised = require "spec.support.supervised"
local tcp_proxy = require "spec.support.tcp_proxy"

C.mw_log_setup(0, 9)

local LATE = supervised.late
local P = [[
function M.handle(msg)
  if msg.id == "secret" then mw.publish("secret", "x", { id = "out-secret" }) end
  mw.publish("out", "x", { id = "out-" .. msg.id })
  trace("done", msg)
end]]

local function said(...)
  local ran = process.run { { supervised.binary, ... }, timeout = 60 }
  return ran.code, ran.stdout .. ran.stderr
end

describe("kafka", function()
  if kafka.shared().mock then
    it("needs a real broker", function() pending "no Kafka broker here" end)
    return
  end

  local server, port, prefix
  setup(function()
    port = process.free_port()
    server = assert(kafka.new { sasl = { port = port }, properties = table.concat({
      "sasl.enabled.mechanisms=PLAIN",
      "listener.name.sasl_plaintext.plain.sasl.jaas.config="
        .. 'org.apache.kafka.common.security.plain.PlainLoginModule required user_me="open";',
      "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
      "super.users=User:ANONYMOUS", "allow.everyone.if.no.acl.found=true",
    }, "\n") })
  end)
  teardown(function() server:stop() end)

  local function url(password)
    return ("kafka://me:%s@127.0.0.1:%d/%s?session.timeout.ms=3000"):format(password or "open", port, prefix)
  end

  -- Who is named nowhere in the list of a topic may do nothing there.
  local function forbid(topic)
    client.permit(server.bootstrap, "allow", "User:other", "topic", "all", prefix .. topic)
  end

  local function scene(name, settings)
    prefix = name .. "."
    client.create(server.bootstrap, { [prefix .. "in"] = { partitions = 2 }, [prefix .. "out"] = {},
      [prefix .. "secret"] = {}, [prefix .. "in.dead"] = {} })
    local s = supervised.scene { handler = P, settings = settings, flags = { "--workers", "0" } }
    s.url = url()
    s.outside = broker.open(("kafka://%s/%s"):format(server.bootstrap, prefix))
    finally(function() assert(s.child:stop(20) == 0, s.child:stderr()) end)
    return s
  end

  local function numbered(n)
    local list = {}
    for i = 1, n do list[i] = { "x", id = i == 50 and "secret" or "m" .. i, key = "k" .. i } end
    return list
  end

  for _, exactly in ipairs { true, false } do
    it("buries what publishes where it may not, and it alone" .. (exactly and ", exactly once" or ""), function()
      local s = scene(exactly and "exactly" or "plain",
        ("exactly_once = %s, retry = { attempts = 2, base = 0.05 },"):format(tostring(exactly)))
      forbid "secret"
      s.outside:publish("in", numbered(100))
      s:start()
      local function dead() return s.outside:messages "in.dead" end
      broker.turn_until(function() return #dead() > 0 end, 40 * LATE, "the dead letter")
      broker.turn_until(function() return #s.outside:messages "out" >= 99 end, 40 * LATE, "the outputs of the others")
      local letters, outs = dead(), {}
      assert.equal(1, #letters)
      assert.equal("secret", letters[1].id)
      assert.equal("2", letters[1].headers["mw-dead-attempts"])
      assert.matches("[Aa]uthorization failed", letters[1].headers["mw-dead-last-error"])
      for _, m in ipairs(s.outside:messages "out") do outs[m.id] = (outs[m.id] or 0) + 1 end
      for i = 1, 100 do assert.equal(i ~= 50 and 1 or nil, outs["out-m" .. i]) end
      if exactly then assert.is_nil(outs["out-secret"]) end
    end)
  end

  it("waits for a topic that is not there, or may not be read, and says so", function()
    local s = scene "wait"
    forbid "in"
    s.outside:publish("in", numbered(10))
    s:start()
    s:see "Topic authorization failed"
    assert.matches("authorization failed", s:status().connections[1].error)
    client.permit(server.bootstrap, "allow", "User:me", "topic", "all", prefix .. "in")
    clock.until_(function() return s.trace:count "done" == 10 end, 60 * LATE, function()
      return s.trace:count "done" .. " came: " .. s.child:stderr()
    end)
  end)

  it("tells commands what is wrong: password, rights, topic, broker", function()
    prefix = "cli."
    client.create(server.bootstrap, { ["cli.in"] = {}, ["cli.secret"] = {} })
    forbid "secret"
    for _, verb in ipairs { { "tail", "--no-follow" }, { "dlq", "ls" }, { "publish" } } do
      local function try(channel, address)
        local words = { verb[1], unpack(verb, 2) }
        if verb[1] == "dlq" then words = { "dlq", "ls" } end
        words[#words + 1] = channel
        if verb[1] == "publish" then words[#words + 1] = "body" end
        words[#words + 1], words[#words + 2] = "--broker", address
        local code, text = said(unpack(words))
        assert.equal(69, code, text)
        assert.is_nil(text:find("wrong-password", 1, true))
        return text
      end
      assert.matches("Invalid username or password", try("in", url "wrong-password"), 1, true)
      assert.matches("Topic authorization failed", try("secret", url()), 1, true)
      assert.matches("Unknown topic or partition", try("nowhere", url()), 1, true)
      assert.matches("Connection refused", try("in", "kafka://127.0.0.1:1/"), 1, true)
    end
  end)

  it("says at start that no broker answers, and begins when one does", function()
    local proxy = tcp_proxy.start(tonumber(server.bootstrap:match "%d+$"))
    proxy:say "refuse"
    finally(function() proxy:stop() end)
    local s = scene "late"
    s.url = ("kafka://127.0.0.1:%d/late."):format(proxy.port)
    s.outside:publish("in", numbered(10))
    s:start()
    s:see 'level=warn msg="c[^"]*" broker=kafka' -- or it was lost, if the proxy took a moment to refuse
    local connection = s:status().connections[1]
    assert.equal("waiting", connection.state)
    assert.is_true(#connection.error > 0)
    proxy:say "pass"
    clock.until_(function() return s.trace:count "done" == 10 end, 30 * LATE, function() return s.child:stderr() end)
    assert.equal("up", s:status().connections[1].state)
  end)

  it("ends when it is asked to, without a broker", function()
    local s = supervised.scene { handler = P, flags = { "--workers", "1" } }
    s.url = "kafka://127.0.0.1:1/"
    s:start()
    s:see 'msg="cannot connect; trying again"[^\n]*Connection refused'
    assert.equal(0, (s.child:stop(20)), s.child:stderr())
  end)
end)
