--- Puts the image online.
local mw = require "moonwire"

return {
  handle = function(msg)
    local image, sizes = msg:get("image", "sizes")
    mw.publish("image.published", { url = "https://img.example/" .. image, sizes = sizes }, { key = msg.key })
  end,
}
