--- moonwire test --watch: runs the specs in a process of their own, again and again. A change while they run ends that
--- run and begins the next.
local core = require "moonwire.core"
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"
local project = require "moonwire.cli.project.folder"

local TURN_MS = 50

local function argv_of(values)
  local argv = { "test", "--child" }
  if values.output then argv[#argv + 1] = "--output=" .. values.output end
  for _, filter in ipairs(values.filter or {}) do argv[#argv + 1] = "--filter=" .. filter end
  argv[#argv + 1] = "--"
  for _, path in ipairs(values.PATH) do argv[#argv + 1] = path end
  return argv
end

--- What a spec tests stands in its project, not only in its folder. With their links, which may lead elsewhere later.
local function folders_of(values)
  local list, known = {}, {}
  for _, path in ipairs(#values.PATH > 0 and values.PATH or { "." }) do
    local dir = project.given(posix.is_dir(path) and path or path:match "^(.*/)[^/]*$" or ".")
    local at = dir
    while at and at ~= "" do
      if posix.exists(at .. "/moonwire.lua") then dir = at break end
      at = at:match "^(.+)/[^/]*$"
    end
    if not known[dir] then
      known[dir], list[#list + 1] = true, dir
    end
  end
  return list
end

local function begin(argv)
  if out.terminal(1) then out.write "\27[2J\27[3J\27[H" end
  out.flush()
  local child, why = core.child(argv, {})
  if not child then fail.raise(fail.FAILED, "%s", why) end
  return child
end

---@param values table the command line of `test`
---@return integer exit code
return function(values)
  local watches = {}
  for i, dir in ipairs(folders_of(values)) do
    local watch, why = core.watch(dir)
    if not watch then fail.raise(fail.FAILED, "%s", why) end
    watches[i] = watch
  end
  posix.hold_signals()
  local argv, code = argv_of(values), nil
  local child = begin(argv)
  while not posix.signalled() do
    core.step(TURN_MS)
    local changed = false
    for _, watch in ipairs(watches) do changed = watch:changed() or changed end
    if changed then
      if child then child:kill() end
      child = begin(argv)
    elseif child then
      local ended = child:poll()
      if ended then
        child, code = nil, ended
        out.note("%s; waiting for changes", code == 0 and "passed" or "failed")
      end
    end
  end
  if child then child:kill() end
  return code == 0 and 0 or fail.FAILED
end
