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
M.channel.durable = { kind = "boolean" }
M.channel.exclusive = { kind = "boolean" }
M.channel.auto_delete = { kind = "boolean" }

--- What cannot be, whatever the broker ------------------------------------------------------------------------------

local NO_STREAM = "a stream has none"
local LACKS = {
  classic = { delivery_limit = 'only a quorum queue has one: type = "quorum"' },
  quorum = { max_priority = "a quorum queue has none", lazy = "a quorum queue is never lazy",
             exclusive = "a quorum queue cannot be exclusive", auto_delete = "a quorum queue cannot be" },
  stream = { ttl = NO_STREAM, expires = NO_STREAM, max_length = NO_STREAM .. ": max_bytes", overflow = NO_STREAM,
             max_priority = NO_STREAM, dead_exchange = NO_STREAM, dead_key = NO_STREAM, delivery_limit = NO_STREAM,
             single_active = "a stream has none: one process reads for each group anyway", lazy = NO_STREAM,
             exclusive = "a stream cannot be exclusive", auto_delete = "a stream cannot be" },
}
local OWN = { ["amq.direct"] = true, ["amq.fanout"] = true, ["amq.headers"] = true, ["amq.match"] = true,
              ["amq.topic"] = true }
local NAME_MOST = 255

local function wrong_name(name, what)
  if name == "" then return ("%s needs a name"):format(what) end
  if #name > NAME_MOST then return ("its name has %d bytes, and may have %d"):format(#name, NAME_MOST) end
  if name:find "^amq%." and not OWN[name] then return "names that begin with amq. are the broker's own" end
end

-- Values of arguments and headers: { field, text } of the first that AMQP cannot take from here.
local function wrong_value(field, values)
  for name, value in pairs(values or {}) do
    local kind = type(value)
    if type(name) ~= "string" or kind ~= "string" and kind ~= "number" and kind ~= "boolean" then
      local text = "%s.%s must be a text, a number or true or false, got a %s"
      return { field, text:format(field, tostring(name), kind) }
    end
  end
end

local function type_by_url(url, name)
  for stream in ((url:match "[?&]streams=([^&]*)" or "") .. ","):gmatch "(.-)," do
    if stream == name then return "stream" end
  end
  return url:match "[?&]queue_type=(%w+)"
end

--- What is wrong with the options of a queue: a list of { field, text }.
---@param values table
---@param name string|nil of a channel, whose type may be said by
---@param url string|nil the address
---@return { [1]: string, [2]: string }[]
function M.wrong_queue(values, name, url)
  local list = {}
  local kind = values.type or url and type_by_url(url, name)
  local called = ("type = %q%s"):format(kind or "", values.type and "" or ", as the URL says")
  for field, why in pairs(LACKS[kind] or {}) do
    if values[field] then list[#list + 1] = { field, ("%s does not go with %s: %s"):format(field, called, why) } end
  end
  if values.durable == false and (kind == "quorum" or kind == "stream") then
    list[#list + 1] = { "durable", ("durable = false does not go with %s"):format(called) }
  end
  if values.dead_exchange ~= nil and type(values.dead_exchange) ~= "string" then
    list[#list + 1] = { "dead_exchange", 'dead_exchange must be a string; "" is the default exchange' }
  elseif values.dead_key and not values.dead_exchange then
    list[#list + 1] = { "dead_key", 'dead_key needs dead_exchange; "" is the default exchange, whose keys are queues' }
  end
  list[#list + 1] = wrong_value("arguments", values.arguments)
  table.sort(list, function(a, b) return a[2] < b[2] end)
  return list
end

local function wrong_declared_queue(values, name)
  local list, why = M.wrong_queue(values), wrong_name(name, "a queue")
  list[#list + 1] = why and { name, why }
  if values.exclusive then
    list[#list + 1] = { "exclusive", "an exclusive queue is the connection's that makes it, and goes with it: say "
      .. "exclusive = true as an option of the channel that reads it" }
  end
  return list
end

local function wrong_exchange(values, name)
  local list, why = {}, wrong_name(name, "an exchange")
  list[#list + 1] = why and { name, why }
  list[#list + 1] = wrong_value("arguments", values.arguments)
  return list
end

local function wrong_binding(values)
  local list, kind = {}, type(values.key)
  if (values.queue ~= nil) == (values.to_exchange ~= nil) then
    list[#list + 1] = { "exchange", values.queue and "queue and to_exchange exclude each other"
      or "where to? Name a queue, or an exchange with to_exchange" }
  end
  if kind ~= "string" and kind ~= "number" then list[#list + 1] = { "key", "key must be a text, got a " .. kind } end
  if values.match and next(values.headers or {}) == nil then
    list[#list + 1] = { "match", "match needs headers, the table to compare with" }
  end
  list[#list + 1] = wrong_value("headers", values.headers) or wrong_value("arguments", values.arguments)
  return list
end

--- As the driver gets it ----------------------------------------------------------------------------------------------

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
    local whole = value % 1 == 0 and math.abs(value) < 2 ^ 63
    wire, value = wire or whole and "l" or "d", (whole or wire) and ("%.0f"):format(value) or ("%.17g"):format(value)
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
           to_exchange = values.to_exchange ~= nil, key = tostring(values.key), arguments = arguments({}, raw) }
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
    kind = "exchange", rank = 1, settings = exchange, wrong = wrong_exchange,
    rules = with(DURABLE, {
      type = { kind = "choice", default = "topic",
               of = { "direct", "topic", "fanout", "headers", "x-consistent-hash" } },
      internal = { kind = "boolean", default = false },
      alternate = { kind = "string" },
    }),
  },
  queues = {
    kind = "queue", rank = 2, settings = queue, wrong = wrong_declared_queue,
    rules = with(with(QUEUE, DURABLE), { exclusive = { kind = "boolean", default = false } }),
  },
  bindings = {
    kind = "binding", rank = 3, settings = binding, name = binding_name, wrong = wrong_binding,
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

local WORDS = { "type", "ttl", "expires", "max_length", "max_bytes", "overflow", "max_priority", "dead_exchange",
                "dead_key", "delivery_limit", "single_active", "lazy", "durable", "auto_delete" }

-- What a queue needs to be made as the topology says: the exchanges and what binds them to each other, the queue, and
-- what binds it to them.
local function parts_of(queue_item, items)
  local parts, bound = json.array(), json.array()
  for _, item in ipairs(items) do
    local s = item.settings
    if item.kind == "exchange" and not item.name:find "^amq%." then
      parts[#parts + 1] = item
    elseif item.kind == "binding" and (s.to_exchange or s.destination == queue_item.name) then
      bound[#bound + 1] = item
    end
  end
  if #bound == 0 then parts = json.array() end -- nothing leads to it
  parts[#parts + 1] = queue_item
  for _, item in ipairs(bound) do parts[#parts + 1] = item end
  return parts
end

--- How the driver makes the queues of a topology when they are not there: for each one settings as those of a channel,
--- and under "topology" what it is made with.
---@param items table[]
---@param values_of table<table, table>
---@return { name: string, settings: { name: string, value: string }[] }[]
function M.recipes(items, values_of)
  local list = {}
  for _, item in ipairs(items) do
    if item.kind == "queue" then
      local settings = { { name = "topology", value = json.encode { items = parts_of(item, items) } } }
      for _, word in ipairs(WORDS) do
        local value = values_of[item][word]
        if type(value) == "number" then value = ("%.14g"):format(value) end
        if value ~= nil then settings[#settings + 1] = { name = word, value = tostring(value) } end
      end
      list[#list + 1] = { name = item.name, settings = settings }
    end
  end
  return list
end

return M
