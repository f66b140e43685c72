--- Under which names a running project is found: that of its folder, and, where that was given through a link, of the
--- link. So `reload current` finds it after `current` was made to point elsewhere.
local core = require "moonwire.core"
local log = require "moonwire.log"
local posix = require "moonwire.cli.posix"

local M = {}

--- Not being able to open the door is no reason not to work.
---@param real string the folder
---@param given string the same, perhaps through a link
---@return string|nil path of the control socket
---@return fun() close
function M.open(real, given)
  local path, err = core.control_path(real)
  if not path then
    log.warn("no control socket: reload by signal only", { error = err })
    return nil, function() end
  end
  if given == real then return path, function() end end
  local alias = core.control_path(given)
  os.remove(alias)
  posix.symlink(path, alias)
  return path, function() os.remove(alias) end
end

--- The sockets of all that run the project.
---@param given string
---@return string[]|nil paths, string|nil error
function M.sockets(real, given)
  local paths, err = core.control_sockets(real)
  if not paths then return nil, err end
  local known = {}
  for _, path in ipairs(paths) do known[path:match "%d+$"] = true end -- by pid
  for _, path in ipairs(given ~= real and core.control_sockets(given) or {}) do
    if not known[path:match "%d+$"] then paths[#paths + 1] = path end
  end
  return paths
end

return M
