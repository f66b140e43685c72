--- Writers for keywords about objects.

local M = {}

local KEYWORDS = {
  "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
  "minProperties", "maxProperties", "dependencies", "dependentRequired", "dependentSchemas",
}

local function missing(name)
  return ("'required property ' .. show(%s) .. ' is missing'"):format(name)
end

local function properties_word(n)
  return n == 1 and "1 property" or n .. " properties"
end

local BATCH = 200 -- properties under one `if`: LuaJIT jumps over 32767 instructions at most

-- A required property that has a schema is fetched once for both questions.
local function write_properties(e, schema, guard)
  local properties, required = schema.properties or {}, {}
  for _, name in ipairs(schema.required or {}) do
    required[name] = true
    if properties[name] == nil then
      e:fail(("%s[%s] == nil"):format(e.v, e.quote(name)), missing(e.quote(name)))
    end
  end
  for i, name in ipairs(e.sorted_keys(properties)) do
    local quoted = e.quote(name)
    if guard ~= "" and i % BATCH == 0 then e:line("end if %s then", guard) end
    e:line("do local x = %s[%s]", e.v, quoted)
    if required[name] then e:fail("x == nil", missing(quoted)) end
    if e:resolve(properties[name]) ~= true then
      e:line("if x ~= nil then")
      e:child(properties[name], "x", quoted, "'property is not allowed'")
      e:line("end")
    end
    e:line("end")
  end
end

local function write_patterns(e, schema, tracked)
  for _, text in ipairs(e.sorted_keys(schema.patternProperties or {})) do
    e:line("if type(k) == 'string' and match(%s, k) then", e:constant(e.plan.patterns[text]))
    if tracked then e:line("known = true") end
    e:child(schema.patternProperties[text], "x", "k", "'property is not allowed'")
    e:line("end")
  end
end

-- Properties that must be met one by one, because the schema does not know their names.
local function write_others(e, schema)
  local rest = schema.additionalProperties
  if rest ~= nil and e:resolve(rest) == true then rest = nil end
  if rest == nil and next(schema.patternProperties or {}) == nil then return end
  local names = {}
  for name in pairs(schema.properties or {}) do
    names[name] = true
  end
  e:line("for k, x in pairs(%s) do", e.v)
  if rest == nil then
    write_patterns(e, schema, false)
  else
    e:line("local known = %s[k]", e:constant(names))
    write_patterns(e, schema, true)
    e:line("if not known then")
    e:child(rest, "x", "k", ("unknown(k, %s)"):format(e:constant(names)))
    e:line("end")
  end
  e:line("end")
end

local function write_names(e, schema)
  if schema.propertyNames == nil then return end
  local names = e:resolve(schema.propertyNames)
  if names == true then return end
  e:line("for k in pairs(%s) do", e.v)
  if e.explain then e:line("E.keys[d + 1], E.prefix = k, 'property name: '") end
  e:child(names, "k", "k", "'no property is allowed here'")
  if e.explain then e:line("E.prefix = nil") end
  e:line("end")
end

local function write_counts(e, schema)
  local low, high = schema.minProperties, schema.maxProperties
  if low and low > 0 then
    e:fail(("size(%s) < %d"):format(e.v, low),
      ("'expected at least %s, got ' .. size(%s)"):format(properties_word(low), e.v))
  end
  if high then
    e:fail(("size(%s) > %d"):format(e.v, high),
      ("'expected at most %s, got ' .. size(%s)"):format(properties_word(high), e.v))
  end
end

local function write_dependency(e, name, needs)
  e:line("if %s[%s] ~= nil then", e.v, e.quote(name))
  if type(needs) == "table" and needs[1] ~= nil then
    for _, other in ipairs(needs) do
      e:fail(("%s[%s] == nil"):format(e.v, e.quote(other)),
        ("'property ' .. show(%s) .. ' is required when ' .. show(%s) .. ' is present'"):format(
          e.quote(other), e.quote(name)))
    end
  elseif e:resolve(needs) == false then
    e:fail("true", ("'property ' .. show(%s) .. ' is not allowed'"):format(e.quote(name)))
  elseif type(needs) ~= "table" or next(needs) ~= nil then
    e:also(needs)
  end
  e:line("end")
end

local function write_dependencies(e, schema)
  for _, keyword in ipairs { "dependencies", "dependentRequired", "dependentSchemas" } do
    local map = schema[keyword] or {}
    for _, name in ipairs(e.sorted_keys(map)) do
      write_dependency(e, name, map[name])
    end
  end
end

function M.write(e, schema)
  local any = false
  for _, keyword in ipairs(KEYWORDS) do
    any = any or schema[keyword] ~= nil
  end
  local guard = any and e:guard("object")
  if not guard then return end
  e:when(guard, function()
    write_properties(e, schema, guard)
    write_others(e, schema)
    write_names(e, schema)
    write_counts(e, schema)
    write_dependencies(e, schema)
  end)
end

return M
