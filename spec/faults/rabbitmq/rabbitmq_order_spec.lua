-- The order of one publisher's messages, where RabbitMQ makes it hard: queues and streams that somebody makes or
-- deletes at this very moment. And looking into streams, which disturbs nobody.
local C = require "moonwire.internal.cdef"
local cli = require "spec.functional.cli.support"
local contract = require("spec.contract.rabbitmq").classic
local harness = require "spec.support.harness"
local process = require "spec.support.process"
local rabbitmq = require "spec.support.servers.rabbitmq"

C.mw_log_setup(0, 9) -- the spec's own links lose their broker too

describe("rabbitmq, order of publishing:", function()
  local server
  local open = harness.closing(after_each)

  setup(function() server = rabbitmq.get() end)

  local function new(streams)
    return open(setmetatable({ url = function(h)
      return contract.url(h) .. (streams and "&streams=" .. streams or "")
    end }, { __index = contract }))
  end

  local function numbered(n, body)
    local list = {}
    for i = 1, n do list[i] = { body or "x", id = "m" .. i } end
    return list
  end

  -- The numbers of the messages, in order, once each: more than once only where a publish was repeated.
  local function numbers(list)
    local all = {}
    for i, m in ipairs(list) do all[i] = tonumber(m.id:sub(2)) end
    return all
  end

  local function assert_rising(all)
    for i = 2, #all do
      assert.is_true(all[i] >= all[i - 1], ("m%d stands behind m%d"):format(all[i], all[i - 1]))
    end
  end

  it("a stream that somebody is just making gets them in order", function()
    local names = {}
    for i = 1, 16 do names[i] = "s" .. i end
    local h = new(table.concat(names, ","))
    h:publish("other", numbered(1)) -- the connection is there
    for i, name in ipairs(names) do
      server:make_after(math.floor(i / 4), h.vhost, name, "stream")
      h:publish(name, numbered(200))
    end
    for _, name in ipairs(names) do
      local all = numbers(h.broker:messages(name, 200))
      assert.equal(1, all[1], name)
      assert.equal(200, #all, name)
      assert_rising(all)
    end
  end)

  it("a quorum queue that somebody is just making gets them in order, and refuses none", function()
    local h = new(nil)
    h:publish("other", numbered(1)) -- the connection is there
    for i = 1, 16 do
      local name = "q" .. i
      server:make_after(math.floor(i / 4), h.vhost, name, "quorum")
      h.broker:publish(name, numbered(50), 1)
      local all = numbers(h.broker:messages(name, 50))
      assert.equal(50, #all, name)
      for k = 1, 50 do assert.equal(k, all[k], name) end
    end
  end)

  it("a queue that is deleted meanwhile gets those that came after it in order", function()
    local hit = 0
    for _ = 1, 12 do -- until it was deleted in the middle of them, three times
      local h = new()
      h:publish { { "x", id = "m0" } }
      server:delete_queue_with(100, h.vhost, "in")
      h:publish(numbered(1500, ("b"):rep(3000)))
      local all = numbers(h.broker:messages "in")
      assert_rising(all)
      if all[1] and all[1] > 1 then
        hit = hit + 1
        assert.equal(1500, all[#all])
        assert.equal(1500 - all[1] + 1, #all)
      end
      if hit == 3 then return end
    end
    error "it was never deleted in the middle"
  end)

  --- Looking into streams ---------------------------------------------------------------------------------------------

  local function tail(url, ...)
    local result = process.run { { cli.binary, "tail", "--broker", url, "events", ... }, timeout = 40 }
    assert.equal(0, result.code, result.stderr)
    local ids = {}
    for line in result.stdout:gmatch "[^\n]+" do ids[#ids + 1] = line:match "%s(m%d+)%s" end
    return ids, result.stderr
  end

  it("tail reads a stream, again and again, and takes nothing from its readers", function()
    local h = new "events"
    h:publish("events", numbered(1200))
    local ids = tail(h.url, "--no-follow")
    assert.equal(1200, #ids)
    assert.equal("m1", ids[1])
    assert.equal("m1200", ids[1200])
    assert.equal(3, #tail(h.url, "--no-follow", "--count", "3"))
    h:start { more = [[mw.pipeline "e" { from = broker:channel("events"), handler = "handlers.p" }]],
              handler = [[function M.handle(msg) trace("done", msg) end]] }
    h:wait_for("done", 1200, 40)
    assert.equal(1200, h.trace:count "done")
    assert.equal(1200, #tail(h.url, "--no-follow"))
  end)

  it("tail recognises a stream that it was not told of, and follows it from its end", function()
    local h = new "events"
    local untold = h.url:gsub("&streams=.*", "")
    h:publish("events", numbered(10))
    local ids, why = tail(untold, "--no-follow")
    assert.equal(10, #ids)
    assert.matches("this is a stream", why)
    local child = process.spawn { { cli.binary, "tail", "--broker", untold, "events", "--count", "2" } }
    h:wait(function() return child:stderr():find("this is a stream", 1, true) end, 20, "the stream to be recognised")
    local sent = 0
    h:wait(function() -- from when on it follows it does not tell
      sent = sent + 1
      h:publish("events", { { "new", id = "n" .. sent } })
      h:stay(0.3)
      return not child:alive()
    end, 30, "the end of tail")
    assert.is_nil(child:stdout():find "m%d")
    assert.is_truthy(child:stdout():find "n%d")
  end)

  it("nothing can be taken out of a stream, and that is said", function()
    local h = new "events"
    h:publish("events", numbered(2))
    local untold = h.url:gsub("&streams=.*", "")
    for _, url in ipairs { h.url, untold } do
      local result = process.run { { cli.binary, "dlq", "purge", "events", "--yes", "--broker", url }, timeout = 40 }
      assert.equal(1, result.code)
      assert.matches('"events" is a stream, and nothing can be taken out of one', result.stderr)
    end
    assert.equal(2, #h.broker:messages "events")
  end)
end)
