--- Structured log lines: `mw.log.info("paid", { order = 7 })`. Inside a handler each line carries the message's id,
--- pipeline and attempt.
local log = require "moonwire.internal.api.log"

local M = {}

for name, level in pairs(log.LEVELS) do
  ---@param text string
  ---@param fields table<string, any>|nil
  M[name] = function(text, fields)
    log.write(level, text, fields, true)
  end
end

return M
