--- Sends a mail. Here it only says so, and keeps a note in a channel that nobody reads yet.
local mw = require "moonwire"

local M = {}

function M.handle(msg)
  local to, text = msg:get("to", "text") -- two fields, without decoding the rest
  mw.log.info("email sent", { to = to, text = text })
  mw.publish("email.sent.v1", { to = to, text = text }, { key = msg.key })
end

return M
