--- An exchange of RabbitMQ as a target of mw.publish: `broker:exchange "orders"`. The driver gets "\1exchange\2key" as
--- the channel ("\3" in front: unroutable messages are no error); no channel's name can look like that. In specs,
--- where every broker is a memory one, the bindings of the project's topology decide which queues get a copy.
local M = {}

---@class moonwire.Exchange
---@field name string
---@field connection table
---@field mandatory boolean
local Exchange = {}
Exchange.__index = Exchange
M.Exchange = Exchange

--- Whether a routing key matches a pattern of words with * (one word) and # (any number).
---@param pattern string
---@param key string
function M.matches(pattern, key)
  local want, have = {}, {}
  for word in (pattern .. "."):gmatch "(.-)%." do want[#want + 1] = word end
  for word in (key .. "."):gmatch "(.-)%." do have[#have + 1] = word end
  if key == "" then have = {} end
  if pattern == "" then want = {} end
  local function from(i, k)
    if i > #want then return k > #have end
    if want[i] == "#" then
      for rest = k, #have + 1 do
        if from(i + 1, rest) then return true end
      end
      return false
    end
    return k <= #have and (want[i] == "*" or want[i] == have[k]) and from(i + 1, k + 1)
  end
  return from(1, 1)
end

local function has_headers(arguments, headers)
  local any, all, match = false, true, "all"
  for _, a in ipairs(arguments) do
    if a.name == "x-match" then
      match = a.value
    elseif a.name:sub(1, 2) ~= "x-" then
      local same = headers and tostring(headers[a.name]) == a.value
      any, all = any or same, all and same
    end
  end
  if match:find "^any" then return any end
  return all
end

local ROUTES = {
  direct = function(b, key) return b.key == key end,
  topic = function(b, key) return M.matches(b.key, key) end,
  fanout = function() return true end,
  headers = function(b, _, headers) return has_headers(b.arguments, headers) end,
  ["x-consistent-hash"] = function() return true end,
}

local function declared(connection)
  local exchanges, bindings = {}, {}
  for _, entry in ipairs(connection.project.topologies) do
    if entry.connection == connection then
      for _, item in ipairs(entry.items) do
        if item.kind == "exchange" then exchanges[item.name] = item.settings end
        if item.kind == "binding" then bindings[#bindings + 1] = item.settings end
      end
    end
  end
  return exchanges, bindings
end

local function route(connection, name, key, headers, found, seen)
  local exchanges, bindings = declared(connection)
  local exchange = exchanges[name]
  if not exchange or seen[name] then return end
  seen[name] = true
  local before = #found
  for _, b in ipairs(bindings) do
    if b.exchange == name and ROUTES[exchange.type](b, key, headers) then
      if b.to_exchange then
        route(connection, b.destination, key, headers, found, seen)
      elseif not seen["queue " .. b.destination] then
        seen["queue " .. b.destination] = true
        found[#found + 1] = b.destination
      end
    end
  end
  for _, a in ipairs(exchange.arguments) do
    if a.name == "alternate-exchange" and #found == before then
      route(connection, a.value, key, headers, found, seen)
    end
  end
end

--- The channels that a message goes to.
---@param key string|nil routing key
---@param headers table|nil
---@return string[]|nil names, string|nil error
function Exchange:addresses(key, headers)
  key = key or ""
  if type(key) ~= "string" or #key > 255 or key:find "%z" then
    return nil, "routing_key must be a string of at most 255 bytes"
  end
  if not self.connection.project.rewrite then
    return { (self.mandatory and "\1" or "\3") .. self.name .. "\2" .. key }
  end
  local found = {}
  route(self.connection, self.name, key, headers, found, {})
  if #found == 0 and self.mandatory then
    local text = "unroutable: exchange %q has no queue bound for %q in the topology of moonwire.lua"
    return nil, text:format(self.name, key)
  end
  return found
end

--- Checks and makes one; errors blame the caller of Connection:exchange.
function M.new(connection, name, options)
  if type(name) ~= "string" or name == "" or #name > 255 or name:find "[%z\1-\31]" then
    error("exchange: the name must be a string of 1 to 255 bytes without control characters", 3)
  end
  if not connection.given:find "^amqps?:" then
    error("exchange: only RabbitMQ (amqp://) has exchanges; publish to a channel", 3)
  end
  for field, value in pairs(options or {}) do
    if field ~= "mandatory" or type(value) ~= "boolean" then
      error("exchange: the only option is mandatory = true or false", 3)
    end
  end
  return setmetatable({ name = name, connection = connection, mandatory = not options or options.mandatory ~= false },
    Exchange)
end

return M
