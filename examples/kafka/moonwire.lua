local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "kafka://127.0.0.1:9092/shop."))

broker:topology { -- `moonwire topology plan | apply`
  topics = {
    ["order.created.v1"]           = { partitions = 4 },
    ["order.created.v1.retry.1s"]  = { partitions = 1 },
    ["order.created.v1.retry.3s"]  = { partitions = 1 },
    ["order.confirmed.v1"]         = { partitions = 4 },
    ["order.dead.v1"]              = { retention = 30 * 86400 },
    ["parcel.scanned.v1"]          = { partitions = 2 },
    ["parcel.state.v1"]            = { partitions = 2, compact = true },
    ["parcel.scanned.v1.dead"]     = {},
  },
}

-- Created, failed, retried, dead. An order that fails goes through retry topics: it gives up its place, and waits for
-- its turn at the broker. Outputs and commits are one transaction: an order is confirmed exactly once.
mw.pipeline "orders" {
  from         = broker:channel "order.created.v1",
  handler      = "handlers.orders",
  retry        = { topics = { 1, 3 } },
  dead         = broker:channel "order.dead.v1",
  exactly_once = true,
}

-- A stream with slow handlers: the scans of a parcel in order, a hundred parcels at a time, whatever the number of
-- partitions. A scan that fails holds up its parcel only.
mw.pipeline "parcels" {
  from        = broker:channel "parcel.scanned.v1",
  handler     = "handlers.parcels",
  order       = "key",
  concurrency = 100,
  retry       = { attempts = 5, base = 0.2, cap = 2 },
}
