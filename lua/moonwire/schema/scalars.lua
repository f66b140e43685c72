--- Writers for keywords that need no look inside the value: type, enum, const, numbers, strings.

local formats = require "moonwire.schema.formats"
local values = require "moonwire.schema.values"

local M = {}

local ORDER = { "object", "array", "string", "number", "integer", "boolean", "null" }

local function is_null(e, v)
  if e.plan.null == nil then return v .. " == nil" end
  -- Asked by type first: comparing cdata with a light userdata raises.
  return ("(%s == nil or type(%s) == %q and %s == null)"):format(v, v, type(e.plan.null), v)
end

local TYPE = {
  object = function(e, v) return "(" .. e:is_object(v) .. ")" end,
  array = function(e, v) return "(" .. e:is_array(v) .. ")" end,
  number = function(_, v) return ("(type(%s) == 'number' or wide(%s))"):format(v, v) end,
  integer = function(_, v) return ("(type(%s) == 'number' and %s %% 1 == 0 or wide(%s))"):format(v, v, v) end,
  string = function(_, v) return ("type(%s) == 'string'"):format(v) end,
  boolean = function(_, v) return ("type(%s) == 'boolean'"):format(v) end,
  null = is_null,
}

local function write_type(e, schema)
  e.types = nil
  if schema.type == nil then return end
  local types, tests, names = {}, {}, {}
  for _, name in ipairs(type(schema.type) == "table" and schema.type or { schema.type }) do
    types[name] = true
  end
  for _, name in ipairs(ORDER) do
    if types[name] then
      names[#names + 1] = name
      if name ~= "integer" or not types.number then tests[#tests + 1] = TYPE[name](e, e.v) end
    end
  end
  local wanted = e.quote(table.concat(names, " or "))
  e:fail_type(("not (%s)"):format(table.concat(tests, " or ")), ("mismatch(%s, %s)"):format(wanted, e.v))
  e.types = types
end

local function listed(e, list)
  local set, plain = {}, true
  for _, value in ipairs(list) do
    local t = type(value)
    if t == "string" or t == "number" or t == "boolean" or rawequal(value, e.plan.null) then
      set[value] = true
    else
      plain = false
    end
  end
  return set, plain
end

local function write_enum(e, schema)
  if schema.enum == nil then return end
  local set, plain = listed(e, schema.enum)
  local slow = ("among(%s, %d, %s)"):format(e:constant(schema.enum), #schema.enum, e.v)
  if plain then slow = ("(type(%s) == 'cdata' and %s)"):format(e.v, slow) end
  if e.plan.null ~= nil and set[e.plan.null] then slow = slow .. (" and %s ~= nil"):format(e.v) end
  e:fail(("not %s[%s] and not %s"):format(e:constant(set), e.v, slow),
    ("'expected one of ' .. show(%s, true) .. ', got ' .. show(%s)"):format(e:constant(schema.enum), e.v))
end

local function write_const(e, schema)
  local wanted = schema.const
  if wanted == nil then return end
  local unequal
  if type(wanted) == "string" then
    unequal = ("(type(%s) ~= 'string' or %s ~= %s)"):format(e.v, e.v, e.quote(wanted))
  elseif rawequal(wanted, e.plan.null) then
    unequal = "not " .. is_null(e, e.v)
  else
    unequal = ("not equal(%s, %s)"):format(e.v, type(wanted) == "boolean" and tostring(wanted) or e:constant(wanted))
  end
  e:fail(unequal, e.quote("expected " .. e.show(wanted) .. ", got ") .. (" .. show(%s)"):format(e.v))
end

-- Numbers -----------------------------------------------------------------------------------------------------------

local LIMITS = {
  { "minimum", "<", "at least" }, { "maximum", ">", "at most" },
  { "exclusiveMinimum", "<=", "more than" }, { "exclusiveMaximum", ">=", "less than" },
}

local function write_limits(e, schema, wide)
  for _, limit in ipairs(LIMITS) do
    local value = schema[limit[1]]
    if value ~= nil then
      local text = e.quote(("expected %s %s, got "):format(limit[3], e.show(value))) .. (" .. show(%s)"):format(e.v)
      if wide or values.wide(value) then
        e:fail(("compare(%s, %s) %s 0"):format(e.v, e:number(value), limit[2]), text)
      else
        e:fail(("%s %s %s"):format(e.v, limit[2], e:number(value)), text)
      end
    end
  end
  if schema.multipleOf ~= nil then
    e:fail(("not multiple(%s, %s)"):format(e.v, e:number(schema.multipleOf)),
      e.quote("expected a multiple of " .. e.show(schema.multipleOf) .. ", got ") .. (" .. show(%s)"):format(e.v))
  end
end

local function write_numbers(e, schema)
  local any = schema.multipleOf ~= nil
  for _, limit in ipairs(LIMITS) do
    any = any or schema[limit[1]] ~= nil
  end
  if not any or not e:guard("number") then return end
  -- Lua numbers compare in one instruction; the 64-bit ones take the careful way.
  e:line("if type(%s) == 'number' then", e.v)
  write_limits(e, schema, false)
  e:line("elseif wide(%s) then", e.v)
  write_limits(e, schema, true)
  e:line("end")
end

-- Strings -----------------------------------------------------------------------------------------------------------

local function characters(n)
  return ("%d character%s"):format(n, n == 1 and "" or "s")
end

-- A string has at most as many code points as bytes, and at least a quarter: most need no counting.
local function write_lengths(e, schema)
  local v, low, high = e.v, schema.minLength, schema.maxLength
  if low and low > 0 then
    e:fail(("(#%s < %d or #%s < %d and length(%s) < %d)"):format(v, low, v, low * 4, v, low),
      ("'expected at least %s, got ' .. length(%s)"):format(characters(low), v))
  end
  if high then
    e:fail(("#%s > %d and length(%s) > %d"):format(v, high, v, high),
      ("'expected at most %s, got ' .. length(%s)"):format(characters(high), v))
  end
end

local function write_strings(e, schema)
  local format = schema.format and formats[schema.format]
  if not (schema.minLength or schema.maxLength or schema.pattern or format) then return end
  local guard = e:guard("string")
  if not guard then return end
  e:when(guard, function()
    write_lengths(e, schema)
    if schema.pattern then
      e:fail(("not match(%s, %s)"):format(e:constant(e.plan.patterns[schema.pattern]), e.v),
        ("show(%s) .. %s"):format(e.v, e.quote(" does not match pattern " .. schema.pattern)))
    end
    if format then
      e:fail(("not %s(%s)"):format(e:constant(format), e.v),
        ("show(%s) .. %s"):format(e.v, e.quote(" is not a valid " .. schema.format)))
    end
  end)
end

--- Writes the checks; leaves in `e.types` what is known of the value's type afterwards.
function M.write(e, schema)
  write_type(e, schema)
  write_const(e, schema)
  write_enum(e, schema)
  write_numbers(e, schema)
  write_strings(e, schema)
end

return M
