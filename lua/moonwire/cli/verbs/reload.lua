--- moonwire reload: the workers of a running project load its code anew, all or none. What does not load changes nothing.
local control = require "moonwire.cli.process.control"
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"

local function tell(name, reply)
  if reply.unchanged then
    out.note("%s: unchanged, generation %d: another worker refused", name, reply.generation)
  elseif not reply.ok then
    for line in reply.problems:gmatch "[^\n]+" do out.note("%s: %s", name, out.plain(line)) end
    out.note("%s: refused: the old code serves on", name)
  elseif reply.restarted then
    out.line(("%s: starts anew, generation %d"):format(name, reply.generation))
  else
    out.line(("%s: generation %d: %d kept, %d started, %d draining"):format(name, reply.generation, reply.kept,
      reply.added, reply.removed))
  end
end

local function run(values)
  local code = 0
  for _, answer in ipairs(control.ask(values.DIR, "reload", 90)) do
    if values.json then
      answer.reply.pid, answer.reply.worker = answer.pid, answer.worker
      out.json(answer.reply)
    else
      tell(answer.name, answer.reply)
    end
    if not answer.reply.ok then code = fail.CONFIG end
  end
  return code
end

return {
  name = "reload",
  summary = "Makes every worker of a running project load its code anew, all or none, and tells what came of it.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = { { "json", nil, "one object a worker: worker, pid, ok, generation, kept, added, removed, problems" } },
  examples = { "moonwire reload shop" },
  run = run,
}
