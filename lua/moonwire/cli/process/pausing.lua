--- What `pause` and `resume` share.
local answers = require "moonwire.cli.process.answers"
local control = require "moonwire.cli.process.control"
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"

local M = {}

--- `moonwire pause orders` in a project's folder means a pipeline, most likely.
local function check_folder(word, dir)
  if dir and not posix.exists(dir) and posix.exists "moonwire.lua" then
    fail.usage("there is no folder %q; pipelines stand after the folder: moonwire %s . %s", dir, word, dir)
  end
end

--- Runs the verb: sends its name to everything that runs the project.
---@param word string pause | resume
---@param done string how it is told
function M.run(word, done)
  return function(values)
    check_folder(word, values.DIR)
    local code = 0
    for _, answer in ipairs(control.ask(values.DIR, answers.line(word, unpack(values.PIPELINE or {})), 10)) do
      local reply = answer.reply
      if values.json then
        reply.pid, reply.worker = answer.pid, answer.worker
        out.json(reply)
      elseif reply.ok then
        local names = #reply.pipelines > 0 and table.concat(reply.pipelines, ", ") or "all"
        local later = reply.later and " (as soon as it answers again)" or ""
        out.line(("%s: %s: %s%s"):format(answer.name, done, out.plain(names), later))
      else
        out.note("%s: %s", answer.name, out.plain(reply.problems))
      end
      if not reply.ok then code = fail.FAILED end
    end
    return code
  end
end

M.arguments = {
  { "DIR", "the project's folder (default: the current one)", optional = true },
  { "PIPELINE", "which (default: all)", optional = true, many = true },
}
M.flags = { { "json", nil, "one object a worker: worker, pid, ok, pipelines, problems" } }

return M
