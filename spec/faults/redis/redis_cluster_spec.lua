-- Redis Streams on the nodes of a cluster: a script may touch one slot only, and a key may lie on another node.
local C = require "moonwire.internal.cdef"
local contract = require("spec.contract.redis").plain
local harness = require "spec.support.harness"
local servers = require "spec.support.servers.redis"
local wait = require "spec.support.wait"

C.mw_log_setup(0, 9)

local HANDLER = [[
  function M.handle(msg)
    mw.publish("out", msg.body, { id = "out-" .. msg.id })
    mw.publish("late", msg.body, { id = "late-" .. msg.id, delay = 0.1 })
    trace("done", msg)
    if msg.id:find "5$" then error("no", 0) end
  end]]

describe("redis, on a cluster", function()
  local running, h = {}, nil

  local function node(from, to)
    local server = servers.start { extra = { "--cluster-enabled", "yes", "--cluster-node-timeout", "60000" } }
    running[#running + 1] = server
    if from then assert.equal("OK", server:call("CLUSTER", "ADDSLOTSRANGE", from, to)) end
    return server
  end

  local function wait_ok(...)
    for _, server in ipairs { ... } do
      wait.until_(function() return server:call("CLUSTER", "INFO"):find "cluster_state:ok" end, 30, "the cluster")
    end
  end

  local function new(server, url)
    h = harness.new(setmetatable({ url = function(x)
      x.server, x.db = server, 0
      return ("redis://127.0.0.1:%d"):format(server.port)
    end }, { __index = contract }))
    h.url = url or h.url
  end

  after_each(function()
    if h then h:close() end
    for _, server in ipairs(running) do if server.child:alive() then server:kill() end end
    running, h = {}, nil
  end)

  local function messages(n)
    local list = {}
    for i = 1, n do list[i] = { "body " .. i, id = "m" .. i, key = "k" .. i % 5 } end
    return list
  end

  for _, dedupe in ipairs { "", "dedupe = true," } do
    it(("of one node publishes to and buries in other slots; %s"):format(dedupe), function()
      local server = node(0, 16383)
      wait_ok(server)
      assert.not_equal(server:call("CLUSTER", "KEYSLOT", "in"), server:call("CLUSTER", "KEYSLOT", "out"))
      new(server)
      local settings = "lease = 2, retry = { attempts = 2, base = 0.01 }," .. dedupe
      local worker = h:start { settings = settings, handler = HANDLER }
      h:publish(messages(10))
      h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
      h:wait_settled("in", 20)
      assert.equal(9, #h.broker:messages "out")
      assert.equal(9, server:call("ZCARD", "{late}:mw:delayed"))
      assert.is_nil(worker.child:stderr():find("CROSSSLOT", 1, true))
      if dedupe == "" then return end
      h:publish(messages(4)) -- all of them seen before
      h:wait_settled("in", 20)
      h:stay(0.3)
      assert.equal(9, #h.broker:messages "out")
    end)
  end

  it("that does not let us ask what it is, learns it from its answers", function()
    local server = node(0, 16383)
    wait_ok(server)
    server:call("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-hello")
    new(server, ("redis://app:pw@127.0.0.1:%d"):format(server.port))
    h:start { settings = "lease = 2,", handler = [[function M.handle(msg) mw.publish("out", msg.body) end]] }
    h:publish(messages(10))
    h:wait_settled("in", 20)
    assert.equal(10, #h.broker:messages "out")
  end)

  it("of two nodes says that a channel lies on the other, and goes on with the rest", function()
    local one, two = node(0, 8191), node(8192, 16383)
    one:call("CLUSTER", "MEET", "127.0.0.1", tostring(two.port))
    wait_ok(one, two)
    local home = one:call("CLUSTER", "KEYSLOT", "in") > 8191 and two or one
    local away
    for i = 1, 100 do
      local slot = one:call("CLUSTER", "KEYSLOT", "away" .. i)
      if (slot > 8191) ~= (home == two) then away = "away" .. i break end
    end
    new(home)
    local settings = "lease = 2, concurrency = 4, retry = { attempts = 100, base = 0.2 },"
    local worker = h:start { settings = settings, handler = ([[
      function M.handle(msg)
        if msg.id == "m1" then mw.publish(%q, "x") end
        trace("done", msg)
      end]]):format(away) }
    h:publish(messages(10))
    h:wait(function() return worker.child:stderr():find("lies on another node", 1, true) end, 20, "it to be said")
    h:wait(function()
      local pending = home:call("XPENDING", "in", "p")
      return pending and pending[1] == 2 and h.trace:count "done" >= 9 -- m1, and m6 of the same key
    end, 20, "the others to be handled")
    assert.is_nil(worker.child:stderr():find("connection lost", 1, true))
  end)

  it("whose node it was led to is gone, asks the one that it was given again", function()
    local one, two = node(), node()
    one:call("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
    two:call("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
    one:call("CLUSTER", "MEET", "127.0.0.1", tostring(two.port))
    wait_ok(one, two)
    local in_two = one:call("CLUSTER", "KEYSLOT", "in") > 8191
    local home, other = in_two and two or one, in_two and one or two
    new(home, ("redis://127.0.0.1:%d"):format(other.port))
    local worker = h:start { settings = "lease = 2,", handler = [[function M.handle(msg) trace("done", msg) end]] }
    h:publish(messages(5))
    h:wait_for("done", 5, 20)
    home:kill()
    h:wait(function() return worker.child:stderr():find("connection refused", 1, true) end, 20, "the loss to be logged")
    -- The other node takes over all slots; it does not wait for a majority that is not there any more.
    other:call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    local slots = { "CLUSTER", "DELSLOTSRANGE", in_two and 8192 or 0, in_two and 16383 or 8191 }
    assert.equal("OK", other:call(unpack(slots)))
    slots[2] = "ADDSLOTSRANGE"
    assert.equal("OK", other:call(unpack(slots)))
    wait.until_(function() return other:call("CLUSTER", "INFO"):find "cluster_state:ok" end, 30, "the cluster")
    other:call("XADD", "in", "*", "id", "m6", "body", "x")
    h:wait_for("done", 6, 30)
  end)
end)
