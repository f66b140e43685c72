-- Redis Streams under attack: servers that die, networks that cut, stall and dribble, connections that are killed, data
-- that is flushed. Each case counts: nothing may be lost, and what is handled twice is bounded by what was in flight.
local C = require "moonwire.internal.cdef"
local contract = require("spec.contract.redis").plain
local harness = require "spec.support.harness"
local process = require "spec.support.process"
local proxies = require "spec.support.tcp_proxy"
local servers = require "spec.support.servers.redis"

C.mw_log_setup(0, 9) -- the spec's own links lose their servers too

local BUFFER = 64
local SETTINGS = ("concurrency = 8, lease = 2, buffer = { count = %d }, retry = { attempts = 1000, base = 0.01 },")
  :format(BUFFER)
local HANDLER = [[
  function M.handle(msg)
    mw.publish("out", msg.body, { id = "out-" .. msg.id })
    mw.sleep(0.001)
    trace("done", msg)
  end]]

local SLOWER = HANDLER:gsub("0.001", "0.01")

local function count(text, what) return select(2, text:gsub(what, "")) end

describe("redis", function()
  local server, open = nil, {}

  -- A harness on a server of its own; port: of a proxy in front of it. The spec itself looks past the proxy.
  local function new(port, query)
    local driver = setmetatable({ url = function(h)
      h.server, h.db = server, 0
      return ("redis://127.0.0.1:%d/0%s"):format(server.port, query or "")
    end }, { __index = contract })
    local h = harness.new(driver)
    if port then h.url = ("redis://127.0.0.1:%d/0%s"):format(port, query or "") end
    open[#open + 1] = h
    return h
  end

  local function messages(n, from)
    local list = {}
    for i = from or 1, n do list[#list + 1] = { "body " .. i, id = "m" .. i, key = "k" .. i % 20 } end
    return list
  end

  local function assert_each_done(h, n, again)
    local seen, different = {}, 0
    for _, line in ipairs(h.trace:of "done") do
      if not seen[line.id] then different = different + 1 end
      seen[line.id] = true
    end
    for i = 1, n do assert.is_true(seen["m" .. i], "m" .. i .. " was never handled") end
    local twice = h.trace:count "done" - different
    assert.is_true(twice <= again, twice .. " were handled again")
  end

  -- One message out for one in, however often it was handled: ack and publish are one step.
  local function assert_out(h, n)
    local found, seen = 0, {}
    for _, m in ipairs(h.broker:messages "out") do
      assert.is_nil(seen[m.id], m.id .. " was published twice")
      seen[m.id] = true
      found = found + 1
    end
    assert.equal(n, found)
  end

  before_each(function() server = servers.start() end)

  after_each(function()
    for _, h in ipairs(open) do h:close() end
    open = {}
    if server.child:alive() then server:kill() end
  end)

  it("loses nothing when the server is killed and started again, three times", function()
    local h = new()
    local n = h:scaled(1500, 300)
    h:start { settings = SETTINGS, handler = HANDLER }
    h:publish(messages(n))
    for i = 1, 3 do
      h:wait_for("done", math.floor(n / 5) * i, 30)
      server:kill "KILL"
      h:stay(0.2)
      server:start()
    end
    h:wait_settled("in", 40)
    assert_each_done(h, n, 3 * BUFFER)
    assert_out(h, n)
  end)

  it("loses nothing when server and worker are killed together", function()
    local h = new()
    local n = h:scaled(1000, 300)
    h:start { settings = SETTINGS, handler = HANDLER }
    h:publish(messages(n))
    for i = 1, 3 do
      h:wait_for("done", math.floor(n / 5) * i, 30)
      server:kill "KILL"
      h:kill()
      server:start()
      h:start()
    end
    h:wait_settled("in", 40)
    assert_each_done(h, n, 3 * BUFFER)
    assert_out(h, n)
  end)

  it("loses nothing when connections are cut again and again", function()
    local proxy = proxies.start(server.port)
    local h = new(proxy.port)
    local n = h:scaled(1500, 300)
    local worker = h:start { settings = SETTINGS, handler = SLOWER }
    h:publish(messages(n))
    for i = 1, 5 do
      h:wait_for("done", math.floor(n / 7) * i, 30)
      proxy:say "cut 40"
      h:stay(0.2)
      proxy:say "pass"
    end
    h:wait_settled("in", 40)
    proxy:stop()
    assert.is_true(count(worker.child:stderr(), "connection lost") >= 3, "it was hardly ever cut")
    assert_each_done(h, n, 10 * BUFFER)
    assert_out(h, n)
  end)

  it("notices a network that goes silent, and goes on when it is back", function()
    local proxy = proxies.start(server.port)
    local h = new(proxy.port, "?timeout=1")
    local n = h:scaled(800, 200)
    local worker = h:start { settings = SETTINGS, handler = SLOWER }
    h:publish(messages(math.floor(n / 2)))
    h:wait_for("done", 10, 20)
    proxy:say "stall"
    local function noticed() return worker.child:stderr():find("no answer in time", 1, true) end
    h:wait(noticed, 20, "the silence to be noticed")
    h:publish(messages(n, math.floor(n / 2) + 1))
    proxy:say "pass"
    h:wait_settled("in", 40)
    proxy:stop()
    assert_each_done(h, n, 2 * BUFFER)
    assert_out(h, n)
  end)

  it("understands a peer that sends one byte at a time", function()
    local proxy = proxies.start(server.port)
    proxy:say "bytes"
    local h = new(proxy.port)
    h:start { settings = SETTINGS, handler = HANDLER }
    h:publish(messages(30))
    h:wait_settled("in", 60)
    proxy:stop()
    assert_each_done(h, 30, 0)
    assert_out(h, 30)
  end)

  it("goes on after CLIENT KILL, whichever connection it hits", function()
    local h = new()
    local n = h:scaled(1500, 300)
    h:start { settings = SETTINGS, handler = HANDLER }
    h:publish(messages(n))
    for i = 1, 6 do
      h:wait_for("done", math.floor(n / 8) * i, 30)
      server:call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
      h:stay(0.1)
    end
    h:wait_settled("in", 40)
    assert_each_done(h, n, 6 * BUFFER)
    assert_out(h, n)
  end)

  it("ends in time, and well, when it is told to while the server is silent", function()
    local h = new(nil, "?timeout=30")
    local worker = h:start { drain = 1, settings = "concurrency = 8, order = 'none', lease = 2,", handler = [[
      function M.handle(msg)
        mw.publish("out", msg.body, { id = "out-" .. msg.id })
        trace("begun", msg)
        mw.sleep(0.3)
        if msg.attempt == 1 and msg.id:find "5$" then error("later", 0) end
        trace("done", msg)
      end]] }
    h:publish(messages(40))
    h:wait_for("begun", 8, 20)
    server.child:kill "STOP" -- what is settled from now on is sent and never answered
    h:stay(1)
    worker.child:kill "TERM"
    local code, why, signal = worker.child:wait(20)
    server.child:kill "CONT"
    h.workers[worker] = nil
    local log = worker.child:stderr()
    assert.is_nil(log:find("Sanitizer", 1, true), log:sub(-3000))
    assert.equal(0, code, ("%s %s\n%s"):format(why, signal, log:sub(-2000)))
    h:start()
    h:wait_settled("in", 30)
    assert_out(h, 40)
  end)

  it("makes stream and group anew after FLUSHALL", function()
    local h = new()
    h:start { settings = SETTINGS, handler = HANDLER }
    h:publish(messages(20))
    h:wait_settled("in", 20)
    for round = 1, 3 do
      server:call "FLUSHALL"
      h:publish(messages(20 + round * 20, 1 + round * 20))
      h:wait_for("done", 20 + round * 20, 20)
      h:wait_settled("in", 20)
    end
    assert_each_done(h, 80, 0)
  end)

  it("makes a destroyed group anew, behind what it had read", function()
    local h = new()
    h:start { settings = SETTINGS, handler = HANDLER }
    h:publish(messages(50))
    h:wait_settled("in", 20)
    server:call("XGROUP", "DESTROY", "in", "p")
    h:publish(messages(100, 51))
    h:wait_for("done", 100, 20)
    h:wait_settled("in", 20)
    assert_each_done(h, 100, 0)
  end)

  it("scripts that were flushed are loaded again", function()
    local h = new()
    h:start { settings = SETTINGS, handler = HANDLER }
    h:publish(messages(20))
    h:wait_settled("in", 20)
    server:call("SCRIPT", "FLUSH")
    h:publish(messages(40, 21))
    h:wait_settled("in", 20)
    assert_each_done(h, 40, BUFFER)
    assert_out(h, 40)
  end)

  it("entries that were deleted or trimmed under the consumer hold up nobody", function()
    local h = new()
    h:start { settings = "concurrency = 2, order = 'none', retry = { backoff = 'fixed', base = 0.5 },", handler = [[
      function M.handle(msg)
        if msg.attempt == 1 then error("later", 0) end
        trace("done", msg)
      end]] }
    h:publish(messages(20))
    h:wait(function() return server:call("ZCARD", "{in}:mw:retries:p") == 20 end, 20, "twenty to wait for a retry")
    local entries = server:call("XRANGE", "in", "-", "+", "COUNT", "10")
    for _, entry in ipairs(entries) do server:call("XDEL", "in", entry[1]) end
    h:wait_for("done", 10, 20)
    h:wait_settled("in", 20)
    assert.equal(10, h.trace:count "done")
    assert.equal(0, server:call("HLEN", "{in}:mw:tries:p"))
  end)

  describe("with workers on two machines", function()
    -- Another pid namespace is another machine to us: nobody there can see that a process is gone.
    local function on_another_machine(h, given)
      local worker = h:start(given)
      worker.child:kill "TERM"
      worker.child:wait(10)
      h.workers[worker] = nil
      local argv = { "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", os.getenv "MOONWIRE_BIN", "run",
                     worker.dir }
      worker.child = process.spawn { argv, env = { BROKER_URL = h.url .. "?consumer=far" }, stdout = worker.log,
                                     stderr = worker.log }
      h.workers[worker] = true
      return worker
    end

    for _, order in ipairs { "key", "none" } do
      it(("shares a group with order = %q, and takes over after the lease"):format(order), function()
        if process.run({ "unshare", "--pid", "--fork", "--mount-proc", "true" }).code ~= 0 then
          pending "no pid namespaces here"
          return
        end
        local h = new()
        local n = h:scaled(1000, 300)
        local given = { settings = SETTINGS .. ("order = %q,"):format(order), handler = [[
          function M.handle(msg)
            mw.publish("out", msg.body, { id = "out-" .. msg.id })
            mw.sleep(0.004)
            trace("done", msg)
          end]] }
        local far = on_another_machine(h, given)
        h:wait(function() return far.child:stderr():find "started" end, 20, "the far worker")
        h:wait(function() return (server:call("HLEN", "{in}:mw:group:p") or 0) > 0 end, 20, "it to be a member")
        h:start()
        h:publish(messages(n))
        h:wait_for("done", math.floor(n / 5), 30)
        far.child:kill "KILL"
        far.child:wait(10)
        h.workers[far] = nil
        h:wait_settled("in", 40)
        assert_each_done(h, n, BUFFER)
        assert_out(h, n)
      end)
    end
  end)
end)
