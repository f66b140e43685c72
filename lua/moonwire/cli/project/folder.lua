--- What the verbs that take a project share: its folder, and how its problems are told.
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"

local M = {}

--- The folder as an absolute path: what is stored with dead letters must still make sense elsewhere.
---@param given string|nil
---@return string
function M.dir(given)
  local dir = given or "."
  if dir == "" or not posix.exists(dir) then fail.usage("there is no folder %q", dir) end
  if not posix.is_dir(dir) then fail.usage("%q is not a folder", dir) end
  return posix.realpath(dir)
end

--- Every problem on its own line, then the end.
---@param text string lines
function M.complain(text)
  for line in text:gmatch "[^\n]+" do out.note("%s", line) end
  fail.raise(fail.CONFIG, nil)
end

return M
