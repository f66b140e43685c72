--- Reads a schema once, before any code is made of it: every keyword holds what it must, every reference
--- leads somewhere, every pattern compiles, no chain of references goes round for ever.
--
-- What comes out (the plan) lets `moonwire.schema.emit` trust the schema it reads:
--   id[schema]      a number for each schema table           leaf[schema]    it has no schemas within
--   target[schema]  what its $ref leads to                   patterns[text]  the compiled pattern
--   only_ref        siblings of $ref do not count (draft-07 and before)
--   entered[schema] some $ref leads here

local keywords = require "moonwire.schema.keywords"
local pattern = require "moonwire.schema.pattern"
local values = require "moonwire.schema.values"

local M = {}

local TYPES = {
  string = true, number = true, integer = true, boolean = true, object = true, array = true, null = true,
}

local function refuse(pointer, text)
  error({ pointer = pointer, text = text }, 0)
end

local function below(pointer, key)
  return pointer .. "/" .. tostring(key):gsub("~", "~0"):gsub("/", "~1")
end

local function is_list(plan, t)
  return type(t) == "table" and (t[1] ~= nil or next(t) == nil or (plan.is_array ~= nil and plan.is_array(t)))
end

local function is_map(t)
  return type(t) == "table" and t[1] == nil
end

