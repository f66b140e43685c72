--- moonwire test: runs a project's busted specs inside the real core, on memory brokers.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local fail = require "moonwire.cli.fail"
local files = require "moonwire.internal.config.files"
local json = require "moonwire.json"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"
local specs = require "moonwire.internal.specs"

local OUTPUTS = {
  plain = "plainTerminal", tap = "moonwire.testing.output.tap", junit = "moonwire.testing.output.junit",
}

-- ---- what is tested ----

--- A project's folder stands for all specs in it: in spec/, and next to the handlers.
local function place(path)
  local full = posix.realpath(path)
  if not full then fail.raise(fail.FAILED, "%s: no such file or folder", path) end
  return full
end

local function project_of(path)
  local dir = path
  while dir and dir ~= "" do
    if posix.exists(dir .. "/moonwire.lua") then return dir end
    dir = dir:match "^(.+)/[^/]*$"
  end
end

--- Specs may require the project's modules: `require "handlers.orders"`.
local function add_path(dir)
  package.path = ("%s/?.lua;%s/lua/?.lua;%s"):format(dir, dir, package.path)
end

--- With --files these come from what was seen, too; after the library's own, before the file system.
local function add_loader(dir, seen)
  table.insert(package.loaders, 3, function(name)
    local path = name:gsub("%.", "/")
    for _, relative in ipairs { path .. ".lua", "lua/" .. path .. ".lua" } do
      if seen[relative] then return assert(loadstring(seen[relative], ("@%s/%s"):format(dir, relative))) end
    end
  end)
end

local function take_files(path, dir)
  local file, why = io.open(path, "rb")
  if not file then fail.usage("--files: %s", why) end
  local packed = file:read "*a"
  file:close()
  files.give(dir, packed)
  add_loader(dir, files.unpack(packed))
end

local function write_report(path, counts)
  local file = assert(io.open(path, "wb"))
  counts.failures = json.array(counts.failures)
  file:write((json.encode(out.printable(counts))))
  file:close()
end

local function paths_of(values)
  local paths, known = {}, {}
  for i, path in ipairs(#values.PATH > 0 and values.PATH or { "." }) do
    paths[i] = place(path)
    local dir = project_of(paths[i])
    if dir and not known[dir] then
      known[dir] = true
      add_path(dir)
      if values.files then take_files(values.files, dir) end
    end
  end
  return paths
end

-- As in runtime/base/log.h; testing.start sets it too, but a spec may call a handler's functions without an app.
local LEVELS = { debug = 0, info = 1, warn = 2, error = 3, silent = 4 }

local function test(values)
  C.mw_log_setup(0, LEVELS[os.getenv "MOONWIRE_TEST_LOG" or "silent"] or LEVELS.silent)
  local arguments = { "--pattern=_spec%.lua$", "--output=" .. OUTPUTS[values.output or "plain"] }
  for _, filter in ipairs(values.filter or {}) do arguments[#arguments + 1] = "--filter=" .. filter end
  for _, path in ipairs(paths_of(values)) do arguments[#arguments + 1] = path end
  local counts, err = specs.run(arguments)
  if not counts then fail.raise(err:match "^busted is not" and fail.UNAVAILABLE or fail.INTERNAL, "%s", err) end
  if values.report then write_report(values.report, counts) end
  local first = counts.failures[1]
  if counts.passed + counts.failed + counts.skipped == 0 or first and first.message == specs.NONE then
    fail.raise(fail.FAILED, "%s", values.filter and "no spec has such a name" or specs.NONE)
  end
  return counts.failed == 0 and 0 or fail.FAILED
end

local function run(values)
  if values.report then
    core.be_child(true)
    io.stdout:setvbuf "line" -- what was written before it was killed tells why
  end
  if values.child then core.be_child(false) end
  if not values.watch then return test(values) end
  for _, path in ipairs(values.PATH) do place(path) end
  return require "moonwire.cli.process.retest"(values)
end

return {
  name = "test",
  summary = "Runs a project's specs (busted) inside the real core, on memory brokers.",
  arguments = {
    { "PATH", "a project, a folder or a spec (default: the current project)", optional = true, many = true },
  },
  flags = {
    { "output", "FORMAT", "plain (default), tap or junit", short = "o", of = { "plain", "tap", "junit" } },
    { "filter", "PATTERN", "only tests whose name matches this Lua pattern", many = true },
    { "watch", nil, "run them again whenever a Lua or JSON file or .env changes, until INT", short = "w" },
    { "files", "FILE", "the project as a reload has read it", hidden = true },
    { "report", "FILE", "where to write the results, as JSON", hidden = true },
    { "child", nil, "end with the process that started this one", hidden = true },
  },
  examples = { "moonwire test", "moonwire test shop --filter retries", "moonwire test shop -o junit > report.xml" },
  run = run,
}
