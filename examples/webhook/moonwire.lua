local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "embedded:data"))

-- No code at all: a ready-made handler and its options.
mw.pipeline "shop-hook" {
  from        = broker:channel "order.created",
  handler     = "webhook",
  options     = {
    url      = mw.env("HOOK_URL", "http://127.0.0.1:8080/hook"),
    headers  = { ["X-Source"] = "orders" },
    timeout  = 5,
    retry_on = { 404 }, -- the shop deploys; what is missing now may be there in a minute
  },
  order       = "key",
  concurrency = 16,
  retry       = { attempts = 4, base = 0.2, cap = 10 },
}
