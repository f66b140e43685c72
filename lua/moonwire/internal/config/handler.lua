--- Loads and checks handlers: a module of the project, one of the ready-made ones, or a table or function written in
--- moonwire.lua.
local core = require "moonwire.core"
local json = require "moonwire.json"
local nearest = require "moonwire.internal.nearest"
local schema = require "moonwire.schema"

local M = {}

local READY_MADE = { "forward", "log", "webhook" } -- the files of handlers/
local FIELDS = { "handle", "handle_batch", "schema", "name", "description" }
local KNOWN = {}
for _, name in ipairs(FIELDS) do KNOWN[name] = true end

--- handlers/NAME.lua of the library
local function ready_made(project, name)
  if not name:match "^[%w_]+$" then return nil end
  local text = core.source("handlers/" .. name .. ".lua")
  if not text then return nil end
  local chunk, err = project.sandbox.compile(text, "moonwire/handlers/" .. name .. ".lua")
  if not chunk then return nil, err end
  return chunk()
end

--- What may be meant by a name that is none: a file of the folder, or a ready-made handler.
local function nearest_to(project, name)
  local folder, last = name:match "^([%w_%-.]-)([%w_%-]+)$"
  if not last then return "" end
  local names = folder == "" and { unpack(READY_MADE) } or {}
  for _, file in ipairs(core.files(project.dir .. "/" .. folder:gsub("%.", "/"))) do
    local module = file:match "^([%w_%-]+)%.lua$"
    if module and folder .. module ~= "moonwire" then names[#names + 1] = module end
  end
  local near = nearest(last, names)
  return near and ("; did you mean %q?"):format(folder .. near) or ""
end

local function find(project, name)
  local missing = not project.sandbox.find(name)
  if missing then
    local module, err = ready_made(project, name)
    if module or err then return module, err end
  end
  local module, err = project.sandbox.require(name)
  if module == nil then return nil, err .. (missing and nearest_to(project, name) or "") end
  return module
end

local function read_schema(project, path)
  if type(path) == "table" then return path end
  local text, err = project.sandbox.read(path)
  if not text then return nil, "schema: " .. err end
  local value, why = json.decode(text)
  if why then return nil, ("%s: is not JSON: %s"):format(path, why) end
  if type(value) ~= "table" and type(value) ~= "boolean" then
    return nil, ("%s: must be a schema: an object, true or false"):format(path)
  end
  return value
end

local function compile_schema(project, given)
  if type(given) ~= "string" and type(given) ~= "table" then
    return nil, "schema must be the path of a JSON Schema, or the schema as a table"
  end
  local value, err = read_schema(project, given)
  if err then return nil, err end
  local check, why = schema.compile(value, { name = type(given) == "string" and given or "schema" })
  if not check then return nil, why end
  return check
end

local function check_table(module, name)
  if type(module) == "function" then return { handle = module } end
  if type(module) ~= "table" then
    local got = module == true and "nothing" or "a " .. type(module) -- what returns nothing counts as true
    return nil, ("handler %s must return a table with a function handle, got %s"):format(name, got)
  end
  for field, value in pairs(module) do
    if not KNOWN[field] and type(field) == "string" and type(value) ~= "function" and not field:match "^_" then
      local near = nearest(field, FIELDS)
      if near then return nil, ("handler %s has an unknown field %q; did you mean %q?"):format(name, field, near) end
    end
  end
  for _, field in ipairs { "handle", "handle_batch" } do
    if module[field] ~= nil and type(module[field]) ~= "function" then
      return nil, ("handler %s: %s must be a function, got a %s"):format(name, field, type(module[field]))
    end
  end
  if not module.handle and not module.handle_batch then
    local names = {}
    for field in pairs(module) do names[#names + 1] = tostring(field) end
    local near = nearest("handle", names)
    local hint = near and ("; is %q meant?"):format(near) or ""
    return nil, ("handler %s has neither handle nor handle_batch%s"):format(name, hint)
  end
  if module.handle and module.handle_batch then
    return nil, ("handler %s has both handle and handle_batch: one of them would never run"):format(name)
  end
  return module
end

--- A module may return a function of the pipeline's `options` that makes the handler.
local function make(module, options, name)
  local handles = type(module) == "table" and (module.handle ~= nil or module.handle_batch ~= nil)
  if type(module) == "table" and not handles and type(module.new) == "function" then
    module = module.new
  elseif type(module) ~= "function" or options == nil then
    if options ~= nil then return nil, ("handler %s takes no options"):format(name) end
    return module
  end
  local ok, made = pcall(module, options or {})
  if not ok then return nil, ("handler %s: %s"):format(name, tostring(made)) end
  if made == nil then
    local text = "handler %s made no handler of its options: it must return a table with a function handle; "
      .. "a function that handles messages itself takes no options"
    return nil, text:format(name)
  end
  return made
end

---@param project table
---@param given string|table|function
---@param options table|nil
---@return table|nil { handle, handle_batch, check, name }, string|nil error
function M.load(project, given, options)
  local module, name, err = given, "in moonwire.lua"
  if type(given) == "string" then
    name = ("%q"):format(given)
    module, err = find(project, given)
    if module == nil then return nil, err end
  end
  module, err = make(module, options, name)
  if module == nil then return nil, err end
  module, err = check_table(module, name)
  if not module then return nil, err end
  local loaded = { handle = module.handle, handle_batch = module.handle_batch, name = name }
  if module.schema ~= nil then
    loaded.check, err = compile_schema(project, module.schema)
    if not loaded.check then return nil, ("handler %s: %s"):format(name, err) end
  end
  return loaded
end

return M
