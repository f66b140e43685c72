--- moonwire test: runs a project's busted specs inside the real core, on memory brokers.
local fail = require "moonwire.cli.fail"
local ffi = require "ffi"
local specs = require "moonwire.internal.specs"

local OUTPUTS = { plain = "plainTerminal", tap = "TAP", junit = "junit" }

ffi.cdef [[char *mw_test_realpath(const char *path, char *out) __asm__("realpath");]]

local function absolute(path)
  local buf = ffi.new "char[4097]" -- PATH_MAX
  if ffi.C.mw_test_realpath(path, buf) == nil then return nil end
  return ffi.string(buf)
end

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

--- A project's folder stands for the specs in it.
local function place(path)
  local full = absolute(path)
  if not full then fail.raise(fail.FAILED, "%s: no such file or folder", path) end
  if full:match "%.lua$" then return full end
  if exists(full .. "/moonwire.lua") then
    local spec = absolute(full .. "/spec")
    if not spec then fail.raise(fail.FAILED, "%s: has no folder spec with specs in it", path) end
    return spec, full
  end
  return full
end

--- Specs may require the project's modules: `require "handlers.orders"`.
local function add_path(dir)
  while dir do
    if exists(dir .. "/moonwire.lua") then
      package.path = ("%s/?.lua;%s/lua/?.lua;%s"):format(dir, dir, package.path)
      return
    end
    dir = dir:match "^(.+)/[^/]*$"
  end
end

local function run(values)
  local arguments = { "--pattern=_spec", "--output=" .. OUTPUTS[values.output or "plain"] }
  for _, filter in ipairs(values.filter or {}) do arguments[#arguments + 1] = "--filter=" .. filter end
  local paths = values.PATH or {}
  if type(paths) == "string" then paths = { paths } end
  if #paths == 0 then paths = { "." } end
  for _, path in ipairs(paths) do
    local full, dir = place(path)
    add_path(dir or full)
    arguments[#arguments + 1] = full
  end
  local counts, err = specs.run(arguments)
  if not counts then fail.raise(err:match "^busted is not" and fail.UNAVAILABLE or fail.INTERNAL, "%s", err) end
  if counts.passed + counts.failed + counts.skipped == 0 then
    fail.raise(fail.FAILED, "no specs there: they are files named …_spec.lua")
  end
  return counts.failed == 0 and 0 or fail.FAILED
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
  },
  examples = { "moonwire test", "moonwire test shop --filter retries", "moonwire test shop -o junit > report.xml" },
  run = run,
}
