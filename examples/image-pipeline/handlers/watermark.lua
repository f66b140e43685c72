--- Puts a mark on each size, side by side. The work is only waited for.
local mw = require "moonwire"

local M = {}

local function mark(size)
  return function()
    mw.sleep(0.01) -- stands for the work of another service
    return { width = size.width, height = size.height, marked = true }
  end
end

function M.handle(msg)
  local jobs = {}
  for i, size in ipairs(msg.data.sizes) do jobs[i] = mark(size) end
  mw.publish("image.watermarked", { image = msg.data.image, sizes = mw.json.array { mw.all(jobs) } }, { key = msg.key })
end

return M
