--- Checks a table of settings against a table of rules and says what is wrong with it: which field, which line, and
--- the nearest right name.
local nearest = require "moonwire.internal.nearest"

local M = {}

--- The line where a field is set, looked up in the source from the line of the call on; the call's own line when it
--- is not to be found.
---@param source string|nil
---@param first integer
---@param field string
function M.line_of(source, first, field)
  if not source then return first end
  local number = 0
  local pattern = "%f[%w_]" .. field:gsub("%p", "%%%0") .. "%f[^%w_]%s*=[^=]"
  for line in (source .. "\n"):gmatch "(.-)\n" do
    number = number + 1
    if number >= first and (line .. " "):match(pattern) then return number end
    if number > first and line:match "^%}" then break end
  end
  return first
end

local function describe(value)
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) == "number" or type(value) == "boolean" then return tostring(value) end
  return "a " .. type(value)
end

local kinds = {}

function kinds.string(value) return type(value) == "string" and value ~= "", "a string that is not empty" end

function kinds.boolean(value) return type(value) == "boolean", "true or false" end

function kinds.integer(value, rule)
  local ok = type(value) == "number" and value % 1 == 0 and value >= rule.min and value <= rule.max
  return ok, ("a whole number from %d to %d"):format(rule.min, rule.max)
end

M.SECONDS_MOST = 3.15e9 -- a hundred years

function kinds.seconds(value, rule)
  local min = rule.min or 0
  local ok = type(value) == "number" and value >= min and value <= M.SECONDS_MOST
  return ok, ("seconds, %g or more%s"):format(min, not ok and M.too_long(value) or "")
end

--- Behind "seconds, 0 or more": what else there is to say about a number that is refused.
---@return string
function M.too_long(value)
  return type(value) == "number" and value > M.SECONDS_MOST and " and at most 3.15e9 (a hundred years)" or ""
end

--- A name of a channel or a group, whatever the broker.
---@return boolean
function M.is_name(value)
  return type(value) == "string" and value ~= "" and #value <= 249 and not value:find "[%z\1-\31\127]"
end

function kinds.name(value) return M.is_name(value), "a string of 1 to 249 bytes without control characters" end

--- A path into the data, such as "customer.id".
function M.is_path(value)
  return type(value) == "string" and value ~= "" and not ("." .. value .. "."):find("..", 1, true)
end

local UNITS = { [""] = 1, KB = 2 ^ 10, MB = 2 ^ 20, GB = 2 ^ 30 }

--- "256MB" or 268435456 -> 268435456; nil for anything else.
function M.bytes(value)
  if type(value) == "number" then return value == math.floor(value) and value or nil end
  local number, unit = tostring(value):match "^(%d+%.?%d*)%s?(%a*)$"
  local factor = UNITS[unit and unit:upper()]
  return factor and math.floor(tonumber(number) * factor)
end

function kinds.bytes(value, rule)
  local bytes = M.bytes(value)
  local least = ("%dMB"):format(rule.min / 2 ^ 20)
  return bytes and bytes >= rule.min and bytes <= 2 ^ 46, ('bytes, or a text such as "256MB", from %s on'):format(least)
end

function kinds.number(value, rule)
  local ok = type(value) == "number" and value >= rule.min and value <= rule.max
  return ok, ("a number from %g to %g"):format(rule.min, rule.max)
end

function kinds.choice(value, rule)
  for _, option in ipairs(rule.of) do
    if value == option then return true end
  end
  local near = type(value) == "string" and nearest(value, rule.of)
  local list = '"' .. table.concat(rule.of, '", "') .. '"'
  return false, "one of " .. list, near and ("; did you mean %q?"):format(near)
end

function kinds.any() return true end

function kinds.table(value) return type(value) == "table", "a table" end

---@class moonwire.Where
---@field file string
---@field line integer
---@field source string|nil
---@field what string such as 'pipeline "orders"'

--- Checks every field, fills defaults, and returns a plain copy; problems are appended to `problems` as texts.
---@param given table
---@param rules table<string, table>
---@param where moonwire.Where
---@param problems string[]
---@param prefix string|nil the field that `given` is the value of
---@return table
function M.check(given, rules, where, problems, prefix)
  local names, copy = {}, {}
  for name in pairs(rules) do names[#names + 1] = name end
  table.sort(names)
  local function problem(field, text)
    local line = M.line_of(where.source, where.line, tostring(field))
    problems[#problems + 1] = ("%s:%d: %s: %s"):format(where.file, line, where.what, text)
  end
  for field, value in pairs(given) do
    local rule, shown = rules[field], prefix and ("%s.%s"):format(prefix, tostring(field)) or tostring(field)
    if not rule then
      local near = type(field) == "string" and nearest(field, names)
      problem(field, ("unknown field %q%s"):format(shown, near and ("; did you mean %q?"):format(near)
        or "; known are " .. table.concat(names, ", ")))
    else
      local ok, expected, hint = kinds[rule.kind](value, rule)
      if not ok then
        problem(field, ("%s must be %s, got %s%s"):format(shown, expected, describe(value), hint or ""))
        copy[field] = rule.default -- so that the rest can still be checked
      else
        copy[field] = value
      end
    end
  end
  for field, rule in pairs(rules) do
    if given[field] == nil then
      if rule.required then
        problem(field, ("%s is missing: %s"):format(prefix and (prefix .. "." .. field) or field, rule.required))
      end
      copy[field] = rule.default
    end
  end
  return copy
end

return M
