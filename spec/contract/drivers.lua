-- drivers.lua - the brokers that the contract is proved on. A new driver is a new entry:
--   name      as in the matrix
--   url(h)    a fresh broker for one case; h.dir is a folder of its own, h.name a name of its own
--   outside   true: the broker outlives its workers, so they are real processes, and a crash is SIGKILL
--   version() the line that the matrix shows
--   is_empty(h, channel), messages(h, channel)  where a broker keeps what was handled: what no group has settled
--   ready(h)  true when the group of the worker stands at the broker: it gets whatever comes from now on
--   notes     seconds until the broker knows what a handler has begun
--   missing() nil, or why there is no such broker here: one skip then, and no column in the matrix
--   skip(case) why this entry does not run the case: it is there for a few only
--   cannot(h, case)  nil, or why this broker cannot show the case
--   refuse(h, n)  makes the broker refuse the next n publishes and settlements; leave it out where nothing can
--   lacks     what its brokers do not have, and what becomes of the setting, by the names of `needs`
--   few       a share of the messages, for brokers that take long
--   late      how many times later things may happen there
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

local drivers = {
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
  require("spec.contract.redis").plain,
  require("spec.contract.redis").tls,
  require("spec.contract.rabbitmq").classic,
  require("spec.contract.rabbitmq").quorum,
  require("spec.contract.rabbitmq").stream,
  require("spec.contract.rabbitmq").tls,
  require("spec.contract.rabbitmq").quorum_tls,
  require("spec.contract.rabbitmq").classic_4,
  require("spec.contract.rabbitmq").quorum_4,
  require "spec.contract.kafka",
  require("spec.contract.kafka").newest,
}

-- The same code on another server or through TLS: the whole list is run once, by the release build; sanitizers see what
-- differs.
local VARIANTS = { ["redis-tls"] = true, ["rabbitmq-tls"] = true, ["rabbitmq-quorum-tls"] = true,
                   ["rabbitmq-4"] = true, ["rabbitmq-4-quorum"] = true, ["kafka-4"] = true }
local DIFFERS = { ["ack-crash"] = true, ["order-key"] = true, publish = true, ["any-bytes"] = true, takeover = true }

if os.getenv("MOONWIRE_BIN"):find "asan" then
  for _, driver in ipairs(drivers) do
    local skip = driver.skip
    if VARIANTS[driver.name] then
      function driver.skip(case)
        return not DIFFERS[case.name] and "sanitized on the others" or skip and skip(case) or nil
      end
    end
  end
end

return drivers
