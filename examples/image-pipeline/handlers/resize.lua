--- Makes the sizes of an uploaded image. Here it only works out what they would be.
local mw = require "moonwire"

local WIDTHS = { 320, 1280 }

local M = {
  schema = {
    type = "object",
    required = { "image", "format", "width", "height" },
    properties = {
      image = { type = "string" },
      format = { type = "string" },
      width = { type = "integer", minimum = 1 },
      height = { type = "integer", minimum = 1 },
    },
  },
}

local function sizes_of(width, height)
  local sizes = mw.json.array()
  for _, wanted in ipairs(WIDTHS) do
    local w = math.min(wanted, width)
    sizes[#sizes + 1] = { width = w, height = math.floor(height * w / width + 0.5) }
  end
  return sizes
end

function M.handle(msg)
  local image = msg.data
  if image.format == "tiff" then
    return mw.reject("cannot read tiff", "unsupported")
  end
  mw.publish("image.resized", { image = image.image, sizes = sizes_of(image.width, image.height) }, { key = msg.key })
end

return M
