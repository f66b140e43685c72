--- The words of a failed check, and where it failed.

local keywords = require "moonwire.schema.keywords"
local values = require "moonwire.schema.values"

local format, concat = string.format, table.concat

local M = {}

local LONGEST = 60   -- bytes of a value that are shown
local FURTHEST = 200 -- bytes of a pointer that are shown
local SHOWN = 8      -- members of an enum that are shown
local DEEPEST = 3    -- alternatives within alternatives that are explained

local function escaped(c)
  return format("\\u%04x", c:byte())
end

local function show_string(s)
  if #s > LONGEST then
    local cut = LONGEST
    while cut > 0 and s:byte(cut + 1) >= 0x80 and s:byte(cut + 1) < 0xC0 do cut = cut - 1 end
    s = s:sub(1, cut) .. "..."
  end
  return '"' .. s:gsub('["\\]', "\\%0"):gsub("%c", escaped) .. '"'
end

--- The JSON name of a value's type.
---@param v any
---@param is_array nil|fun(t: table): boolean
---@return string
function M.kind(v, is_array)
  local t = type(v)
  if t == "table" then
    return (v[1] ~= nil or (is_array and is_array(v))) and "array" or "object"
  elseif t == "nil" or t == "userdata" then
    return "null"
  elseif values.wide(v) then
    return "number"
  end
  return t
end

local function show_one(v, is_array)
  local kind = M.kind(v, is_array)
  if kind == "string" then return show_string(v) end
  if kind == "null" then return "null" end
  if kind == "array" then return "an array" end
  if kind == "object" then return next(v) == nil and "an empty object" or "an object" end
  if type(v) == "number" then return (format("%.14g", v)) end
  return (tostring(v):gsub("U?LL$", ""))
end

local function show_list(list, is_array)
  local parts = {}
  for i = 1, math.min(#list, SHOWN) do
    parts[i] = show_one(list[i], is_array)
  end
  if #list > SHOWN then parts[#parts + 1] = format("... (%d in all)", #list) end
  return concat(parts, ", ")
end

local function pointer_of(keys, depth)
  local parts = {}
  for i = 1, depth do
    parts[i] = "/" .. tostring(keys[i]):gsub("~", "~0"):gsub("/", "~1")
  end
  return concat(parts)
end

--- A place and what is wrong there, as one line.
---@param pointer string
---@param text string
---@return string
function M.sentence(pointer, text)
  if #pointer > FURTHEST then
    pointer = pointer:sub(1, FURTHEST / 2) .. "..." .. pointer:sub(-FURTHEST / 2)
  end
  -- Names come from the message: none of them may break a line of the log.
  return format("at %s: %s", pointer == "" and "the top level" or (pointer:gsub("%c", escaped)), text)
end

--- A report that takes up to `most` failures.
---@param most integer
---@param keys table?  the path so far, shared with the report this one is part of
---@param nested integer?
---@return table
function M.new(most, keys, nested)
  return { n = 0, most = most, full = false, keys = keys or {}, nested = nested or 0 }
end

-- Called by explaining functions; true means that the report is full. A wrong type is weak evidence that
-- an alternative was meant, so it counts less when the nearest one is looked for.
local function fail(E, depth, text, is_type)
  E.n = E.n + 1
  E[E.n] = { pointer = pointer_of(E.keys, depth), text = (E.prefix or "") .. text }
  E.weight = depth * 2 + (is_type and 0 or 1)
  E.full = E.n >= E.most
  return E.full
end

local function nearest(E, depth, v, X, ids)
  local best
  for _, id in ipairs(ids) do
    local part = M.new(1, E.keys, E.nested + 1)
    X[id](v, depth, part)
    if part.n > 0 and (not best or part.weight > best.weight) then best = part end
  end
  return best and best[1]
end

local function none(E, depth, v, X, ids, count, keyword)
  local text = format('matches none of the %d alternative%s under "%s"', count, count == 1 and "" or "s", keyword)
  local near = E.nested < DEEPEST and nearest(E, depth, v, X, ids)
  return near and text .. "; the nearest: " .. M.sentence(near.pointer, near.text) or text
end

local function unknown(name, names)
  local meant = keywords.nearest(tostring(name), names)
  return "property is not allowed" .. (meant and format(" (did you mean %s?)", show_string(meant)) or "")
end

--- The functions that explaining code calls.
---@param env { is_array: nil|fun(t: table): boolean }
---@return table
function M.runtime(env)
  local is_array = env.is_array
  local function show(v, as_list)
    return (as_list and show_list or show_one)(v, is_array)
  end
  local function mismatch(wanted, v)
    local got = M.kind(v, is_array)
    if got == "number" and wanted:find("integer", 1, true) then got = show(v) end
    return format("expected %s, got %s", wanted, got)
  end
  return { fail = fail, none = none, unknown = unknown, show = show, mismatch = mismatch }
end

return M
