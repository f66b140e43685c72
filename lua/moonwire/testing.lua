--- For specs: runs a project in the real core, on memory brokers of its own. See docs/testing.md.
---
---   local testing = require "moonwire.testing"
---   local app = testing.start()
---   app:publish("orders", { id = 7 }, { key = "7" })
---   app:settle()
---   assert.equal(1, app:handled "orders")
---
--- Apps run on the virtual clock: hours of backoff pass in milliseconds. `testing.start { clock = "real" }` does not.
local App = require "moonwire.testing.app"
local C = require "moonwire.internal.cdef"
local assertions = require "moonwire.testing.assertions"
local life = require "moonwire.testing.life"
local records = require "moonwire.testing.records"
local start_options = require "moonwire.testing.options"
local turn = require "moonwire.testing.turn"
local wait = require "moonwire.internal.wait"

local M = {}

local started = 0

--- Starts a project. Every connection of it becomes a memory broker that belongs to this call alone.
---@param options moonwire.TestOptions|nil
---  dir: the project's folder (default: the one above the spec); env: settings for mw.env, over .env and environment;
---  log: the least level that is logged (default: silent); clock: virtual (default) or real; now: the time it begins
---  at, seconds since 1970
---@return moonwire.TestApp
function M.start(options)
  options = options or {}
  if type(options) ~= "table" then error("testing.start: expected a table of options", 2) end
  start_options.check(options, life.apps)
  started = started + 1
  C.mw_log_setup(0, start_options.level(options.log))
  local self = setmetatable({
    dir = options.dir or start_options.project_above(), env = {},
    rewrite = ("memory:moonwire-test-%d"):format(started), clock = options.clock or "virtual", lines = {},
  }, App)
  for name, value in pairs(options.env or {}) do self.env[name] = tostring(value) end
  assertions.register()
  C.mw_vm_virtual(wait.vm, self.clock == "virtual")
  if options.now then C.mw_vm_set_now(wait.vm, options.now) end
  self.started = turn.now()
  records.take(life.apps)
  records.begin()
  life.apps[self] = true
  local ok, err = pcall(function()
    life.look(self, 0)
    life.load(self, 0)
  end)
  if not ok then
    life.leave(self)
    error(err, 2)
  end
  return self
end

return M
