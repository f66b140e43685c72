--- What `reload`, `status` and `drain` share: finding the processes that run a project, and asking each of them.
local core = require "moonwire.core"
local fail = require "moonwire.cli.fail"
local json = require "moonwire.json"
local project = require "moonwire.cli.project.folder"

local M = {}

--- Asks every process of the project. What a dead one left behind is passed by.
---@param dir string|nil
---@param line string
---@param seconds number
---@return { pid: integer, reply: table }[] answers, at least one
function M.ask(dir, line, seconds)
  local folder = project.dir(dir)
  local sockets, err = core.control_sockets(folder)
  if not sockets then fail.raise(fail.UNAVAILABLE, err) end
  table.sort(sockets)
  local answers, trouble = {}, nil
  for _, path in ipairs(sockets) do
    local text, why = core.control_call(path, line, seconds)
    local reply = text and json.decode(text)
    if reply then
      answers[#answers + 1] = { pid = tonumber(path:match "%.(%d+)$"), reply = reply }
    elseif not tostring(why):find("refused", 1, true) then
      trouble = why or "the answer is no JSON"
    end
  end
  if trouble then fail.raise(fail.UNAVAILABLE, trouble) end
  if #answers == 0 then fail.raise(fail.UNAVAILABLE, "nothing runs the project in %s", folder) end
  return answers
end

return M
