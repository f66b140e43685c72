--- The options of a channel: `retain`, which the core knows, and what only one driver knows. A driver's own options are
--- a table of rules (see fields.lua) in DRIVERS, by the driver's name; they reach its `declare` as texts, with the
--- fields of tables flattened: { trim = { count = 5 } } is "trim.count" = "5".
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"
local fields = require "moonwire.internal.config.fields"

local M = {}

local CAN_RETAIN = 256 -- as in core/driver.h
local RETAIN = { age = { kind = "seconds", min = 0.001 }, count = { kind = "integer", min = 1, max = 1e12 } }

--- By driver: what cannot be although each option alone is right; a list of { field, text }.
local WRONG = { rabbitmq = require "moonwire.internal.config.rabbitmq".wrong_queue }

--- Rules by driver. A table has rules of its own in `fields`.
---@type table<string, table<string, table>>
local DRIVERS = {
  rabbitmq = require "moonwire.internal.config.rabbitmq".channel,
  redis = {
    body_field = { kind = "string" },
    delete = { kind = "boolean" },
    trim = { kind = "table", fields = {
      acked = { kind = "boolean" },
      count = { kind = "integer", min = 1, max = 1e12 },
    } },
  },
}

--- By the URL that was given: in specs the project's brokers are replaced, its options are checked all the same.
local function driver_of(connection)
  local name = C.mw_vm_driver_of(connection.given:match "^([%w+.-]+):" or "")
  return name ~= nil and ffi.string(name) or nil
end

local function rules_of(driver)
  local rules = { retain = { kind = "table" } }
  for name, rule in pairs(DRIVERS[driver] or {}) do rules[name] = rule end
  return rules
end

local function text_of(value)
  if type(value) == "number" then return ("%.14g"):format(value) end
  return tostring(value)
end

local function flatten(out, rules, values, prefix)
  local names = {}
  for name in pairs(values) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local rule, value = rules[name], values[name]
    if rule.fields then
      flatten(out, rule.fields, value, prefix .. name .. ".")
    elseif value ~= nil then
      out[#out + 1] = { name = prefix .. name, value = text_of(value) }
    end
  end
  return out
end

local function check_nested(rules, values, where, problems, prefix)
  for name, rule in pairs(rules) do
    local value = values[name]
    if rule.fields and type(value) == "table" then
      local path = prefix and prefix .. "." .. name or name
      values[name] = fields.check(value, rule.fields, where, problems, path)
      check_nested(rule.fields, values[name], where, problems, path)
    end
  end
end

--- Checks the options and notes them, to be declared when the connections are open.
---@param project table
---@param channel table
---@param given table
---@param where moonwire.Where
function M.declare(project, channel, given, where)
  local connection = channel.connection
  local driver = driver_of(connection)
  local rules = rules_of(driver)
  local options = fields.check(given, rules, where, project.problems)
  check_nested(rules, options, where, project.problems)
  for _, wrong in ipairs(WRONG[driver]
    and WRONG[driver](options, channel.name, connection.given) or {}) do
    local line = fields.line_of(where.source, where.line, wrong[1])
    project.problems[#project.problems + 1] = ("%s:%d: %s: %s"):format(where.file, line, where.what, wrong[2])
  end
  local retain = options.retain and fields.check(options.retain, RETAIN, where, project.problems, "retain")
  if retain and bit.band(C.mw_vm_link_can(connection.link), CAN_RETAIN) == 0 then
    local text = "%s:%d: %s: %s cannot keep messages that were handled: leave out retain"
    local line = fields.line_of(where.source, where.line, "retain")
    project.problems[#project.problems + 1] = text:format(where.file, line, where.what, driver)
  end
  options.retain, rules.retain = nil, nil
  channel.options = options
  project.declared[#project.declared + 1] = {
    channel = channel, retain = retain or {},
    settings = project.rewrite and {} or #project.problems == 0 and flatten({}, rules, options, "") or {},
  }
end

return M
