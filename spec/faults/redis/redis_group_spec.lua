-- Consumer groups that are destroyed, and consumers that are deleted, while members live: what a member has is not
-- lost, and a group that is made again skips nothing.
local C = require "moonwire.internal.cdef"
local contract = require("spec.contract.redis").plain
local harness = require "spec.support.harness"
local servers = require "spec.support.servers.redis"

C.mw_log_setup(0, 9)

local LATER = [[
  function M.handle(msg)
    trace("try", msg)
    if msg.attempt == 1 then error("later", 0) end
    trace("done", msg)
  end]]

local SLOW = [[
  function M.handle(msg)
    mw.publish("out", msg.body, { id = "out-" .. msg.id })
    trace("begun", msg)
    mw.sleep(1)
    if msg.id:find "5$" then return mw.reject "no" end
    trace("done", msg)
  end]]

local function count(text, what) return select(2, text:gsub(what, "")) end

describe("redis, while members live:", function()
  local server, h
  before_each(function()
    server = servers.start()
    h = harness.new(setmetatable({ url = function(x)
      x.server, x.db = server, 0
      return ("redis://127.0.0.1:%d/0"):format(server.port)
    end }, { __index = contract }))
  end)
  after_each(function()
    h:close()
    if server.child:alive() then server:kill() end
  end)

  local function messages(n, from)
    local list = {}
    for i = from or 1, n do list[#list + 1] = { "body " .. i, id = "m" .. i, key = "k" .. i % 5 } end
    return list
  end

  -- How many different ones, and how many in all.
  local function handled(event)
    local seen, different = {}, 0
    for _, line in ipairs(h.trace:of(event or "done")) do
      if not seen[line.id] then different = different + 1 end
      seen[line.id] = true
    end
    return different, h.trace:count(event or "done")
  end

  local function destroy() assert.equal(1, server:call("XGROUP", "DESTROY", "in", "p")) end

  local function delete_consumer()
    local consumers = server:call("XINFO", "CONSUMERS", "in", "p")
    local name = servers.fields(consumers[1]).name
    assert.is_true(server:call("XGROUP", "DELCONSUMER", "in", "p", name) > 0, "it had nothing pending")
  end

  for what, harm in pairs { ["XGROUP DESTROY"] = destroy, ["XGROUP DELCONSUMER"] = delete_consumer } do
    it(what .. " loses no retry that waits", function()
      local settings = "order = 'none', retry = { backoff = 'fixed', base = 1.5 },"
      local worker = h:start { settings = settings, handler = LATER }
      h:publish(messages(10))
      h:wait(function() return server:call("ZCARD", "{in}:mw:retries:p") == 10 end, 20, "ten to wait for a retry")
      harm()
      h:wait_for("done", 10, 20)
      h:wait_settled("in", 20)
      assert.same({ 10, 10 }, { handled() })
      for _, line in ipairs(h.trace:of "done") do assert.equal(2, line.attempt) end
      if what == "XGROUP DESTROY" then
        assert.equal(1, count(worker.child:stderr(), "the group was gone, and is made again"))
      end
    end)

    for _, order in ipairs { "none", "key" } do
      it(("%s loses nothing of what is being handled with order = %q"):format(what, order), function()
        local worker = h:start { settings = ("order = %q, concurrency = 20, lease = 2, retry = { attempts = 1 },")
          :format(order), handler = SLOW }
        h:publish(messages(20))
        h:wait_for("begun", 5, 20)
        harm()
        h:wait_for("done", 18, 30)
        h:wait(function() return #h:dead() == 2 end, 20, "two dead letters")
        h:wait_settled("in", 20)
        h:stay(0.5)
        assert.same({ 18, 18 }, { handled() })
        assert.equal(18, #h.broker:messages "out")
        assert.equal(2, #h:dead())
        assert.is_true(count(worker.child:stderr(), "were not pending any more") <= 1)
      end)
    end

    it(what .. " and then a crash: what was being handled comes again", function()
      h:start { settings = "order = 'none', concurrency = 20, lease = 2, retry = { attempts = 5 },", handler = [[
        function M.handle(msg)
          trace("begun", msg)
          if trace and msg.attempt == 1 then mw.sleep(20) end
          trace("done", msg)
        end]] }
      h:publish(messages(10))
      h:wait_for("begun", 10, 20)
      h:stay(1) -- it is noted that they were begun
      harm()
      h:wait(function()
        local pending = server:call("XPENDING", "in", "p")
        return pending and pending[1] == 10
      end, 10, "all to be pending again")
      h:kill()
      h:start()
      h:wait_for("done", 10, 30)
      h:wait_settled("in", 20)
      assert.equal(10, (handled()))
    end)
  end

  it("a group that is destroyed while nobody runs begins with what was not settled", function()
    h:start { settings = "order = 'none', concurrency = 3, lease = 2,", handler = [[
      function M.handle(msg)
        trace("begun", msg)
        if msg.attempt == 1 and tonumber(msg.id:match "%d+") > 10 then mw.sleep(30) end
        trace("done", msg)
      end]] }
    h:publish(messages(20))
    h:wait_for("done", 10, 20)
    h:stay(1.2) -- two ticks
    h:kill()
    destroy()
    h:start { settings = "order = 'none',", handler = [[function M.handle(msg) trace("done", msg) end]] }
    h:wait_for("done", 20, 20)
    h:wait_settled("in", 20)
    local different, all = handled()
    assert.equal(20, different)
    assert.is_true(all <= 21, all .. " were handled")
  end)

  it("FLUSHALL: what is being handled is published all the same", function()
    h:start { settings = "order = 'key', concurrency = 20, lease = 2,", handler = SLOW }
    h:publish(messages(4))
    h:wait_for("begun", 4, 20)
    server:call "FLUSHALL"
    h:wait_for("done", 4, 20)
    h:wait(function() return #h.broker:messages "out" == 4 end, 10, "what they published")
    h:publish(messages(9, 6))
    h:wait(function() return #h.broker:messages "out" == 8 end, 20, "the new ones")
  end)
end)
