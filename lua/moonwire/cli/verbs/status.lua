--- moonwire status: what the running processes of a project do.
local connections = require "moonwire.cli.process.connections"
local control = require "moonwire.cli.process.control"
local figures = require "moonwire.cli.process.figures"
local json = require "moonwire.json"
local out = require "moonwire.cli.out"

-- What the supervisor knows of a worker.
local function state_of(answer)
  local w = answer.state or { state = "up" }
  w.pid, w.worker, w.stale = answer.pid, answer.worker, answer.reply.stale
  return w
end

local function print_json(answers, each)
  if each then
    for _, answer in ipairs(answers) do
      local reply = answer.reply
      for name, value in pairs(state_of(answer)) do reply[name] = value end
      reply.ok = nil
      out.json(reply)
    end
    return
  end
  local pids, workers, newest = {}, {}, {}
  for i, answer in ipairs(answers) do
    pids[#pids + 1], workers[i] = answer.pid, state_of(answer)
    if (answer.reply.generation or 0) > (newest.generation or -1) then newest = answer.reply end
  end
  out.json { pid = #pids == 1 and pids[1] or nil, pids = json.array(pids), generation = newest.generation,
    version = newest.version, reload = newest.reload, workers = json.array(workers),
    pipelines = json.array(figures.totals(answers)), connections = json.array(connections.each(answers)) }
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
  for _, line in ipairs(figures.troubles(answers)) do out.line(line) end
  local links = connections.each(answers)
  if #links > 0 then
    out.line ""
    heads, rows = connections.table(links, #answers > 1)
    out.table(heads)(rows)
  end
  if not values.each and #answers > 1 then out.note("%d workers; --each tells them apart", #answers) end
  return 0
end

return {
  name = "status",
  summary = "Tells how the pipelines of a running project stand, over all its workers.",
  details = "Rates are of the last 10 s, handler times (P50, P99) of the last 30 to 60 s; of several workers the\n"
    .. "slowest counts. HANDLED and DEAD count since the supervisor started. A worker that does not answer is\n"
    .. "told from what it last wrote.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = {
    { "each", nil, "each worker for itself" },
    { "json", nil, "one object: pids, generation, version, workers, pipelines, connections; with --each one a worker" },
  },
  examples = { "moonwire status shop", "moonwire status --each --json" },
  run = run,
}
