--- Writes Lua source for a plan: one function for each schema that needs one.
--
-- The same writers run in two modes, so that the two can never disagree:
--   test     T[n] = function(v, d)     answers true or false, and makes no garbage
--   explain  X[n] = function(v, d, E)  runs only after a test failed, and reports each failure to E
-- `d` is how deep in the message `v` lies. Small schemas without others inside are written in place.

local keywords = require "moonwire.schema.keywords"
local plans = require "moonwire.schema.plan"
local values = require "moonwire.schema.values"
local automaton = require "moonwire.schema.automaton"
local report = require "moonwire.schema.report"

local scalars = require "moonwire.schema.scalars"
local arrays = require "moonwire.schema.arrays"
local objects = require "moonwire.schema.objects"
local logic = require "moonwire.schema.logic"

local M = {}

M.DEEPEST = 512 -- levels of a message that a schema which refers to itself will follow

local Emitter = {}
Emitter.__index = Emitter

local HEAD = [[
local T, X, K, R = ...
local wide, compare, multiple, length, size = R.wide, R.compare, R.multiple, R.length, R.size
local equal, among, repeated, match = R.equal, R.among, R.repeated, R.match
local fail, show, mismatch, none, unknown = R.fail, R.show, R.mismatch, R.none, R.unknown
local null, is_array, type, next, pairs = R.null, R.is_array, R.type, R.next, R.pairs
]]

