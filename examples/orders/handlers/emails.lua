--- Sends a mail. Here it only says so.
local mw = require "moonwire"

local M = {}

function M.handle(msg)
  local to, text = msg:get("to", "text") -- two fields, without decoding the rest
  mw.log.info("email sent", { to = to, text = text })
end

return M
