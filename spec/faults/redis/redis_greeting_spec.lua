-- Peers that take a connection and then do not behave as a Redis server does when it is greeted: they are given up in
-- time, the next host is tried, and log and status say why.
local C = require "moonwire.internal.cdef"
local contract = require("spec.contract.redis").plain
local harness = require "spec.support.harness"
local json = require "moonwire.json"
local odd_peer = require "spec.support.odd_peer"
local process = require "spec.support.process"
local servers = require "spec.support.servers.redis"
local wait = require "spec.support.wait"

C.mw_log_setup(0, 9)

local HANDLER = [[function M.handle(msg) trace("done", msg) end]]

local PEERS = {
  { what = "says nothing", why = "no answer to the greeting in 1.0 s" },
  { what = "says half a reply", says = "+O", why = "no answer to the greeting in 1.0 s" },
  { what = "sends one byte at a time", says = "+OK\r\n", every = 400, why = "no answer to the greeting in 1.0 s" },
  { what = "announces a gigabyte", says = "$1073741824\r\nabc", why = "announces 1073741839 bytes in the greeting" },
}

describe("redis, greeting a peer that", function()
  local peer, server, h
  lazy_setup(function() server = servers.start() end)
  lazy_teardown(function() server:kill() end)
  before_each(function() server:call "FLUSHALL" end)
  after_each(function()
    if h then h:close() end
    peer:stop()
    h, peer = nil, nil
  end)

  local function start(url)
    h = harness.new(setmetatable({ url = function(x)
      x.server, x.db = server, 0
      return ("redis://127.0.0.1:%d"):format(server.port)
    end }, { __index = contract }))
    h.url = url
    return h:start { settings = "lease = 2,", handler = HANDLER }
  end

  local function connections(worker)
    local status = process.run { { os.getenv "MOONWIRE_BIN", "status", worker.dir, "--json" }, timeout = 20 }
    return status.code == 0 and json.decode(status.stdout).connections or {}
  end

  for _, odd in ipairs(PEERS) do
    describe(odd.what .. ",", function()
      before_each(function() peer = odd_peer.start(odd) end)

      it("gives up in time, and says why", function()
        local worker = start(("redis://127.0.0.1:%d?timeout=1"):format(peer.port))
        local began = wait.now()
        h:wait(function() return worker.child:stderr():find("cannot connect", 1, true) end, 6, "it to be logged")
        assert.is_true(wait.now() - began < 4 * h.late, "it took long")
        assert.matches(odd.why, worker.child:stderr(), 1, true)
        h:wait(function()
          for _, c in ipairs(connections(worker)) do
            assert.not_equal("up", c.state)
            if c.error and c.error:find(odd.why, 1, true) then return true end
          end
        end, 6, "the reason in the status")
      end)

      it("goes on to the next host", function()
        local worker = start(("redis://127.0.0.1:%d,127.0.0.1:%d?timeout=1"):format(peer.port, server.port))
        h:publish { { "x", id = "m1" } }
        h:wait_for("done", 1, 10)
        assert.matches(odd.why, worker.child:stderr(), 1, true)
      end)

      it("and is taken for a sentinel, gives up in time, and says why", function()
        local worker = start(("redis://127.0.0.1:%d?timeout=1&sentinel=m"):format(peer.port))
        h:wait(function() return worker.child:stderr():find(odd.why, 1, true) end, 6, "it to be logged")
      end)
    end)
  end
end)
