--- Sends a mail. Here it says so, and tells the channel "mail.sent".
local mw = require "moonwire"

local M = {}

function M.handle(msg)
  local to, kind = msg:get("to", "kind")
  mw.log.info("mail", { to = to, kind = kind, priority = msg.priority })
  mw.publish("mail.sent", { to = to, kind = kind })
end

return M
