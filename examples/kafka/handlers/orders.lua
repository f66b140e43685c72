--- Reserves stock for an order and confirms it.
local mw = require "moonwire"

local M = {}

-- Stands for a call to another service: kettles are hard to find, unicorns do not exist.
local function reserve(order, attempt)
  if order.item == "kettle" and attempt < 3 then error("stock service: connection reset", 0) end
  return order.item ~= "unicorn"
end

function M.handle(msg)
  local order = msg.data
  if not reserve(order, msg.attempt) then return mw.reject("no such item: " .. order.item, "business") end
  mw.publish("order.confirmed.v1", { item = order.item, attempt = msg.attempt }, { key = msg.key })
  mw.log.info("order confirmed", { key = msg.key, item = order.item, attempt = msg.attempt })
end

return M
