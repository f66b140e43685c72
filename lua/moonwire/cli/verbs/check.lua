--- moonwire check: reads a project as `run` would, connects to nothing, tells what is wrong with it.
local core = require "moonwire.core"
local fail = require "moonwire.cli.fail"
local json = require "moonwire.json"
local out = require "moonwire.cli.out"
local project = require "moonwire.cli.project.folder"

local function parse(line)
  local file, number, text = line:match "^([^:%s]+):(%d+): (.*)$"
  local problem = { text = out.plain(text or line) }
  if file then problem.file, problem.line = out.plain(file), tonumber(number) end
  return problem
end

local function report_json(ok, result)
  local problems = json.array()
  if not ok then
    for line in result:gmatch "[^\n]+" do problems[#problems + 1] = parse(line) end
  end
  out.json { ok = ok and true or false, pipelines = ok and result or nil, problems = problems }
end

local function run(values)
  local app = core.app()
  local ok, result = app:load { dir = project.dir(values.DIR), check = true }
  app:close()
  if values.json then
    report_json(ok, result)
    return ok and 0 or fail.CONFIG
  end
  if not ok then project.complain(result) end
  out.line(("ok: %s"):format(out.count(result, "pipeline")))
  return 0
end

return {
  name = "check",
  summary = "Checks a project's configuration, handlers and schemas. Connects to nothing.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = { { "json", nil, 'one object: { "ok", "pipelines", "problems": [ { "file", "line", "text" } ] }' } },
  examples = { "moonwire check shop" },
  run = run,
}
