--- Puts the image online and tells everybody.
local mw = require "moonwire"

local M = {}

function M.handle(msg)
  local image = msg:get "image"
  mw.publish("image.published", { image = image, url = "https://img.example/" .. image }, { key = msg.key })
end

return M
