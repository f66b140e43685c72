local mw = require "moonwire"
local redis = mw.connect(mw.env("BROKER_URL", "redis://127.0.0.1:6379"))

-- Written by another program, one JSON text in the field "data": see `demo`.
local events = redis:channel("events", { body_field = "data", trim = { acked = true } })

mw.pipeline "events" {
  from    = events,
  handler = "handlers.events",
  key     = "user", -- the entries have no key of their own: one event of a user at a time
  retry   = { attempts = 3, backoff = "exponential", base = 0.2, cap = 5 },
  dead    = redis:channel "events.dead",
  dedupe  = { ttl = 600 },
}

mw.pipeline "welcome" {
  from    = redis:channel "welcome",
  handler = "handlers.welcome",
}
