--- A part of the library as projects see it: for reading only, and a name that it has not is an error with the nearest
--- one that it has. All handlers share it: what one of them changed would be changed for the others.
local nearest = require "moonwire.internal.nearest"

---@param name string as people write it, such as "mw.log"
---@param inner table
---@return table
return function(name, inner)
  local function unknown(_, field)
    local known = {}
    for key in pairs(inner) do known[#known + 1] = tostring(key) end
    local near = type(field) == "string" and nearest(field, known)
    error(("%s.%s does not exist%s"):format(name, tostring(field),
      near and ("; did you mean %s.%s?"):format(name, near) or ""), 2)
  end
  local function fixed(_, field)
    error(("%s.%s cannot be set: all handlers share it"):format(name, tostring(field)), 2)
  end
  if not getmetatable(inner) then setmetatable(inner, { __index = unknown }) end
  return setmetatable({}, { __index = inner, __newindex = fixed, __metatable = "protected" })
end
