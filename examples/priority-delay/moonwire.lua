local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "embedded:data"))

mw.pipeline "signups" {
  from    = broker:channel "user.signed-up",
  handler = "handlers.signups",
}

mw.pipeline "mails" {
  from        = broker:channel "mail.requested",
  handler     = "handlers.mails",
  order       = "none",    -- the most important first, whoever it is for
  concurrency = 1,
}
