-- rabbitmq.lua - the entries of RabbitMQ in drivers.lua: one server of a version, a vhost for each case.
local clock = require "spec.support.wait"
local rabbitmq = require "spec.support.servers.rabbitmq"

local LACKS = {
  groups = "a queue has one group; a second is refused at start",
  start = "a queue has no place to begin at; refused at start",
  priority = "needs a queue with max_priority; proved by rabbitmq-tls",
}

-- Nothing may be written, for a while: a policy makes "out" and the dead letters full, with reject-publish. How many
-- publishes meet it is not for us to say; those that look at the channel end it.
local REFUSAL = 0.6
local REFUSING = { "out", "in.dead" }

-- They have to be there before, and to refuse: a queue that becomes full first, and learns to refuse then, drops its
-- head in between.
local ARGUMENTS = '[{<<"x-overflow">>, longstr, <<"reject-publish">>}]'

local function prepare_refusal(h, server)
  for _, need in ipairs(h.case and h.case.needs or {}) do
    if need == "refuse" then
      for _, queue in ipairs(REFUSING) do server:declare(h.vhost, queue, ARGUMENTS) end
    end
  end
end

local function server_of(h) return rabbitmq.get(h.driver.server) end

local function refuse(h)
  server_of(h):full(h.vhost, "^(" .. table.concat(REFUSING, "|") .. ")$", true)
  h.refused_until = clock.now() + REFUSAL
end

local function end_refusal(h)
  if not h.refused_until or clock.now() < h.refused_until then return end
  server_of(h):full(h.vhost, nil, false)
  h.refused_until = nil
end

-- Twice where delay queues are classic: on its way from there back into its own a message is in neither for a moment. A
-- quorum queue keeps it until the other has it (spec/faults/rabbitmq/rabbitmq_delay_spec.lua).
local function unsettled(h, channel)
  local server = server_of(h)
  local left = server:unsettled(h.vhost, channel)
  if left > 0 or h.driver.never_between then return left end
  h:stay(0.05)
  return server:unsettled(h.vhost, channel)
end

local function entry(name, url, more)
  local fields = {
    name = name,
    outside = true,
    url = function(h)
      local server = server_of(h)
      h.vhost = ("%s-%s"):format(name, h.name)
      server:vhost(h.vhost)
      prepare_refusal(h, server)
      return url(server, h.vhost)
    end,
    version = function() return "RabbitMQ " .. rabbitmq.get(more and more.server):version() end,
    is_empty = function(h, channel)
      end_refusal(h)
      return unsettled(h, channel) == 0
    end,
    -- Messages that wait for their time stand in queues beside it. Those that a worker has cannot be looked at: for
    -- each of them there is one without a name.
    messages = function(h, channel)
      local server = server_of(h)
      end_refusal(h)
      local list = h.broker:messages(channel)
      for _, tier in ipairs(server:tiers(h.vhost, channel)) do
        for _, m in ipairs(h.broker:messages(tier)) do list[#list + 1] = m end
      end
      for _ = #list + 1, unsettled(h, channel) do list[#list + 1] = { id = "?" } end
      return list
    end,
    close = function(h) server_of(h):drop_vhost(h.vhost) end,
    refuse = refuse,
    notes = 0.3,
    counts = "deaths", -- not a connection that a worker lost and has again
    lacks = LACKS,
  }
  for field, value in pairs(more or {}) do fields[field] = value end
  return fields
end

local M = {}

local function classic_url(server, vhost) return rabbitmq.url(server, vhost, "?heartbeat=1") end

local function quorum_url(server, vhost)
  return rabbitmq.url(server, vhost, "?heartbeat=1&queue_type=quorum&single_active=true")
end

M.classic = entry("rabbitmq", classic_url)

-- Each write of a quorum queue waits for the disk.
local function quorum(more)
  local all = { few = 0.2, late = 2, notes = 0.6, never_between = true }
  for name, value in pairs(more or {}) do all[name] = value end
  return all
end

M.quorum = entry("rabbitmq-quorum", quorum_url, quorum())

-- RabbitMQ 4 beside the system's; where that is one, the entries above have proved it.
local function missing_4()
  local home, why = rabbitmq.home "4"
  return not home and why or nil
end

local function proved(by)
  return function() return rabbitmq.same("4", "system") and "this system's RabbitMQ is 4: proved by " .. by or nil end
end

M.classic_4 = entry("rabbitmq-4", classic_url, { server = "4", missing = missing_4, skip = proved "rabbitmq" })

M.quorum_4 = entry("rabbitmq-4-quorum", quorum_url, quorum { server = "4", missing = missing_4,
                                                             skip = proved "rabbitmq-quorum" })

M.tls = entry("rabbitmq-tls", function(server, vhost)
  return rabbitmq.tls_url(server, vhost, "&heartbeat=1&max_priority=9")
end, { lacks = { groups = LACKS.groups, start = LACKS.start } })

M.quorum_tls = entry("rabbitmq-quorum-tls", function(server, vhost)
  return rabbitmq.tls_url(server, vhost, "&heartbeat=1&queue_type=quorum&single_active=true")
end, quorum())

local ON_STREAMS = {}
for _, name in ipairs { "ack-stop", "ack-crash", "backoff-fixed", "attempts-crash", "backoff-crash", "dead-whole",
                        "order-key", "order-source", "order-none", "publish", "drain", "drain-backoff", "groups",
                        "start-newest", "fence", "two-workers", "takeover", "confirm-first", "dead-confirmed" } do
  ON_STREAMS[name] = true
end

local GROUPS = { "p", "q", "the group" }

local function number(text, at)
  local n = 0
  for i = at, at + 7 do n = n * 256 + text:byte(i) end
  return n
end

-- Where a group has got to, as runtime/drivers/amqp/place.c writes it; nil: it was never there. In between the message
-- is on its way from one state to the next.
local function mark_of(h, group)
  local list = h.broker:messages("mw.place." .. group .. "@in")
  if not list[1] then return nil end
  return list[1].body:byte(5) % 2 == 1 and number(list[1].body, 6) or 0
end

-- A stream keeps what was handled: what is there is what no group has settled.
M.stream = entry("rabbitmq-stream", function(server, vhost)
  return rabbitmq.url(server, vhost, "?heartbeat=1&streams=in")
end, {
  lacks = { priority = "a stream has none" },
  skip = function(case) return not ON_STREAMS[case.name] and "not repeated on streams" or nil end,
  is_empty = function(h, channel)
    local server = server_of(h)
    end_refusal(h)
    if channel ~= "in" then return server:unsettled(h.vhost, channel) == 0 end
    local count = server:stream_length(h.vhost, channel)
    local any = false
    for _, group in ipairs(GROUPS) do
      local mark = server:queue_exists(h.vhost, "mw.place." .. group .. "@in") and mark_of(h, group)
      if mark and mark < count then return false end
      any = any or mark
    end
    return any and true or count == 0
  end,
  ready = function(h)
    return server_of(h):queue_exists(h.vhost, "mw.place.p@in") and mark_of(h, "p") ~= nil
  end,
  -- A stream cannot be looked at: for each message that is not done there is one without a name.
  messages = function(h, channel)
    end_refusal(h)
    if channel ~= "in" then return h.broker:messages(channel) end
    local list, left = {}, server_of(h):stream_length(h.vhost, channel) - (mark_of(h, "p") or 0)
    for i = 1, left do list[i] = { id = "?" } end
    return list
  end,
})

return M
