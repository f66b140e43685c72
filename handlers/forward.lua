--- forward: sends each message on to another channel, or to several.
---
---   mw.pipeline "audit" { from = orders, handler = "forward", options = { to = "audit" } }
---   mw.pipeline "fan" { from = orders, handler = "forward", options = { to = { "mail", "stats" }, key = "user.id" } }
---
--- Body, type, key, priority and headers stay as they are; so does the id, by which a later pipeline can tell a
--- duplicate. The copies leave with the ack: in one transaction where the broker has them, else all confirmed first.
--- A name is a channel on the pipeline's own connection; a channel object may be on another one.
local mw = require "moonwire"
local check = require "moonwire.options"

---@class moonwire.forward.Options
---@field to string|moonwire.Channel|(string|moonwire.Channel)[]
---@field key? string|false  a path into the data whose value becomes the key; false: no key; not given: the key stays
---@field headers? table<string, string>  added; a header of that name is replaced

local function is_target(value)
  return type(value) == "string" and value ~= "" or type(value) == "table" and value.name ~= nil
end

local function targets_of(to)
  if is_target(to) then return { to } end
  if type(to) ~= "table" or #to == 0 then error("to must name at least one channel", 0) end
  for i, target in ipairs(to) do
    if not is_target(target) then error(("to[%d] must be a channel or its name"):format(i), 0) end
  end
  return to
end

local function check_headers(headers)
  for name, value in pairs(headers or {}) do
    local kind = type(value)
    if type(name) ~= "string" then error("headers must have names, such as { source = \"shop\" }", 0) end
    if kind ~= "string" and kind ~= "number" and kind ~= "boolean" then
      error(("headers.%s must be a string, not a %s"):format(name, kind), 0)
    end
  end
end

local function headers_of(msg, extra)
  local headers = {}
  for name, value in pairs(msg.headers) do headers[name] = value end
  headers["mw-replay"] = nil -- about the channel it was replayed to
  for name, value in pairs(extra or {}) do headers[name] = value end
  return headers
end

local function key_of(msg, key)
  if key == nil then return msg.key end
  if key == false then return nil end
  local value = msg:get(key)
  if value == nil or value == mw.json.null then return nil end
  return tostring(value)
end

local function new(options)
  check(options, { to = "string table", key = "string boolean?", headers = "table?" })
  local targets = targets_of(options.to)
  check_headers(options.headers)
  if options.key == true then error("key must be a path into the data, or false", 0) end

  local function handle(msg)
    local key, headers = key_of(msg, options.key), headers_of(msg, options.headers)
    for _, target in ipairs(targets) do
      mw.publish(target, msg.body, {
        id = msg.id, key = key, headers = headers, type = msg.type, priority = msg.priority,
      })
    end
  end

  return { handle = handle }
end

return { new = new }
