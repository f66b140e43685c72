--- moonwire status: what the running processes of a project do.
local connections = require "moonwire.cli.process.connections"
local control = require "moonwire.cli.process.control"
local figures = require "moonwire.cli.process.figures"
local json = require "moonwire.json"
local out = require "moonwire.cli.out"

local function print_json(answers, each)
  if not each and #answers > 1 then
    local pids = {}
    for i, answer in ipairs(answers) do pids[i] = answer.pid end
    out.json { pids = json.array(pids), pipelines = json.array(figures.totals(answers)),
      connections = json.array(connections.each(answers)) }
    return
  end
  for _, answer in ipairs(answers) do
    answer.reply.pid, answer.reply.ok = answer.pid, nil
    out.json(answer.reply)
  end
end

local function run(values)
  local answers = control.ask(values.DIR, "status", 10)
  if values.json then
    print_json(answers, values.each)
    return 0
  end
  local list = values.each and figures.each(answers) or figures.totals(answers)
  local heads, rows = figures.table(list, values.each, out.terminal(1))
  out.table(heads)(rows)
  local links = connections.each(answers)
  if #links > 0 then
    out.line ""
    heads, rows = connections.table(links, #answers > 1)
    out.table(heads)(rows)
  end
  if not values.each and #answers > 1 then out.note("%d processes; --each tells them apart", #answers) end
  return 0
end

return {
  name = "status",
  summary = "Tells how the pipelines of a running project stand, over all its processes.",
  details = "Rates are of the last 10 s, handler times (P50, P99) of the last 30 to 60 s; of several processes the\n"
    .. "slowest counts. HANDLED and DEAD count since the start.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = {
    { "each", nil, "each process for itself" },
    { "json", nil, "one object: pid or pids, generation, version, pipelines, connections; with --each one a process" },
  },
  examples = { "moonwire status shop", "moonwire status --each --json" },
  run = run,
}
