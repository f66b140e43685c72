--- JSON Schema, compiled into check functions.
--
--   local schema = require "moonwire.schema"
--   local check = assert(schema.compile(decoded, { name = "schemas/order.json" }))
--   local ok, text, pointer = check(message.body)   --> false, "at /customer/email: expected ...", "/customer/email"
--
-- A check that passes allocates nothing; the words for one that fails are found by a second, slower pass.

local emit = require "moonwire.schema.emit"
local plans = require "moonwire.schema.plan"
local report = require "moonwire.schema.report"

local M = {}

local MOST = 5 -- failures told with {all = true}

local has_json, json = pcall(require, "moonwire.json")

--- What stands for null in decoded messages. Read by `compile`; set it when another decoder is used.
M.null = has_json and json.null or nil

--- Tells arrays that were marked as such, so that an empty one is known from an empty object.
---@type nil|fun(t: table): boolean
M.is_array = has_json and json.is_array or nil

-- A schema that refers to itself goes as deep as the message does; running out of stack is the message's
-- fault then, and no reason to lose the handler.
local function protected(f, ...)
  local ok, result = pcall(f, ...)
  if ok then return result end
  if tostring(result):find("stack overflow", 1, true) then return false end
  error(result, 0)
end

local function told(E)
  local first = E[1] or { pointer = "", text = "is nested too deep to be checked" }
  local lines = {}
  for i = 1, E.n do
    lines[i] = report.sentence(E[i].pointer, E[i].text)
  end
  return false, lines[1] and table.concat(lines, "\n") or report.sentence("", first.text), first.pointer
end

-- Explaining takes more code than testing, so a schema at the edge of what loads may lose its words; a
-- message that fails it must still only be refused.
local function load_words(plan, tests, name)
  local functions, why = emit.load(plan, tests, name)
  if functions then return functions[plan.id[plan.root]] end
  return function(_, _, E)
    E.n, E[1] = 1, { pointer = "", text = "does not match the schema, whose explanation is " .. why }
  end
end

local function explainer(plan, tests, name)
  local explain
  return function(value, all)
    -- Most schemas of a running system never refuse anything: the words wait for the first that does.
    explain = explain or load_words(plan, tests, name)
    local E = report.new(all and MOST or 1)
    protected(explain, value, 0, E)
    return told(E)
  end
end

local function checker(plan, tests, name)
  local test, explain = tests[plan.id[plan.root]], explainer(plan, tests, name)
  local refers = next(plan.entered) ~= nil
  return function(value, opts)
    local ok
    if refers then ok = protected(test, value, 0) else ok = test(value, 0) end
    if ok then return true end
    return explain(value, opts ~= nil and opts.all)
  end
end

local function constant(answer)
  return function()
    if answer then return true end
    return false, report.sentence("", "no value is allowed here"), ""
  end
end

--- Compiles a decoded JSON Schema (draft-07 and the common later spellings).
---@param root table|boolean
---@param opts { name: string? }?  the name is put before errors in the schema
---@return nil|fun(value: any, opts: { all: boolean? }?): boolean, string?, string? check
---@return string? why not: the place in the schema, and what is wrong there
function M.compile(root, opts)
  if type(root) ~= "table" and type(root) ~= "boolean" then
    error("schema.compile: expected a table or a boolean, got " .. type(root), 2)
  end
  if type(root) == "boolean" then return constant(root) end
  local name = opts and opts.name
  local prefix = name and name .. ": " or ""
  local plan, pointer, text = plans.make(root, { null = M.null, is_array = M.is_array })
  if not plan then
    return nil, prefix .. report.sentence(pointer, text)
  end
  local tests, why = emit.load(plan, nil, name or "schema")
  if not tests then
    return nil, prefix .. why
  end
  return checker(plan, tests, name or "schema")
end

return M
