--- Reserves stock for an order and asks for a confirmation email.
local mw = require "moonwire"

local M = { schema = "schemas/order.created.v1.json" }

-- Stands for a call to another service: kettles are slow to find, unicorns do not exist.
local function reserve(order, attempt)
  if order.item == "kettle" and attempt < 3 then error("stock service: connection reset", 0) end
  return order.item ~= "unicorn"
end

function M.handle(msg)
  local order = msg.data -- decoded on first use; the schema was checked before
  if not reserve(order, msg.attempt) then
    return mw.reject("no such item: " .. order.item, "business") -- a dead letter now, no retries
  end
  mw.publish("email.requested.v1", { -- leaves with the ack of this order, or not at all
    to = order.email,
    text = ("%d x %s is on its way"):format(order.quantity, order.item),
  }, { key = msg.key })
  mw.log.info("order accepted", { key = msg.key, item = order.item })
end -- returning is the ack, error() is a retry

return M
