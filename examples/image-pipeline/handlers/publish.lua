--- Puts the image online and tells everybody.
local mw = require "moonwire"

local M = {}

function M.handle(msg)
  local image, sizes = msg:get("image", "sizes")
  local url = "https://img.example/" .. image
  mw.publish("image.published", { image = image, url = url, sizes = sizes }, { key = msg.key })
end

return M
