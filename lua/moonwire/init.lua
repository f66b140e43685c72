--- What handlers and `moonwire.lua` see: `local mw = require "moonwire"`. `connect`, `pipeline`, `settings` and `env`
--- belong to the project that is being
--- read (internal/config/project.lua).
local C = require "moonwire.internal.cdef"
local async = require "moonwire.internal.api.async"
local fault = require "moonwire.internal.api.fault"
local publish = require "moonwire.internal.api.publish"
local request = require "moonwire.internal.api.request"
local sealed = require "moonwire.internal.sealed"
local verdict = require "moonwire.internal.api.verdict"
local wait = require "moonwire.internal.wait"

local M = {
  retry = verdict.retry,
  reject = verdict.reject,
  drop = verdict.drop,
  publish = publish.publish,
  request = request.request,
  reply = request.reply,
  uuid = publish.uuid,
  sleep = async.sleep,
  all = async.all,
  log = sealed.strict("mw.log", require "moonwire.log"),
  metrics = sealed.strict("mw.metrics", require "moonwire.metrics"),
  shared = sealed.strict("mw.shared", require "moonwire.shared"),
  json = sealed.strict("mw.json", require "moonwire.json"),
  version = require("moonwire.core").version,
}

-- libcurl is woken by the first use: most handlers never call it.
M.http = setmetatable({}, {
  __index = function(self, name)
    local built = require "moonwire.http"(wait.vm, C.mw_vm_http(wait.vm), C)
    for known, fn in pairs(built) do rawset(self, known, fn) end
    return sealed.strict("mw.http", self)[name]
  end,
})

--- A connection to a Redis server, for handlers.
---@param url string
---@return moonwire.redis.Connection
function M.redis(url)
  local connection = require "moonwire.redis"(url)
  return connection
end

--- Seconds since 1970, with milliseconds.
---@return number
function M.now() return C.mw_vm_now(wait.vm) end

--- An error with a class: `error(mw.error("outage", "stock service is down"))`. The class decides what it costs.
---@param class string
---@param text string
---@param after number|nil seconds until the next attempt
---@return moonwire.Fault
function M.error(class, text, after)
  if type(class) ~= "string" or type(text) ~= "string" then error("mw.error: expected a class and a text", 2) end
  if after ~= nil and not (type(after) == "number" and after >= 0 and after <= 3.2e9) then
    error("mw.error: after must be seconds, 0 or more", 2)
  end
  return fault.new { class = class, text = text, after = after }
end

return sealed.strict("mw", M)