local function sorted_keys(t)
  local keys = {}
  for k in pairs(t) do
    if type(k) == "string" then keys[#keys + 1] = k end
  end
  table.sort(keys)
  return keys
end

M.sorted_keys = sorted_keys

-- References ------------------------------------------------------------------------------------------------

local function child_of(t, token)
  if type(t) ~= "table" then return nil end
  local index = t[token] == nil and token:find("^%d+$") and tonumber(token)
  if index then return t[index + 1] end
  return t[token]
end

local function follow(plan, fragment)
  local at = plan.root
  for token in fragment:gmatch("/([^/]*)") do
    at = child_of(at, (token:gsub("~1", "/"):gsub("~0", "~")))
  end
  return at
end

local function fragment_of(plan, ref, pointer)
  local own = type(plan.root) == "table" and plan.root["$id"]
  if type(own) == "string" and own ~= "" then
    own = own:gsub("#$", "")
    if ref:sub(1, #own) == own and ref:find("^#", #own + 1) then ref = ref:sub(#own + 1) end
    if ref == own then ref = "#" end
  end
  if ref:sub(1, 1) ~= "#" then
    refuse(pointer, ('reference to "%s" is remote; copy that schema under "definitions" and refer to it '
      .. 'as "#/definitions/<name>"'):format(ref))
  end
  local fragment = ref:sub(2):gsub("%%(%x%x)", function(h) return string.char(tonumber(h, 16)) end)
  if fragment ~= "" and fragment:sub(1, 1) ~= "/" then
    refuse(pointer, ('reference to the anchor "%s" is not supported; use its path, "#/..."'):format(ref))
  end
  return fragment
end

-- Readers: one for each word that keywords.SHAPES has on its right ------------------------------------------------

local read = {}

local visit

local function within(plan, schema, keyword, sub, pointer)
  plan.leaf[schema] = false
  if keywords.SAME_VALUE[keyword] then
    local list = plan.again[schema]
    list[#list + 1] = { sub, pointer }
  end
  visit(plan, sub, pointer)
end

read["reference"] = function(plan, value, pointer, schema)
  if type(value) ~= "string" then refuse(pointer, "must be a string") end
  local fragment = fragment_of(plan, value, pointer)
  local target = follow(plan, fragment)
  if target == nil then
    refuse(pointer, ('reference to "%s" leads nowhere in this schema'):format(value))
  end
  plan.target[schema] = target
  if type(target) == "table" then plan.entered[target] = true end
  plan.leaf[schema] = false
  local list = plan.again[schema]
  list[#list + 1] = { target, pointer }
  -- The target is named by its own path: an error in it is not an error of the reference.
  visit(plan, target, fragment)
end

read["anything"] = function() end

read["types"] = function(plan, value, pointer)
  local list = type(value) == "string" and { value } or value
  if not is_list(plan, list) or #list == 0 then refuse(pointer, "must be the name of a type, or a list of them") end
  for _, name in ipairs(list) do
    if type(name) ~= "string" then refuse(pointer, "must be the name of a type, or a list of them") end
    if not TYPES[name] then
      local near = keywords.nearest(name, TYPES)
      refuse(pointer, ('unknown type "%s"%s'):format(name, near and ('; did you mean "' .. near .. '"?') or ""))
    end
  end
end

read["values"] = function(plan, value, pointer)
  if not is_list(plan, value) or #value == 0 then refuse(pointer, "must be a list of at least one value") end
end

read["number"] = function(_, value, pointer)
  if type(value) == "boolean" then
    refuse(pointer, "must be a number (true and false are draft-04's way of writing it)")
  elseif (type(value) ~= "number" and not values.wide(value)) or value ~= value then
    refuse(pointer, "must be a number")
  end
end

read["positive"] = function(_, value, pointer)
  if type(value) ~= "number" or value <= 0 or value == math.huge then refuse(pointer, "must be a number above 0") end
end

read["count"] = function(_, value, pointer)
  if type(value) ~= "number" or value < 0 or value % 1 ~= 0 then
    refuse(pointer, "must be a whole number, 0 or more")
  end
end

read["boolean"] = function(_, value, pointer)
  if type(value) ~= "boolean" then refuse(pointer, "must be true or false") end
end

read["string"] = function(_, value, pointer)
  if type(value) ~= "string" then refuse(pointer, "must be a string") end
end

read["pattern"] = function(plan, value, pointer)
  if type(value) ~= "string" then refuse(pointer, "must be a string") end
  if plan.patterns[value] then return end
  local compiled, why = pattern.compile(value)
  if not compiled then refuse(pointer, ('pattern "%s": %s'):format(value, why)) end
  plan.patterns[value] = compiled
end

read["names"] = function(plan, value, pointer)
  if not is_list(plan, value) then refuse(pointer, "must be a list of property names") end
  for _, name in ipairs(value) do
    if type(name) ~= "string" then refuse(pointer, "must be a list of property names") end
  end
end

read["schema"] = function(plan, value, pointer, schema, keyword)
  within(plan, schema, keyword, value, pointer)
end

read["schemas"] = function(plan, value, pointer, schema, keyword)
  if not is_list(plan, value) or (#value == 0 and keyword ~= "items") then
    refuse(pointer, "must be a list of at least one schema")
  end
  for i, sub in ipairs(value) do
    within(plan, schema, keyword, sub, below(pointer, i - 1))
  end
end

read["schema or schemas"] = function(plan, value, pointer, schema, keyword)
  if type(value) == "table" and (value[1] ~= nil or (plan.is_array and plan.is_array(value))) then
    plan.tuple[schema] = true
    return read["schemas"](plan, value, pointer, schema, keyword)
  end
  within(plan, schema, keyword, value, pointer)
end

local function each(plan, value, pointer, reader, ...)
  if not is_map(value) then refuse(pointer, "must be an object") end
  for _, key in ipairs(sorted_keys(value)) do
    reader(plan, value[key], below(pointer, key), ...)
  end
end

read["schema map"] = function(plan, value, pointer, schema, keyword)
  -- Definitions are read for their errors, but are no part of what this schema checks.
  if keyword == "definitions" or keyword == "$defs" then
    each(plan, value, pointer, visit)
  else
    each(plan, value, pointer, read["schema"], schema, keyword)
  end
end

read["pattern map"] = function(plan, value, pointer, schema, keyword)
  read["schema map"](plan, value, pointer, schema, keyword)
  for _, key in ipairs(sorted_keys(value)) do
    read["pattern"](plan, key, below(pointer, key))
  end
end

read["names map"] = function(plan, value, pointer)
  each(plan, value, pointer, read["names"])
end

read["dependencies"] = function(plan, value, pointer, schema, keyword)
  each(plan, value, pointer, function(_, dependency, at)
    if type(dependency) == "table" and (dependency[1] ~= nil or next(dependency) == nil) then
      read["names"](plan, dependency, at)
    else
      within(plan, schema, keyword, dependency, at)
    end
  end)
end

-- The walk ------------------------------------------------------------------------------------------------------

local function check_unknown(plan, keyword, pointer)
  if keywords.UNSUPPORTED[keyword] and not plan.only_ref then
    refuse(pointer, ('"%s" is not supported'):format(keyword))
  end
  local meant = keywords.meant(keyword)
  if meant then
    refuse(pointer, ('unknown keyword "%s"; did you mean "%s"?'):format(keyword, meant))
  end
end

function visit(plan, schema, pointer)
  if type(schema) == "boolean" then return end
  if not is_map(schema) or (plan.is_array and plan.is_array(schema)) then
    refuse(pointer, "must be a schema: an object, true or false")
  elseif plan.id[schema] then
    return
  end
  plan.count = plan.count + 1
  plan.id[schema], plan.pointer[schema] = plan.count, pointer
  plan.leaf[schema], plan.again[schema] = true, {}
  plan.order[plan.count] = schema
  local alone = plan.only_ref and schema["$ref"] ~= nil
  for _, keyword in ipairs(sorted_keys(schema)) do
    local shape = keywords.SHAPES[keyword]
    local counts = not alone or keyword == "$ref" or keyword == "definitions" or keyword == "$defs"
    if not shape then
      check_unknown(plan, keyword, below(pointer, keyword))
    elseif counts then
      read[shape](plan, schema[keyword], below(pointer, keyword), schema, keyword)
    end
  end
end

-- A schema that comes back to itself on the same value would be checked for ever.
local function refuse_loops(plan)
  local state = {}
  local function enter(schema)
    state[schema] = "open"
    for _, step in ipairs(plan.again[schema]) do
      local sub, pointer = step[1], step[2]
      if state[sub] == "open" then
        refuse(pointer, "goes round in a circle: the same value would be checked against the same schema for ever")
      elseif type(sub) == "table" and not state[sub] then
        enter(sub)
      end
    end
    state[schema] = "done"
  end
  for i = 1, plan.count do
    if not state[plan.order[i]] then enter(plan.order[i]) end
  end
end

-- Before 2019 a $ref hid its siblings. Who names such a draft gets that; who names none surely wrote the
-- siblings to be obeyed.
local function hides_siblings(root)
  local draft = type(root) == "table" and root["$schema"]
  return type(draft) == "string" and draft:find("draft%-0[3-7]") ~= nil
end

--- Reads a schema.
---@param root table|boolean
---@param env { null: any, is_array: nil|fun(t: table): boolean }
---@return table|nil plan
---@return string? pointer
---@return string? text
function M.make(root, env)
  local plan = {
    root = root, null = env.null, is_array = env.is_array, only_ref = hides_siblings(root), count = 0,
    id = {}, order = {}, pointer = {}, leaf = {}, again = {}, target = {}, entered = {}, tuple = {}, patterns = {},
  }
  local ok, why = pcall(function()
    visit(plan, root, "")
    refuse_loops(plan)
  end)
  if ok then return plan end
  if type(why) ~= "table" then error(why, 0) end
  return nil, why.pointer, why.text
end

return M
