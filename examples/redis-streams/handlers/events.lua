local mw = require "moonwire"
local redis = mw.redis(mw.env("BROKER_URL", "redis://127.0.0.1:6379"))
local M = {}

local handle = {}

handle["user.created"] = function(event)
  mw.publish("welcome", { email = event.email }, { key = event.user }) -- leaves with the ack, in one step
end

handle["user.seen"] = function(event)
  redis:hincrby("seen", event.user, 1)
end

function M.handle(msg)
  local event = msg.data
  local known = handle[event.type]
  if not known then return mw.reject("no such event: " .. tostring(event.type), "unknown") end
  if event.user == "mallory" then error("the user service does not know mallory") end -- the failing message
  known(event)
  mw.log.info("handled", { type = event.type, user = event.user })
end

return M
