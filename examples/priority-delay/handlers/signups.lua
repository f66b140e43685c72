--- Asks for three mails: the code now and before all others, a newsletter when there is time, a reminder later.
local mw = require "moonwire"

local M = {}

function M.handle(msg)
  local user, reminder = msg:get("user"), tonumber(mw.env("REMIND_AFTER", "3600"))
  mw.publish("mail.requested", { to = user, kind = "newsletter" }, { priority = 0 })
  mw.publish("mail.requested", { to = user, kind = "code" }, { priority = 9 })
  mw.publish("mail.requested", { to = user, kind = "reminder" }, { delay = reminder })
end

return M
