--- Writers for keywords about arrays.

local M = {}

local KEYWORDS = { "items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems" }

local function items(n)
  return ("%d item%s"):format(n, n == 1 and "" or "s")
end

-- Both spellings of a tuple: what each place must hold, and what all places after them must.
local function places(e, schema)
  if schema.prefixItems then
    return schema.prefixItems, e.plan.tuple[schema] and schema.additionalItems or schema.items
  elseif e.plan.tuple[schema] then
    return schema.items, schema.additionalItems
  end
  return {}, schema.items
end

local function write_places(e, schema)
  local tuple, rest = places(e, schema)
  for i, sub in ipairs(tuple) do
    if e:resolve(sub) ~= true then
      e:line("do local x = %s[%d] if x ~= nil then", e.v, i)
      e:child(sub, "x", tostring(i - 1))
      e:line("end end")
    end
  end
  if rest == nil or e:resolve(rest) == true then return end
  if e:resolve(rest) == false then
    e:fail(("#%s > %d"):format(e.v, #tuple), ("'expected at most %s, got ' .. #%s"):format(items(#tuple), e.v))
    return
  end
  e:line("for i = %d, #%s do local x = %s[i]", #tuple + 1, e.v, e.v)
  e:child(rest, "x", "i - 1")
  e:line("end")
end

local function write_contains(e, schema)
  if schema.contains == nil then return end
  local low, high = schema.minContains or 1, schema.maxContains
  if low == 0 and not high then return end
  e:line("do local n = 0")
  e:line("for i = 1, #%s do if %s then n = n + 1 end end", e.v, e:holds(schema.contains, e.v .. "[i]", "d + 1"))
  e:fail("n < " .. low, ("'expected at least %s matching \"contains\", got ' .. n"):format(items(low)))
  if high then
    e:fail("n > " .. high, ("'expected at most %s matching \"contains\", got ' .. n"):format(items(high)))
  end
  e:line("end")
end

local function write_counts(e, schema)
  local low, high = schema.minItems, schema.maxItems
  if low and low > 0 then
    e:fail(("#%s < %d"):format(e.v, low), ("'expected at least %s, got ' .. #%s"):format(items(low), e.v))
  end
  if high then
    e:fail(("#%s > %d"):format(e.v, high), ("'expected at most %s, got ' .. #%s"):format(items(high), e.v))
  end
end

function M.write(e, schema)
  local any = false
  for _, keyword in ipairs(KEYWORDS) do
    any = any or schema[keyword] ~= nil
  end
  local guard = any and e:guard("array")
  if not guard then return end
  e:when(guard, function()
    write_counts(e, schema)
    write_places(e, schema)
    write_contains(e, schema)
    if schema.uniqueItems then
      e:fail(("repeated(%s)"):format(e.v), ("'item ' .. (repeated(%s) - 1) .. ' repeats an earlier one'"):format(e.v))
    end
  end)
end

return M
