--- `moonwire run`: this process starts workers, which are the same program again, and keeps them running. It opens
--- nothing, reads no project and handles nothing. See runtime/supervisor; what it is asked is answered by commands.lua.
local core = require "moonwire.core"
local door = require "moonwire.cli.process.door"
local fail = require "moonwire.cli.fail"
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

---@param verb table `run`, with its flags
---@param values table its command line
---@return integer exit code
return function(verb, values)
  local dir = project.given(values.DIR)
  local path, close = door.open(project.dir(values.DIR), dir)
  local code, why = core.supervise {
    workers = values.workers, argv = words(verb, values, dir), drain = values.drain, once = values.once,
    watch = values.watch and dir, control = path,
    command = function(s, line) return require "moonwire.cli.process.commands"(s, line) end,
  }
  close()
  if not code then fail.raise(fail.FAILED, why) end
  return code
end
