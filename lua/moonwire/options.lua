--- Checks the `options` of a handler that takes some:
--- `require "moonwire.options"(options, { to = "string", level = "string?" })`. A rule is a list of Lua types; "?" at
--- the end makes it optional, "any" takes everything. A wrong or unknown option raises an error, which `moonwire check`
--- shows with the handler's name.
local nearest = require "moonwire.internal.nearest"

local function wrong(text, ...) error(text:format(...), 0) end

local function matches(value, rule)
  if rule:find "any" then return true end
  for kind in rule:gmatch "%a+" do
    if type(value) == kind then return true end
  end
  return false
end

local function names_of(rules)
  local names = {}
  for name in pairs(rules) do names[#names + 1] = name end
  table.sort(names)
  return names
end

---@param options table|nil
---@param rules table<string, string> such as { to = "string table", level = "string?" }
---@return table options
return function(options, rules)
  if options == nil then options = {} end
  if type(options) ~= "table" then wrong("options must be a table, not a %s", type(options)) end
  for name in pairs(options) do
    if not rules[name] then
      local near = nearest(tostring(name), names_of(rules))
      wrong("unknown option %q%s", tostring(name), near and ("; did you mean %q?"):format(near)
        or "; known are " .. table.concat(names_of(rules), ", "))
    end
  end
  for name, rule in pairs(rules) do
    local value = options[name]
    if value == nil then
      if not rule:find("?", 1, true) then wrong("option %q is missing", name) end
    elseif not matches(value, rule) then
      wrong("%s must be a %s, not a %s", name, rule:gsub("%?", ""):gsub(" ", " or "), type(value))
    end
  end
  return options
end
