-- What RabbitMQ does to a client that is slow, wrong or unlucky: bodies that are larger than the room for them, messages
-- that cannot be represented, queues that cannot be declared or are not there, channels that are closed. Each case
-- asks for two things: nothing is lost, and the rest goes on.
local C = require "moonwire.internal.cdef"
local contract = require("spec.contract.rabbitmq").classic
local harness = require "spec.support.harness"
local process = require "spec.support.process"
local rabbitmq = require "spec.support.servers.rabbitmq"

C.mw_log_setup(0, 9) -- the spec's own links lose their broker too

local MB = 1024 * 1024

describe("rabbitmq, the protocol", function()
  local server, open = nil, {}

  setup(function() server = rabbitmq.get() end)
  after_each(function()
    for _, h in ipairs(open) do h:close() end
    open = {}
  end)
  teardown(function() process.cleanup() end)

  local function new(options)
    local driver = setmetatable(options and { url = function(h) return contract.url(h) .. options end } or {},
      { __index = contract })
    local h = harness.new(driver)
    open[#open + 1] = h
    return h
  end

  local function binary(text) return "<<" .. table.concat({ text:byte(1, -1) }, ",") .. ">>" end

  local function queue_eval(h, queue, then_do)
    return server:eval(("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s)), %s"):format(binary(h.vhost),
      binary(queue), then_do))
  end

  local function unacked(h)
    return tonumber((queue_eval(h, "in", "rabbit_amqqueue:info(Q, [messages_unacknowledged])"):match "(%d+)}"))
  end

  -- As if the broker's send_timeout were this long; half a minute otherwise.
  local function hurry(ms)
    server:eval(("[catch inet:setopts(P, [{send_timeout, %d}]) || P <- erlang:ports(), %s]"):format(ms,
      "element(1, catch inet:peername(P)) == ok"))
  end

  --- Bodies -----------------------------------------------------------------------------------------------------------

  for _, order in ipairs { "none", "key" } do
    it("reads on while large bodies wait for slow handlers, and its acks go through, order = " .. order, function()
      local h = new()
      local list = {}
      for i = 1, 20 do list[i] = { ("x"):rep(2 * MB), id = "m" .. i, key = "k" } end
      h:publish(list)
      local settings = "order = %q, concurrency = 1, timeout = 60, buffer = { bytes = 1048576 },"
      local worker = h:start { settings = settings:format(order), handler = [[
        function M.handle(msg) trace("begin", msg) mw.sleep(3) trace("done", msg) end]] }
      h:wait_for("begin", 1, 20)
      hurry(1000)
      h:wait_for("done", 3, 40)
      assert.is_nil(worker.child:stderr():find("connection lost", 1, true), worker.child:stderr())
      assert.is_true(h.trace:count "begin" <= 4, "a message began again")
      h:wait(function() return server:unsettled(h.vhost, "in") <= 17 end, 5, "the acks")
    end)

    it("lets the broker send few ahead when bodies are large, and more when they are small, order = " .. order, function()
      local h = new()
      local list = {}
      for i = 1, 250 do list[i] = { ("x"):rep(i <= 150 and 400000 or 100), id = "m" .. i, key = "k" .. i } end
      h:publish(list)
      local settings = "order = %q, concurrency = 1, buffer = { bytes = 1048576, count = 100 },"
      h:start { settings = settings:format(order), handler = [[
        function M.handle(msg) mw.sleep(#msg.body > 100 and 0.03 or 0.01) trace("done", msg) end]] }
      h:wait_for("done", 120, 60)
      local large = unacked(h)
      assert.is_true(large <= 25, large .. " were sent ahead")
      h:wait(function() return unacked(h) > 40 end, 20, "more of the small ones")
      h:wait_for("done", 250, 60)
      h:wait_settled()
    end)
  end
end)
