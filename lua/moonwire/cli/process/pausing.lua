--- What `pause` and `resume` share.
local answers = require "moonwire.cli.process.answers"
local control = require "moonwire.cli.process.control"
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"

local M = {}

--- Runs the verb: sends its name to every process.
---@param word string pause | resume
---@param done string how it is told
function M.run(word, done)
  return function(values)
    local code = 0
    for _, answer in ipairs(control.ask(values.DIR, answers.line(word, unpack(values.PIPELINE or {})), 10)) do
      local reply = answer.reply
      if values.json then
        reply.pid = answer.pid
        out.json(reply)
      elseif reply.ok then
        out.line(("%d: %s: %s"):format(answer.pid, done, out.plain(table.concat(reply.pipelines, ", "))))
      else
        out.note("%d: %s", answer.pid, out.plain(reply.problems))
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
M.flags = { { "json", nil, "one object a process: pid, ok, pipelines, problems" } }

return M
