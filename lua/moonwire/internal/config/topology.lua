--- `connection:topology { topics = { … } }`: what must exist at a broker before messages flow. Checked here, by rules
--- per driver; compared and made by `moonwire topology plan | apply`. A driver's entry in DRIVERS names its groups of
--- things:
---   topics = { kind = "topic", rules = (see fields.lua), settings = function(values) -> what the driver gets }
--- A group whose things have no names is a list, and `name(values)` makes one. `wrong(values, name)` may say what
--- cannot be: a list of { field, text }.
local C = require "moonwire.internal.cdef"
local fields = require "moonwire.internal.config.fields"
local ffi = require "ffi"
local json = require "moonwire.json"
local rabbitmq = require "moonwire.internal.config.rabbitmq"
local nearest = require "moonwire.internal.nearest"

local M = {}

local KAFKA_TOPIC = {
  partitions = { kind = "integer", min = 1, max = 4096 },
  replication = { kind = "integer", min = 1, max = 100 },
  retention = { kind = "seconds", min = 0.001 },
  compact = { kind = "boolean" },
  config = { kind = "table" },
}

local OWN = { ["retention.ms"] = "retention", ["cleanup.policy"] = "compact" }

local function wrong_kafka_topic(values, name)
  local list = {}
  local function complain(field, text) list[#list + 1] = { field, text } end
  if #name > 249 or not name:find "^[%w._-]+$" or name == "." or name == ".." then
    complain(name, ("%q is no name of a topic: letters, digits, '.', '_' and '-' only, 249 at most"):format(name))
  end
  for property, value in pairs(values.config or {}) do
    local kind = type(value)
    if type(property) ~= "string" or kind ~= "string" and kind ~= "number" and kind ~= "boolean" then
      complain("config", "config must be a table of names and texts, numbers or booleans")
    elseif OWN[property] and values[OWN[property]] ~= nil then
      complain("config", ("%s and config[%q] say the same thing: leave one out"):format(OWN[property], property))
    end
  end
  return list
end

local function plain(value) -- 1e15 is no number for Kafka
  return type(value) == "number" and value % 1 == 0 and ("%.0f"):format(value) or tostring(value)
end

--- retention and compact are names for properties of the topic; `config` takes any of them.
local function kafka_topic(values)
  local config, names = {}, {}
  for name, value in pairs(values.config or {}) do config[name] = plain(value) end
  if values.retention then config["retention.ms"] = ("%.0f"):format(values.retention * 1000) end
  if values.compact ~= nil then config["cleanup.policy"] = values.compact and "compact" or "delete" end
  for name in pairs(config) do names[#names + 1] = name end
  table.sort(names)
  local list = json.array()
  for i, name in ipairs(names) do list[i] = { name = name, value = config[name] } end
  return { partitions = values.partitions, replication = values.replication, config = list }
end

---@type table<string, table<string, { kind: string, rules: table, settings: fun(values: table): table }>>
local DRIVERS = {
  kafka = { topics = { kind = "topic", rules = KAFKA_TOPIC, wrong = wrong_kafka_topic, settings = kafka_topic } },
  rabbitmq = rabbitmq.topology,
}

local function driver_of(connection)
  local name = C.mw_vm_driver_of(connection.given:match "^([%w+.-]+):" or "")
  return name ~= nil and ffi.string(name) or "?"
end

local function sorted(map)
  local names = {}
  for name in pairs(map) do names[#names + 1] = tostring(name) end
  table.sort(names)
  return names
end

local function is_list(value)
  for k in pairs(value) do
    if type(k) ~= "number" then return false end
  end
  return true
end

local function complain(project, where, field, text)
  local line = fields.line_of(where.source, where.line, field)
  project.problems[#project.problems + 1] = ("%s:%d: %s: %s"):format(where.file, line, where.what, text)
end

--- Checks a declaration and notes its items.
---@param project table
---@param connection table
---@param given table
---@param where moonwire.Where
function M.declare(project, connection, given, where)
  local driver = driver_of(connection)
  local groups, items, values_of = DRIVERS[driver], {}, {}
  if not groups then
    local text = "%s has nothing to declare: its channels are made by their first use; leave topology out"
    return complain(project, where, "topology", text:format(driver))
  end
  local present = sorted(given)
  -- What others stand on comes first.
  table.sort(present, function(a, b)
    local x, y = groups[a] and groups[a].rank or 0, groups[b] and groups[b].rank or 0
    return x < y or x == y and a < b
  end)
  for _, group in ipairs(present) do
    local rule = groups[group]
    if not rule then
      local near = nearest(group, sorted(groups))
      complain(project, where, group, ("unknown field %q; %s"):format(group, near and ("did you mean %q?"):format(near)
        or "known are " .. table.concat(sorted(groups), ", ")))
    elseif type(given[group]) ~= "table" or rule.name and not is_list(given[group]) then
      complain(project, where, group, group .. (rule.name and " must be a list of tables"
        or " must be a table of names and settings"))
    else
      local list = given[group]
      local names = sorted(list)
      if rule.name then table.sort(names, function(a, b) return tonumber(a) < tonumber(b) end) end
      for _, name in ipairs(names) do
        local settings = rule.name and list[tonumber(name)] or list[name]
        if type(settings) ~= "table" then
          complain(project, where, name, ("%s.%s must be a table of settings"):format(group, name))
        else
          local before = #project.problems
          local values = fields.check(settings, rule.rules, where, project.problems, group .. "." .. name)
          for _, wrong in ipairs(#project.problems == before and rule.wrong and rule.wrong(values, name) or {}) do
            complain(project, where, wrong[1], ("%s.%s: %s"):format(group, name, wrong[2]))
          end
          if #project.problems == before then
            items[#items + 1] = { kind = rule.kind, name = rule.name and rule.name(values) or name,
                                  settings = rule.settings(values) }
            values_of[items[#items]] = values
          end
        end
      end
    end
  end
  project.topologies[#project.topologies + 1] = { connection = connection, driver = driver, items = items,
                                                  values_of = values_of }
end

--- How drivers make the queues of the topology that are not there when they are needed: settings as those of a channel,
--- to be declared before them. What one declaration has may stand on what another one has.
---@param project table
---@return { connection: table, name: string, settings: { name: string, value: string }[] }[]
function M.recipes(project)
  local list, all = {}, {}
  for _, entry in ipairs(project.rewrite and {} or project.topologies) do
    if entry.driver == "rabbitmq" then
      local of = all[entry.connection] or { items = {}, values_of = {} }
      for _, item in ipairs(entry.items) do
        of.items[#of.items + 1] = item
        of.values_of[item] = entry.values_of[item]
      end
      all[entry.connection] = of
    end
  end
  for connection, of in pairs(all) do
    for _, recipe in ipairs(rabbitmq.recipes(of.items, of.values_of)) do
      recipe.connection = connection
      list[#list + 1] = recipe
    end
  end
  return list
end

return M
