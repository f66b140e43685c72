--- The project of the working directory, as the commands see it that work on a broker: its address, its channels.
local core = require "moonwire.core"
local nearest = require "moonwire.internal.nearest"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"

local M = {}

local last -- the last one that was read, and with which address

--- nil when there is none. One that cannot be read in full is no reason not to look at its messages.
---@param url string|nil --broker
---@return table|nil project
function M.project(url)
  if last and last.url == url then return last.project end
  if not posix.exists "moonwire.lua" then return nil end
  local ok, project = core.read(require "moonwire.internal.config.project".read, posix.realpath ".",
    { overrides = { BROKER_URL = url } })
  local problem = ok and project.problems[1] or not ok and tostring(project)
  if problem and not last then
    out.note("note: the project here cannot be read in full, options of its channels may be missing: %s", problem)
  end
  last = { url = url, project = ok and project or nil }
  return last.project
end

--- Its connections, each once.
---@return table[]
function M.connections()
  local project, list, known = M.project(), {}, {}
  for _, c in ipairs(project and project.connections or {}) do
    local link = tostring(c.link)
    if not known[link] then list[#list + 1] = c end
    known[link] = true
  end
  return list
end

--- Names of channels that its pipelines use.
---@param url string|nil --broker
---@param of "from"|"dead"
---@param on nil|fun(link: ffi.cdata*): boolean only those on this broker
---@return string[]
function M.channels(url, of, on)
  local project, list, known = M.project(url), {}, {}
  for _, p in ipairs(project and project.pipelines or {}) do
    local channel = p[of]
    if channel and not known[channel.name] and (not on or on(channel:link_of())) then
      list[#list + 1] = channel.name
      known[channel.name] = true
    end
  end
  return list
end

--- `; did you mean "orders.dead"?`, or nothing: for a channel that has nothing, and that no pipeline here uses.
---@param url string|nil --broker
---@param name string
---@param of "from"|"dead"
---@return string
function M.hint(url, name, of)
  local names = M.channels(url, of)
  for _, known in ipairs(names) do
    if known == name then return "" end
  end
  local near = nearest(name, names, 2) -- it may well be another channel, that is empty
  return near and ("; did you mean %s?"):format(out.plain(near)) or ""
end

return M
