--- moonwire status: what the running processes of a project do.
local control = require "moonwire.cli.control"
local out = require "moonwire.cli.out"

local COLUMNS = { "pid", "generation", "pipeline", "in flight", "running", "received", "handled", "retried", "dead",
  "deduped", "fenced" }

local function rows_of(answers)
  local rows = {}
  for _, answer in ipairs(answers) do
    for _, p in ipairs(answer.reply.pipelines) do
      rows[#rows + 1] = { answer.pid, answer.reply.generation, p.name, p.in_flight, p.running, p.received, p.handled,
        p.retried, p.dead, p.deduped, p.fenced }
    end
  end
  return rows
end

local function print_table(rows)
  local widths = {}
  for i, name in ipairs(COLUMNS) do
    widths[i] = #name
    for _, row in ipairs(rows) do widths[i] = math.max(widths[i], #tostring(row[i])) end
  end
  local function line(cells)
    local parts = {}
    for i, cell in ipairs(cells) do
      parts[i] = tostring(cell) .. (" "):rep(i < #cells and widths[i] - #tostring(cell) or 0)
    end
    out.line(table.concat(parts, "  "))
  end
  local head = {}
  for i, name in ipairs(COLUMNS) do head[i] = name:upper() end
  line(head)
  for _, row in ipairs(rows) do line(row) end
end

local function run(values)
  local answers = control.ask(values.DIR, "status", 10)
  if not values.json then
    print_table(rows_of(answers))
    return 0
  end
  for _, answer in ipairs(answers) do
    answer.reply.pid, answer.reply.ok = answer.pid, nil
    out.json(answer.reply)
  end
  return 0
end

return {
  name = "status",
  summary = "Tells what every process that runs the project has done, and what it is at.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = { { "json", nil, "one object a process: pid, worker, generation, version, pipelines" } },
  examples = { "moonwire status shop" },
  run = run,
}
