local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "amqp://guest:guest@127.0.0.1:5672/"))

-- What must exist. `moonwire topology apply` makes it; nothing here is ever deleted.
broker:topology {
  exchanges = {
    orders = { type = "topic", alternate = "unroutable" },
    unroutable = { type = "fanout" },
  },
  queues = {
    ["orders.audit"] = {},
    ["orders.urgent"] = {},
    ["orders.welcome"] = {},
    ["orders.unroutable"] = { max_length = 10000 },
    ["tasks"] = { max_priority = 9 },
  },
  bindings = {
    { exchange = "orders", queue = "orders.audit", key = "order.#" },        -- every order
    { exchange = "orders", queue = "orders.urgent", key = "order.*.high" },  -- whatever happens to an urgent one
    { exchange = "orders", queue = "orders.welcome", key = "order.new.*" },  -- new ones, urgent or not
    { exchange = "unroutable", queue = "orders.unroutable" },
  },
}

-- Orders come in on a queue and go out through the exchange; three services have a queue each.
local orders = broker:exchange "orders"

mw.pipeline "intake" {
  from    = broker:channel "orders.incoming",
  handler = function(msg)
    local order = msg.data
    local key = ("order.%s.%s"):format(order.state or "new", order.urgent and "high" or "normal")
    mw.publish(orders, order, { routing_key = key, key = order.customer })
  end,
}

local function note(service)
  return function(msg)
    local came_by = msg:header "amqp-routing-key"
    mw.publish("notes", { service = service, order = msg.data.id, key = came_by }, { key = msg.key })
  end
end

mw.pipeline "audit" { from = broker:channel "orders.audit", handler = note "audit" }
mw.pipeline "urgent" { from = broker:channel "orders.urgent", handler = note "urgent" }
mw.pipeline "welcome" { from = broker:channel "orders.welcome", handler = note "welcome" }

-- Upload, resize, watermark, publish: each step acks when the next queue has confirmed.
mw.pipeline "resize" { from = broker:channel "image.uploaded", handler = "handlers.resize" }
mw.pipeline "watermark" { from = broker:channel "image.resized", handler = "handlers.watermark" }
mw.pipeline "online" { from = broker:channel "image.watermarked", handler = "handlers.online" }

-- The queue has priorities, so what is urgent overtakes what waits at the broker, too.
mw.pipeline "tasks" {
  from = broker:channel("tasks", { max_priority = 9 }),
  order = "none", concurrency = 1,
  handler = function(msg)
    mw.sleep(0.05) -- stands for the work
    mw.publish("done", { task = msg.data.task })
  end,
}

-- Fails until its attempts are used up, and becomes a dead letter with its history.
mw.pipeline "invoices" {
  from  = broker:channel "invoices",
  retry = { attempts = 3, base = 1, cap = 10 },
  handler = function(msg)
    if msg.data.amount < 0 then error("no such amount: " .. msg.data.amount) end
    mw.publish("done", { invoice = msg.data.number })
  end,
}
