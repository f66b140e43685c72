--- What `reload`, `status`, `drain` and the like share: finding what runs a project, and asking it. A supervisor
--- answers for its workers; a process that runs alone (`run --workers 0`) for itself.
local core = require "moonwire.core"
local door = require "moonwire.cli.process.door"
local fail = require "moonwire.cli.fail"
local json = require "moonwire.json"
local project = require "moonwire.cli.project.folder"

local M = {}

---@class moonwire.cli.Answer one a worker
---@field pid integer|nil nil: it does not run
---@field worker integer|nil its number
---@field name string how people call it
---@field state table|nil what the supervisor knows of it, see commands.lua
---@field reply table

-- With several supervisors a worker's number alone says nothing.
local function name_of(answer, supervisors)
  if not answer.worker then return tostring(answer.pid) end
  local name = ("worker %d"):format(answer.worker)
  return supervisors > 1 and ("%d %s"):format(answer.supervisor, name) or name
end

local function flatten(found)
  local answers, supervisors = {}, 0
  for _, one in ipairs(found) do
    if one.reply.workers then
      supervisors = supervisors + 1
      for _, w in ipairs(one.reply.workers) do
        local reply = w.reply
        w.reply = nil
        local pid = w.pid
        if not w.worker then pid = one.pid end -- it runs alone, and answered as its only worker
        answers[#answers + 1] = { pid = pid, worker = w.worker, supervisor = one.pid, state = w, reply = reply }
      end
    else
      answers[#answers + 1] = one
    end
  end
  for _, answer in ipairs(answers) do answer.name = name_of(answer, #found) end
  return answers, supervisors
end

--- Asks everything that runs the project. What a dead process left behind is passed by.
---@param dir string|nil
---@param line string
---@param seconds number
---@return moonwire.cli.Answer[] answers at least one
---@return integer supervisors how many answered
function M.ask(dir, line, seconds)
  local folder = project.given(dir)
  local sockets, err = door.sockets(project.dir(dir), folder)
  if not sockets then fail.raise(fail.UNAVAILABLE, err) end
  table.sort(sockets)
  local found, trouble = {}, nil
  for _, path in ipairs(sockets) do
    local text, why = core.control_call(path, line, seconds)
    local reply = text and json.decode(text)
    if reply then
      found[#found + 1] = { pid = tonumber(path:match "%.(%d+)$"), reply = reply }
    elseif not tostring(why):find("refused", 1, true) and not tostring(why):find("No such file", 1, true) then
      trouble = why or "the answer is no JSON"
    end
  end
  if trouble then fail.raise(fail.UNAVAILABLE, trouble) end
  if #found == 0 then
    fail.raise(fail.UNAVAILABLE, "nothing runs the project in %s: `moonwire run` starts it", folder)
  end
  return flatten(found)
end

return M
