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

-- Where the shell says we are, through links; nil: it does not, or is wrong.
local function logical_cwd()
  local pwd = os.getenv "PWD"
  return pwd and pwd:sub(1, 1) == "/" and posix.realpath(pwd) == posix.realpath "." and pwd or posix.realpath "."
end

--- The folder as it was given, absolute, with its links: for `current -> releases/2`, which means another one after the
--- next deploy.
---@param given string|nil
---@return string
function M.given(given)
  local real = M.dir(given)
  local dir = given or "."
  if ("/" .. dir .. "/"):find("/../", 1, true) then return real end -- above a link is not where it seems to be
  if dir:sub(1, 1) ~= "/" then dir = logical_cwd() .. "/" .. dir end
  dir = dir:gsub("/%./", "/"):gsub("/%.$", ""):gsub("//+", "/"):gsub("(.)/+$", "%1")
  return posix.realpath(dir) == real and dir or real
end

--- Every problem on its own line, then the end.
---@param text string lines
function M.complain(text)
  for line in text:gmatch "[^\n]+" do out.note("%s", line) end
  fail.raise(fail.CONFIG, nil)
end

return M
