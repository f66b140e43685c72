--- Puts a mark on each size, side by side. The work is only waited for.
local mw = require "moonwire"

local function mark(width)
  return function()
    mw.sleep(0.01) -- stands for the work of another service
    return { width = width, marked = true }
  end
end

return {
  handle = function(msg)
    local jobs = {}
    for i, width in ipairs(msg.data.widths) do jobs[i] = mark(width) end
    local sizes = mw.json.array { mw.all(jobs) }
    mw.publish("image.watermarked", { image = msg.data.image, sizes = sizes }, { key = msg.key })
  end,
}
