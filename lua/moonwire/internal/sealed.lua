--- Parts of the library as projects see them. A name that a part has not is an error with the nearest one that it has;
--- and a sealed part is for reading only: all handlers share it, and so would they share a change.
local nearest = require "moonwire.internal.nearest"

local M = {}

--- Makes unknown names an error. For specs, which may put stubs into it.
---@param name string as people write it, such as "mw.log"
---@param part table
---@return table part
function M.strict(name, part)
  return setmetatable(part, { __index = function(_, field)
    local known = {}
    for key in pairs(part) do known[#known + 1] = tostring(key) end
    local near = type(field) == "string" and nearest(field, known)
    error(("%s.%s does not exist%s"):format(name, tostring(field),
      near and ("; did you mean %s.%s?"):format(name, near) or ""), 2)
  end })
end

--- A view of it that cannot be changed.
---@param name string
---@param part table
---@return table
function M.seal(name, part)
  if not getmetatable(part) then M.strict(name, part) end
  return setmetatable({}, {
    __index = part,
    __newindex = function(_, field)
      error(("%s.%s cannot be set: all handlers share it"):format(name, tostring(field)), 2)
    end,
    __metatable = "protected",
  })
end

--- The library for a project: a copy of its names, everything in it sealed.
---@param library table
---@return table
function M.library(library)
  local copy = {}
  for name, part in pairs(library) do
    copy[name] = type(part) == "table" and M.seal("mw." .. name, part) or part
  end
  return M.seal("mw", copy)
end

return M
