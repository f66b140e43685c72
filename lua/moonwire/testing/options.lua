--- The options of testing.start: what it takes, and which project is meant when none is named. Errors are those of
--- whoever calls testing.start, which calls these functions itself.
local nearest = require "moonwire.internal.nearest"

local M = {}

local LEVELS = { debug = 0, info = 1, warn = 2, error = 3, silent = 4 }

--- The least level that is logged, as C counts them.
---@param name string|nil
---@return integer
function M.level(name)
  return LEVELS[name or os.getenv "MOONWIRE_TEST_LOG" or "silent"] or LEVELS.silent
end

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

--- The project that a spec belongs to: the nearest folder above it with a moonwire.lua.
function M.project_above()
  for level = 3, 30 do
    local info = debug.getinfo(level, "S")
    if not info then break end
    local dir = info.source:match "^@(.*)/[^/]*_spec%.lua$"
    while dir do
      if exists(dir .. "/moonwire.lua") then return dir end
      dir = dir:match "^(.+)/[^/]*$"
    end
  end
  if exists "moonwire.lua" then return "." end
  error("testing.start: no moonwire.lua in the folders above the spec; name one: testing.start { dir = … }", 3)
end

local OPTIONS = { dir = "string", env = "table", log = "string", clock = "string", now = "number" }

---@param options moonwire.TestOptions
---@param apps table<moonwire.TestApp, true> those that run
function M.check(options, apps)
  for name, value in pairs(options) do
    local expected = OPTIONS[name]
    if not expected then
      local near = nearest(tostring(name), { "dir", "env", "log", "clock", "now" })
      error(("testing.start: unknown option %q%s"):format(tostring(name),
        near and ("; did you mean %q?"):format(near) or "; it takes dir, env, log, clock and now"), 3)
    elseif type(value) ~= expected then
      error(("testing.start: %s must be a %s, got a %s"):format(name, expected, type(value)), 3)
    end
  end
  if options.log and not LEVELS[options.log] then
    error("testing.start: log must be debug, info, warn, error or silent", 3)
  end
  local clock = options.clock or "virtual"
  if clock ~= "virtual" and clock ~= "real" then error("testing.start: clock must be virtual or real", 3) end
  if clock == "real" and options.now then error("testing.start: now needs the virtual clock", 3) end
  for other in pairs(apps) do
    if other.clock ~= clock then
      error(("testing.start: an app still runs on the %s clock: stop it first"):format(other.clock), 3)
    end
  end
end

return M
