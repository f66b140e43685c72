--- `moonwire run` with workers: this process starts N of itself and keeps them running. It reads the project, but opens
--- nothing and handles nothing. See runtime/supervisor.
local core = require "moonwire.core"
local fail = require "moonwire.cli.fail"
local log = require "moonwire.log"
local project = require "moonwire.cli.project.folder"

local OURS = { workers = true, watch = true, slot = true } -- flags that a worker does not get

--- The command line of a worker: the flags as they were given here. The folder comes last, absolute.
local function words(verb, values, dir)
  local list = { "run" }
  for _, flag in ipairs(verb.flags) do
    local name = flag[1]
    local value = values[name]
    if value ~= nil and not OURS[name] then
      local text = type(value) == "number" and ("%.15f"):format(value) or value
      list[#list + 1] = flag[2] and ("--%s=%s"):format(name, text) or "--" .. name
    end
  end
  list[#list + 1] = "--"
  list[#list + 1] = dir
  return list
end

--- The project's problems are told one by one, as a worker would tell them.
local function checked(values, settings, read)
  return function()
    local fresh, problems = read()
    if not fresh then
      for line in problems:gmatch "[^\n]+" do log.error("reload refused", { error = line }) end
      return nil
    end
    if not values.workers and fresh.workers ~= settings.workers then
      log.warn("the number of workers changes with the next start", { now = settings.workers, then_ = fresh.workers })
    end
    return values.drain or fresh.drain, fresh.crash_attempts
  end
end

---@param verb table `run`, with its flags
---@param values table its command line
---@param settings table the project's
---@param read fun(): table|nil, string|nil reads the project anew: its settings, or its problems
---@return integer exit code
return function(verb, values, settings, read)
  local dir = project.dir(values.DIR)
  local count = values.workers or settings.workers
  log.info("supervising", { workers = count, version = core.version })
  local code, why = core.supervise {
    workers = count, argv = words(verb, values, dir), drain = values.drain or settings.drain,
    crash_attempts = settings.crash_attempts, once = values.once, watch = values.watch and dir,
    check = checked(values, settings, read),
  }
  if not code then fail.raise(fail.FAILED, why) end
  return code
end