function Emitter:line(text, ...)
  self.lines[#self.lines + 1] = select("#", ...) > 0 and text:format(...) or text
end

--- A constant that has no literal; answers the expression that reads it.
function Emitter:constant(value)
  local k = self.known[value]
  if not k then
    k = #self.constants + 1
    self.constants[k], self.known[value] = value, k
  end
  return ("K[%d]"):format(k)
end

function Emitter.quote(text)
  return (("%q"):format(text):gsub("\n", "n")) -- %q writes a newline as backslash, newline
end

function Emitter:number(n)
  if type(n) == "number" and n == n and math.abs(n) < math.huge then
    return n < 0 and ("(%.17g)"):format(n) or ("%.17g"):format(n)
  end
  return self:constant(n)
end

--- Writes: when the condition holds, the value fails. `text` is an expression, evaluated in explain mode.
function Emitter:fail(condition, text, depth)
  if self.explain then
    self:line("if %s and fail(E, %s, %s) then return end", condition, depth or "d", text)
  else
    self:line("if %s then return false end", condition)
  end
end

--- As `fail`, for a value of the wrong type: nothing else is worth saying about it.
function Emitter:fail_type(condition, text)
  if self.explain then
    self:line("if %s then fail(E, d, %s, true) return end", condition, text)
  else
    self:line("if %s then return false end", condition)
  end
end

--- Writes a block that runs under a condition; the empty condition is always true.
function Emitter:when(condition, body)
  if condition ~= "" then self:line("if %s then", condition) end
  body()
  if condition ~= "" then self:line("end") end
end

-- Types ---------------------------------------------------------------------------------------------------------

function Emitter.is_array(_, v)
  return ("type(%s) == 'table' and (%s[1] ~= nil or next(%s) == nil)"):format(v, v, v)
end

function Emitter:is_object(v)
  local marked = self.plan.is_array and (" and not is_array(%s)"):format(v) or ""
  return ("type(%s) == 'table' and %s[1] == nil%s"):format(v, v, marked)
end

--- The condition under which keywords for one kind of value apply: "" for always, nil for never.
function Emitter:guard(kind)
  local types, v = self.types, self.v
  local mine = not types or types[kind] or (kind == "number" and types.integer)
  if not mine then return nil end
  local others = types == nil
  for name in pairs(types or {}) do
    if name ~= kind and not (kind == "number" and name == "integer") then others = true end
  end
  if not others then return "" end
  if kind == "array" or kind == "object" then
    local twin = kind == "array" and "object" or "array"
    if types and not types[twin] then return ("type(%s) == 'table'"):format(v) end
    return kind == "array" and self:is_array(v) or self:is_object(v)
  end
  return ("type(%s) == %q"):format(v, kind)
end

-- Schemas within schemas ------------------------------------------------------------------------------------------

-- A schema that only refers is skipped for its target: one call, and one stack frame, less per level.
function Emitter:resolve(schema)
  while type(schema) == "table" and schema["$ref"] ~= nil do
    if not self.plan.only_ref then
      for key in pairs(schema) do
        local idle = key == "$ref" or key == "definitions" or key == "$defs" or not keywords.SHAPES[key]
        if not idle then return schema end
      end
    end
    schema = self.plan.target[schema]
  end
  if type(schema) == "table" and next(schema) == nil then return true end
  return schema
end

function Emitter:call(schema)
  local id = self.plan.id[schema]
  if not self.wanted[id] then
    self.wanted[id] = true
    self.queue[#self.queue + 1] = schema
  end
  return id
end

--- An expression: does the value at `v`, `depth` levels down, satisfy the schema?
function Emitter:holds(schema, v, depth)
  schema = self:resolve(schema)
  if type(schema) == "boolean" then return tostring(schema) end
  local id = self.plan.id[schema]
  if not self.explain then self:call(schema) end -- explain mode borrows the tests
  return ("T[%d](%s, %s)"):format(id, v, depth)
end

--- Writes: the value itself must satisfy another schema too.
function Emitter:also(schema)
  schema = self:resolve(schema)
  if schema == true then return end
  if schema == false then
    self:fail("true", "'no value is allowed here'")
  elseif self.explain then
    self:line("X[%d](%s, d, E)", self:call(schema), self.v)
    self:line("if E.full then return end")
  else
    self:line("if not T[%d](%s, d) then return false end", self:call(schema), self.v)
  end
end

--- Writes: the value in variable `x`, found under `key` (an expression), must satisfy the schema.
function Emitter:child(schema, x, key, refusal)
  schema = self:resolve(schema)
  if schema == true then return end
  if self.explain then self:line("E.keys[d + 1] = %s", key) end
  if schema == false then
    self:fail("true", refusal or "'no value is allowed here'", "d + 1")
  elseif self.explain then
    self:line("X[%d](%s, d + 1, E)", self:call(schema), x)
    self:line("if E.full then return end")
  elseif self.plan.leaf[schema] then
    local v, types = self.v, self.types
    self.v = x
    self:body(schema)
    self.v, self.types = v, types
  else
    self:line("if not T[%d](%s, d + 1) then return false end", self:call(schema), x)
  end
end

-- Functions -------------------------------------------------------------------------------------------------------

function Emitter:body(schema)
  if self.plan.target[schema] ~= nil then
    self:also(self.plan.target[schema])
    if self.plan.only_ref then return end
  end
  scalars.write(self, schema)
  arrays.write(self, schema)
  objects.write(self, schema)
  logic.write(self, schema)
end

function Emitter:write_function(schema)
  local id = self.plan.id[schema]
  self.v, self.types = "v", nil
  self:line(self.explain and "X[%d] = function(v, d, E)" or "T[%d] = function(v, d)", id)
  if self.plan.entered[schema] then
    self:fail_type("d > " .. M.DEEPEST, ("'nested more than %d levels deep'"):format(M.DEEPEST))
  end
  self:body(schema)
  if not self.explain then self:line("do return true end") end
  self:line("end")
end

local function runtime(plan)
  local R = { type = type, next = next, pairs = pairs, null = plan.null, is_array = plan.is_array }
  for _, module in ipairs { values, report.runtime(plan), { match = automaton.match } } do
    for name, fn in pairs(module) do
      R[name] = fn
    end
  end
  return R
end

--- Writes and loads the functions of a plan.
---@param plan table
---@param tests table|nil  the tests made before: then explaining functions are made
---@param name string  shown in tracebacks
---@return table|nil functions  by schema number
---@return string? why not
function M.load(plan, tests, name)
  local self = setmetatable({
    plan = plan, explain = tests ~= nil, lines = {}, constants = {}, known = {}, wanted = {}, queue = {},
    sorted_keys = plans.sorted_keys, show = report.runtime(plan).show,
  }, Emitter)
  self:call(plan.root)
  local done = 0
  while done < #self.queue do
    done = done + 1
    self:write_function(self.queue[done])
  end
  local source = HEAD .. table.concat(self.lines, "\n")
  local chunk, why = loadstring(source, "=" .. name)
  if not chunk then return nil, "too large to compile: " .. why end
  local functions = {}
  chunk(tests or functions, functions, self.constants, runtime(plan))
  return functions, source
end

return M
