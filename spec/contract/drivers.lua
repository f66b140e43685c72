-- drivers.lua - the brokers that the contract is proved on. A new driver is a new entry:
--   name      as in the matrix
--   url(h)    a fresh broker for one case; h.dir is a folder of its own, h.name a name of its own
--   outside   true: the broker outlives its workers, so they are real processes, and a crash is SIGKILL
--   version() the line that the matrix shows
--   refuse(h, n)  makes the broker refuse the next n publishes and settlements; leave it out where nothing can
--   is_empty(h, channel), messages(h, channel)  where looking into a channel does not tell what is not settled
--   notes     seconds until the broker knows what a handler has begun
--   lacks     what its brokers do not have, and what becomes of the setting, by the names of `needs`
--   only      the names of cases, for a second way to the same broker
--   close(h)  after a case
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"

local function refuse(h, n)
  C.mw_memory_fault(h.name, "fail_publish", n)
  C.mw_memory_fault(h.name, "fail_settle", n)
end

local function lmdb_version()
  ffi.cdef [[char *mwt_mdb_version(int *major, int *minor, int *patch) __asm__("mdb_version");]]
  local n = ffi.new "int[3]"
  ffi.C.mwt_mdb_version(n, n + 1, n + 2)
  return ("LMDB %d.%d.%d"):format(n[0], n[1], n[2])
end

--- RabbitMQ: one server, a vhost for each case ------------------------------------------------------------------------

local rabbitmq = require "spec.support.servers.rabbitmq"

local RABBIT_LACKS = {
  groups = "a queue has one group; a second is refused at start",
  start = "a queue has no place to begin at; refused at start",
  priority = "needs a queue with max_priority; proved by rabbitmq-tls",
}

local function rabbit(name, url, more)
  local entry = {
    name = name,
    outside = true,
    url = function(h)
      local server = rabbitmq.get()
      h.vhost = ("%s-%s"):format(name, h.name)
      server:vhost(h.vhost)
      return url(server, h.vhost)
    end,
    version = function() return "RabbitMQ " .. rabbitmq.get():version() end,
    is_empty = function(h, channel) return rabbitmq.get():unsettled(h.vhost, channel) == 0 end,
    close = function(h) rabbitmq.get():drop_vhost(h.vhost) end,
    -- Messages that wait for their time stand in queues beside it.
    messages = function(h, channel)
      local list = h.broker:messages(channel)
      for _, tier in ipairs(rabbitmq.get():tiers(h.vhost, channel)) do
        for _, m in ipairs(h.broker:messages(tier)) do list[#list + 1] = m end
      end
      return list
    end,
    notes = 0.1,
    lacks = RABBIT_LACKS,
  }
  for field, value in pairs(more or {}) do entry[field] = value end
  return entry
end

return {
  {
    name = "memory",
    url = function(h) return "memory:" .. h.name end,
    version = function() return "in the process" end,
    refuse = refuse,
  },
  {
    name = "memory-offset",
    url = function(h) return "memory-offset:" .. h.name end,
    version = function() return "in the process" end,
    refuse = refuse,
  },
  {
    name = "embedded",
    outside = true,
    url = function(h) return "embedded:" .. h.dir .. "/store?size=4GB" end,
    version = lmdb_version,
  },
  rabbit("rabbitmq", function(server, vhost) return rabbitmq.url(server, vhost, "?heartbeat=1") end),
  rabbit("rabbitmq-quorum", function(server, vhost)
    return rabbitmq.url(server, vhost, "?heartbeat=1&queue_type=quorum&single_active=true")
  end, { few = 0.2 }),
  rabbit("rabbitmq-tls", function(server, vhost)
    return rabbitmq.tls_url(server, vhost, "&heartbeat=1&max_priority=9")
  end, {
    lacks = { groups = RABBIT_LACKS.groups, start = RABBIT_LACKS.start },
    only = { "ack-stop", "ack-crash", "attempts-crash", "dead-whole", "order-key", "publish", "priority", "any-bytes",
             "drain", "takeover" },
  }),
}
