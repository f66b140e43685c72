--- Writers for keywords that combine schemas on one value: allOf, anyOf, oneOf, not, if/then/else.

local M = {}

-- The schemas that failed are explained by their number; a plain `false` has nothing to explain.
local function numbers(e, list)
  local ids = {}
  for _, sub in ipairs(list) do
    local target = e:resolve(sub)
    if type(target) == "table" then ids[#ids + 1] = e.explain and e:call(target) or e.plan.id[target] end
  end
  return ids
end

local function none_text(e, list, keyword)
  return ("none(E, d, %s, X, %s, %d, %q)"):format(e.v, e:constant(numbers(e, list)), #list, keyword)
end

local function write_any(e, schema)
  if not schema.anyOf then return end
  local tests = {}
  for i, sub in ipairs(schema.anyOf) do
    tests[i] = e:holds(sub, e.v, "d")
  end
  e:fail(("not (%s)"):format(table.concat(tests, " or ")), none_text(e, schema.anyOf, "anyOf"))
end

local function write_one(e, schema)
  if not schema.oneOf then return end
  e:line("do local n = 0")
  for _, sub in ipairs(schema.oneOf) do
    e:line("if n < 2 and %s then n = n + 1 end", e:holds(sub, e.v, "d"))
  end
  e:fail("n == 0", none_text(e, schema.oneOf, "oneOf"))
  e:fail("n > 1", ("'matches more than one of the %d alternatives under \"oneOf\"'"):format(#schema.oneOf))
  e:line("end")
end

local function write_condition(e, schema)
  if schema["if"] == nil or (schema["then"] == nil and schema["else"] == nil) then return end
  e:line("if %s then", e:holds(schema["if"], e.v, "d"))
  if schema["then"] ~= nil then e:also(schema["then"]) end
  e:line("else")
  if schema["else"] ~= nil then e:also(schema["else"]) end
  e:line("end")
end

function M.write(e, schema)
  for _, sub in ipairs(schema.allOf or {}) do
    e:also(sub)
  end
  write_any(e, schema)
  write_one(e, schema)
  if schema["not"] ~= nil then
    e:fail(e:holds(schema["not"], e.v, "d"), "'matches the schema under \"not\", and must not'")
  end
  write_condition(e, schema)
end

return M
