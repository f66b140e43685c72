--- moonwire reload: the running processes of a project load its code anew. What does not load changes nothing.
local control = require "moonwire.cli.process.control"
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"

local function tell(pid, reply)
  if not reply.ok then
    for line in reply.problems:gmatch "[^\n]+" do out.note("%d: %s", pid, line) end
    out.note("%d: refused: the old code serves on", pid)
    return
  end
  out.line(("%d: generation %d: %d kept, %d started, %d draining"):format(pid, reply.generation, reply.kept,
    reply.added, reply.removed))
end

local function run(values)
  local code = 0
  for _, answer in ipairs(control.ask(values.DIR, "reload", 30)) do
    if values.json then
      answer.reply.pid = answer.pid
      out.json(answer.reply)
    else
      tell(answer.pid, answer.reply)
    end
    if not answer.reply.ok then code = fail.CONFIG end
  end
  return code
end

return {
  name = "reload",
  summary = "Makes every process that runs the project load its code anew, and tells what came of it.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = { { "json", nil, "one object a process: pid, ok, generation, kept, added, removed, problems" } },
  examples = { "moonwire reload shop" },
  run = run,
}
