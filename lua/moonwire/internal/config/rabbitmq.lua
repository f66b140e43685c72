--- What can be said about queues, exchanges and bindings of RabbitMQ: as options of a channel, and in a topology. Names
--- are words; the driver gets AMQP's own (x-message-ttl and so on) with their types.
local json = require "moonwire.json"

local M = {}

local QUEUE = {
  type = { kind = "choice", of = { "classic", "quorum", "stream" } },
  ttl = { kind = "seconds", min = 0.001 },
  expires = { kind = "seconds", min = 0.001 },
  max_length = { kind = "integer", min = 1, max = 2 ^ 31 },
  max_bytes = { kind = "integer", min = 1, max = 2 ^ 50 },
  overflow = { kind = "choice", of = { "drop-head", "reject-publish", "reject-publish-dlx" } },
  max_priority = { kind = "integer", min = 1, max = 255 },
  dead_exchange = { kind = "any" },
  dead_key = { kind = "string" },
  delivery_limit = { kind = "integer", min = 0, max = 1e6 },
  single_active = { kind = "boolean" },
  lazy = { kind = "boolean" },
}

--- Options of a channel: how its queue is declared when it is not there yet.
M.channel = {}
for name, rule in pairs(QUEUE) do M.channel[name] = rule end
M.channel.dead_exchange = { kind = "string" }

local function with(rules, more)
  local all = {}
  for name, rule in pairs(rules) do all[name] = rule end
  for name, rule in pairs(more) do all[name] = rule end
  return all
end

-- Which argument a word stands for, its type on the wire, and what it is multiplied by.
local ARGUMENTS = {
  { "type", "x-queue-type", "S" },
  { "ttl", "x-message-ttl", "l", 1000 },
  { "expires", "x-expires", "l", 1000 },
  { "max_length", "x-max-length", "l" },
  { "max_bytes", "x-max-length-bytes", "l" },
  { "overflow", "x-overflow", "S" },
  { "max_priority", "x-max-priority", "l" },
  { "dead_exchange", "x-dead-letter-exchange", "S" },
  { "dead_key", "x-dead-letter-routing-key", "S" },
  { "delivery_limit", "x-delivery-limit", "l" },
  { "single_active", "x-single-active-consumer", "t" },
  { "lazy", "x-queue-mode", "S" },
  { "alternate", "alternate-exchange", "S" },
}

local function add(list, name, wire, value)
  if type(value) == "number" then
    wire, value = wire or "l", ("%.0f"):format(value)
  elseif type(value) == "boolean" then
    wire, value = wire or "t", tostring(value)
  end
  list[#list + 1] = { name = name, type = wire or "S", value = tostring(value) }
end

local function arguments(values, raw)
  local list = json.array()
  for _, a in ipairs(ARGUMENTS) do
    local value = values[a[1]]
    if a[1] == "lazy" then value = value and "lazy" or nil end
    if value ~= nil then
      add(list, a[2], a[3], a[4] and value * a[4] or value)
    end
  end
  local names = {}
  for name in pairs(raw or {}) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for _, name in ipairs(names) do add(list, name, nil, raw[name]) end
  return list
end

local function queue(values)
  return { durable = values.durable, exclusive = values.exclusive, auto_delete = values.auto_delete,
           arguments = arguments(values, values.arguments) }
end

local function exchange(values)
  return { type = values.type, durable = values.durable, auto_delete = values.auto_delete, internal = values.internal,
           arguments = arguments({ alternate = values.alternate }, values.arguments) }
end

local function binding(values)
  local raw = with(values.arguments or {}, values.headers or {})
  if values.match then raw["x-match"] = values.match end
  return { exchange = values.exchange, destination = values.queue or values.to_exchange,
           to_exchange = values.to_exchange ~= nil, key = values.key, arguments = arguments({}, raw) }
end

local function binding_name(values)
  local to = values.queue or values.to_exchange or "?"
  return ("%s -> %s (%s)"):format(values.exchange, to, values.match and "headers" or values.key)
end

local DURABLE = { durable = { kind = "boolean", default = true }, auto_delete = { kind = "boolean", default = false },
                  arguments = { kind = "table" } }

--- The groups of a topology, see topology.lua.
M.topology = {
  exchanges = {
    kind = "exchange", rank = 1, settings = exchange,
    rules = with(DURABLE, {
      type = { kind = "choice", default = "topic",
               of = { "direct", "topic", "fanout", "headers", "x-consistent-hash" } },
      internal = { kind = "boolean", default = false },
      alternate = { kind = "string" },
    }),
  },
  queues = {
    kind = "queue", rank = 2, settings = queue,
    rules = with(with(QUEUE, DURABLE), { exclusive = { kind = "boolean", default = false } }),
  },
  bindings = {
    kind = "binding", rank = 3, settings = binding, name = binding_name,
    rules = {
      exchange = { kind = "string", required = "name the exchange" },
      queue = { kind = "string" },
      to_exchange = { kind = "string" },
      key = { kind = "any", default = "" },
      match = { kind = "choice", of = { "all", "any", "all-with-x", "any-with-x" } },
      headers = { kind = "table" },
      arguments = { kind = "table" },
    },
  },
}

return M
