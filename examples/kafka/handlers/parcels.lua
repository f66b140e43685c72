--- Follows parcels: the last scan of each is its state, in a compacted topic.
local mw = require "moonwire"

local M = {}

function M.handle(msg)
  mw.sleep(0.02) -- a slow lookup
  if msg.data.place == "customs" and msg.attempt == 1 then error("the customs service is busy", 0) end
  mw.publish("parcel.state.v1", msg.body, { key = msg.key, type = msg.type })
end

return M
