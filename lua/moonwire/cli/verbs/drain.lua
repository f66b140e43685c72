--- moonwire drain: ends the running processes of a project as TERM does.
local control = require "moonwire.cli.process.control"
local out = require "moonwire.cli.out"

local function run(values)
  for _, answer in ipairs(control.ask(values.DIR, "drain", 30)) do out.line(("%d: draining"):format(answer.pid)) end
  return 0
end

return {
  name = "drain",
  summary = "Ends every process that runs the project: what runs is finished, the rest given back.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = {},
  examples = { "moonwire drain shop" },
  run = run,
}
