--- moonwire drain: ends the running processes of a project as TERM does.
local control = require "moonwire.cli.process.control"
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"

local function run(values)
  local code = 0
  for _, answer in ipairs(control.ask(values.DIR, "drain", 30)) do
    if answer.reply.ok then
      out.line(("%s: %s"):format(answer.name, answer.pid and "draining" or "does not run, and is not started again"))
    else
      out.note("%s: %s", answer.name, out.plain(answer.reply.problems))
      code = fail.FAILED
    end
  end
  return code
end

return {
  name = "drain",
  summary = "Ends what runs the project: what runs is finished, the rest given back.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = {},
  examples = { "moonwire drain shop" },
  run = run,
}
