--- The keywords: which exist, what each must hold, and which one a misspelt word was meant to be.

local M = {}

--- What a keyword must hold. `moonwire.schema.plan` has one reader per word on the right.
M.SHAPES = {
  ["$ref"] = "reference",
  ["type"] = "types", ["enum"] = "values", ["const"] = "anything",
  ["minimum"] = "number", ["maximum"] = "number",
  ["exclusiveMinimum"] = "number", ["exclusiveMaximum"] = "number", ["multipleOf"] = "positive",
  ["minLength"] = "count", ["maxLength"] = "count", ["pattern"] = "pattern", ["format"] = "string",
  ["items"] = "schema or schemas", ["additionalItems"] = "schema", ["prefixItems"] = "schemas",
  ["contains"] = "schema", ["minContains"] = "count", ["maxContains"] = "count",
  ["minItems"] = "count", ["maxItems"] = "count", ["uniqueItems"] = "boolean",
  ["properties"] = "schema map", ["patternProperties"] = "pattern map",
  ["additionalProperties"] = "schema", ["propertyNames"] = "schema",
  ["required"] = "names", ["minProperties"] = "count", ["maxProperties"] = "count",
  ["dependencies"] = "dependencies", ["dependentRequired"] = "names map", ["dependentSchemas"] = "schema map",
  ["if"] = "schema", ["then"] = "schema", ["else"] = "schema", ["not"] = "schema",
  ["allOf"] = "schemas", ["anyOf"] = "schemas", ["oneOf"] = "schemas",
  ["definitions"] = "schema map", ["$defs"] = "schema map",
}

--- Keywords that judge the same value again, so that a loop of them never ends.
M.SAME_VALUE = {
  ["$ref"] = true, ["allOf"] = true, ["anyOf"] = true, ["oneOf"] = true, ["not"] = true,
  ["if"] = true, ["then"] = true, ["else"] = true, ["dependencies"] = true, ["dependentSchemas"] = true,
}

--- Keywords of later drafts that constrain values in ways not built here: taking them for unknown words
--- would let messages through that their author meant to refuse.
M.UNSUPPORTED = {
  ["unevaluatedProperties"] = true, ["unevaluatedItems"] = true,
  ["$dynamicRef"] = true, ["$recursiveRef"] = true,
}

local ANNOTATIONS = {
  "$schema", "$id", "$anchor", "$comment", "$vocabulary", "$dynamicAnchor", "$recursiveAnchor", "title",
  "description", "default", "examples", "readOnly", "writeOnly", "deprecated", "contentEncoding",
  "contentMediaType", "contentSchema",
  "id", "example", -- of draft-04 and OpenAPI: one letter from a keyword, and no mistake
}

local KNOWN = {}
for _, list in ipairs { M.SHAPES, M.UNSUPPORTED } do
  for word in pairs(list) do
    KNOWN[word] = true
  end
end
for _, word in ipairs(ANNOTATIONS) do
  KNOWN[word] = true
end

-- Edit distance with swapped neighbours counted once.
local function distance(a, b)
  local above, row = {}, {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local two_above = above
    above, row = row, { [0] = i }
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      local best = math.min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        best = math.min(best, two_above[j - 2] + 1)
      end
      row[j] = best
    end
  end
  return row[#b]
end

local function same_letters(a, b)
  local x, y = { a:byte(1, -1) }, { b:byte(1, -1) }
  table.sort(x)
  table.sort(y)
  return string.char(unpack(x)) == string.char(unpack(y))
end

-- Short words have honest neighbours ("note", "when"), so there only a swap or wrong case counts.
local function nearness(word, known)
  local a, b = word:lower(), known:lower()
  if #a > 40 or math.abs(#a - #b) > 2 then return nil end
  local far = distance(a, b)
  if #b < 5 then
    return far < 2 and same_letters(a, b) and far or nil
  end
  return far <= (#b < 8 and 1 or 2) and far or nil
end

--- The keyword that an unknown word is surely a misspelling of, or nil: then it is somebody's own keyword.
---@param word string
---@return string?
function M.meant(word)
  if KNOWN[word] or word:sub(1, 2) == "x-" then return nil end
  local best, least
  for known in pairs(KNOWN) do
    local far = nearness(word, known)
    if far and (not least or far < least or (far == least and known < best)) then
      best, least = known, far
    end
  end
  return best
end

--- The name of a list that an unknown name is near to, or nil.
---@param word string
---@param names table<string, any>
---@return string?
function M.nearest(word, names)
  local best, least = nil, math.floor(#word / 3) + 1
  if #word > 40 then return nil end
  for name in pairs(names) do
    local far = math.abs(#name - #word) < least and distance(word, name)
    if far and (far < least or (far == least and best and name < best)) then
      best, least = name, far
    end
  end
  return best
end

return M
