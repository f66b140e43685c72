--- Works out the sizes of an uploaded image. What cannot be read is a dead letter at once.
local mw = require "moonwire"

return {
  handle = function(msg)
    local image = msg.data
    if image.format == "tiff" then return mw.reject("cannot read tiff", "unsupported") end
    mw.publish("image.resized", { image = image.image, widths = { 320, 1280 } }, { key = msg.key })
  end,
}
