-- run.lua - runs our own suites with busted inside the binary:
--   build/moonwire lua spec/run.lua unit|functional|contract|faults|examples|all [busted arguments]
-- Appends "RESULT suite passed failed skipped" to the file MW_RESULTS, and "AGAIN suite name", with tabs, for each spec
-- that failed. MOONWIRE_BIN is the binary under test; the running one when it is not set.
local ffi = require "ffi"

ffi.cdef [[
char *mwt_run_realpath(const char *path, char *out) __asm__("realpath");
long mwt_run_readlink(const char *path, char *out, size_t n) __asm__("readlink");
int mwt_run_chdir(const char *path) __asm__("chdir");
int mwt_run_setenv(const char *name, const char *value, int over) __asm__("setenv");
]]

local SUITES = { "unit", "functional", "contract", "faults", "examples" }
local USAGE = "usage: moonwire lua spec/run.lua unit|functional|contract|faults|examples|all [busted arguments]\n"

local function real(path)
  local buf = ffi.new "char[4097]"
  if ffi.C.mwt_run_realpath(path, buf) == nil then return nil end
  return ffi.string(buf)
end

local function running_binary()
  local buf = ffi.new "char[4097]"
  local n = tonumber(ffi.C.mwt_run_readlink("/proc/self/exe", buf, 4096))
  return ffi.string(buf, n)
end

local root = assert(real(arg[0])):match "^(.*)/spec/run%.lua$"
local binary = real(os.getenv "MOONWIRE_BIN" or running_binary())
if not root or not binary then
  io.stderr:write("run.lua: no such binary: ", tostring(os.getenv "MOONWIRE_BIN"), "\n")
  return 64
end
ffi.C.mwt_run_setenv("MOONWIRE_BIN", binary, 1)
ffi.C.mwt_run_setenv("MOONWIRE_ROOT", root, 1)
ffi.C.mwt_run_chdir(root)
package.path = root .. "/?.lua;" .. package.path

local process = require "spec.support.process"
local specs = require "moonwire.internal.specs"

-- Modules of ours that declare types or start something once.
local KEEP = { "spec.support.wait", "spec.support.process", "spec.support.broker", "spec.support.harness",
               "spec.support.servers.redis", "spec.support.servers.rabbitmq", "spec.support.servers.kafka",
               "spec.support.servers.kafka_client", "spec.contract.kafka" }

local function report(suite, counts)
  local path = os.getenv "MW_RESULTS"
  if not path or path == "" then return end
  local file = assert(io.open(path, "a"))
  file:write(("RESULT %s %d %d %d\n"):format(suite, counts.passed, counts.failed, counts.skipped))
  local seen = { [""] = true }
  for _, failure in ipairs(counts.failures or {}) do
    if not seen[failure.name] then file:write("AGAIN\t", suite, "\t", failure.name, "\n") end
    seen[failure.name] = true
  end
  file:close()
end

local function any_spec(dir)
  local found = process.run { "find", dir, "-name", "*_spec.lua", "-type", "f" }
  return found.code == 0 and found.stdout ~= ""
end

local function busted(suite, extra)
  local dir = root .. "/spec/" .. suite
  if not any_spec(dir) then return { passed = 0, failed = 0, skipped = 0 } end
  local arguments, pattern = {}, "--pattern=_spec"
  local output = "--output=" .. (os.getenv "MW_OUTPUT" or "spec.support.output")
  for _, argument in ipairs(extra) do
    arguments[#arguments + 1] = argument
    if argument:find "^%-%-pattern" or argument == "-p" then pattern = nil end
    if argument:find "^%-%-output" or argument == "-o" then output = nil end
  end
  arguments[#arguments + 1] = pattern
  arguments[#arguments + 1] = output
  arguments[#arguments + 1] = dir
  local counts, err = specs.run(arguments, KEEP)
  if not counts then
    io.stderr:write(err, "\n")
    counts = { passed = 0, failed = 1, skipped = 0 }
  end
  return counts
end

-- Each example is a user's project: its specs run as a user runs them.
local function examples(extra)
  local counts = { passed = 0, failed = 0, skipped = 0 }
  local found = process.run { "find", root .. "/examples", "-mindepth", "2", "-maxdepth", "2", "-name", "spec" }
  local dirs = {}
  for dir in found.stdout:gmatch "([^\n]+)/spec\n" do dirs[#dirs + 1] = dir end
  table.sort(dirs)
  for _, dir in ipairs(dirs) do
    io.write("-- ", dir:sub(#root + 2), "\n")
    local child = process.run { { binary, "test", dir, unpack(extra) }, timeout = 120 }
    io.write(child.stdout, child.stderr)
    local passed = tonumber(child.stdout:match "(%d+) success")
    local failed = tonumber(child.stdout:match "(%d+) failure") or 0
    local errors = tonumber(child.stdout:match "(%d+) error") or 0
    if child.code ~= 0 and failed + errors == 0 then errors = 1 end
    counts.passed = counts.passed + (passed or 0)
    counts.failed = counts.failed + failed + errors
    counts.skipped = counts.skipped + (tonumber(child.stdout:match "(%d+) pending") or 0)
  end
  return counts
end

local function run(suite, extra)
  local counts
  if suite == "examples" then counts = examples(extra) else counts = busted(suite, extra) end
  report(suite, counts)
  return counts.failed == 0
end

-- busted can run once in a state: several suites are several processes.
local function all(extra)
  local good = true
  for _, suite in ipairs(SUITES) do
    io.write("\n== ", suite, "\n")
    local argv = { running_binary(), "lua", root .. "/spec/run.lua", suite, unpack(extra) }
    local child = process.run { argv, timeout = 900 }
    io.write(child.stdout, child.stderr)
    good = good and child.code == 0
  end
  return good
end

local known = { all = true }
for _, suite in ipairs(SUITES) do known[suite] = true end
local suite, extra = arg[1], { select(2, unpack(arg)) }
if not known[suite] then
  io.stderr:write(USAGE)
  return 64
end
local good
if suite == "all" then good = all(extra) else good = run(suite, extra) end
process.cleanup()
return good and 0 or 1
