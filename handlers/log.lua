--- log: writes one log line per message, and acks it.
---
---   mw.pipeline "watch" { from = orders, handler = "log", options = { level = "info", fields = { "user.id" } } }
---
--- Each line has the pipeline, id, attempt, channel, key and size, and the fields that are asked for: paths into a JSON
--- body, as for msg:get. A body that is not JSON is logged without them. A pipeline has a group of its own, so this
--- takes nothing away from the others.
local mw = require "moonwire"
local check = require "moonwire.options"

local LEVELS = { debug = true, info = true, warn = true, error = true }

---@class moonwire.log.Options
---@field level? "debug"|"info"|"warn"|"error"  default "info"
---@field text? string      the line's text; default "message"
---@field fields? string[]  paths into the data

local function new(options)
  check(options, { level = "string?", text = "string?", fields = "table?" })
  local level, text, paths = options.level or "info", options.text or "message", options.fields or {}
  if not LEVELS[level] then error(("level must be debug, info, warn or error, not %q"):format(level), 0) end
  for i, path in ipairs(paths) do
    if type(path) ~= "string" or path == "" then error(("fields[%d] must be a path"):format(i), 0) end
  end
  local write = mw.log[level]

  local function handle(msg)
    local line = { channel = msg.channel, key = msg.key, bytes = #msg.body }
    for _, path in ipairs(paths) do
      local ok, value = pcall(msg.get, msg, path)
      if not ok then break end
      line[path] = value
    end
    write(text, line)
  end

  return { handle = handle }
end

return { new = new }
