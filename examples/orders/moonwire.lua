local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "embedded:data"))

mw.pipeline "orders" {
  from    = broker:channel "order.created.v1",
  handler = "handlers.orders",
  order   = "key", -- one order of a customer at a time; customers do not wait for each other
  retry   = { attempts = 5, backoff = "exponential", base = 0.5, cap = 30 },
  dead    = broker:channel "order.dead.v1",
  dedupe  = { ttl = 600 }, -- the same message id within ten minutes is skipped
}

mw.pipeline "emails" {
  from    = broker:channel "email.requested.v1",
  handler = "handlers.emails",
}
