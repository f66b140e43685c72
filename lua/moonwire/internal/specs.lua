--- Runs busted inside this state, so that specs reach the real core. Behind `moonwire test` and our own suites.
local C = require "moonwire.internal.cdef"

local M = {}

local FAILED = 1 -- the exit code

--- What exists once per state: declarations, the tick, waiting tasks. busted empties package.loaded between files,
--- down to what was there when it began.
local KEEP = {
  "ffi", "bit", "moonwire.core", "moonwire.internal.cdef", "moonwire.internal.wait", "moonwire.internal.runtime",
  "moonwire.internal.api.publish", "moonwire", "moonwire.testing",
}

local PATHS = "/usr/share/lua/5.1/?.lua;/usr/share/lua/5.1/?/init.lua;/usr/local/share/lua/5.1/?.lua;"
  .. "/usr/local/share/lua/5.1/?/init.lua"

local function find_busted()
  if not package.path:find("/usr/share/lua/5.1/?.lua", 1, true) then package.path = package.path .. ";" .. PATHS end
  local ok, compatibility = pcall(require, "busted.compatibility")
  if not ok then
    return nil, "busted is not installed (Debian: apt install lua-busted, "
      .. "elsewhere: luarocks --lua-version 5.1 install busted)"
  end
  return compatibility
end

local function full_name(busted, element)
  local names = {}
  while element and element.descriptor ~= "suite" do
    if element.descriptor ~= "file" and element.name then table.insert(names, 1, element.name) end
    element = busted.context.parent(element)
  end
  return table.concat(names, " ")
end

local MOST_FAILURES, MOST_TEXT = 50, 4000 -- a report is for reading

M.NONE = "no specs there: they are files named …_spec.lua, in the project's folder spec or next to what they test"

local function note(busted, failures, element, message, trace)
  local source = type(trace) == "table" and type(trace.source) == "string" and trace.source:match "^@(.*)"
  local line = source and trace.currentline or nil
  if not source and element.descriptor == "file" then source = element.name end
  local text = tostring(message)
  if text:find "^No test files found" then text = M.NONE end
  if not line and source then -- a file that does not load: its place stands in the text
    line = tonumber((text:match(":(%d+):")))
  end
  local at = element.trace or trace -- a file that does not load has no place, and the TAP output takes one for granted
  if type(at) == "table" then
    at.short_src, at.currentline = at.short_src or source or "?", at.currentline or line or 0
  end
  if #failures >= MOST_FAILURES then return end
  failures[#failures + 1] = { name = full_name(busted, element), file = source, line = line,
    message = text:sub(1, MOST_TEXT) }
end

--- A handler that does not come back from a C call takes this process with it: then the results so far are told, and
--- which test it was. C writes it, because Lua cannot any more. (Our own outputs for programs do it themselves.)
local function prepare_last_words(counts, name)
  local lines = { "" }
  for _, f in ipairs(counts.failures) do
    lines[#lines + 1] = ("%s:%s: %s: %s"):format(f.file or "?", f.line or "?", f.name, f.message)
  end
  lines[#lines + 1] = ("stuck in a C call past its timeout: %s"):format(name)
  lines[#lines + 1] = ("%d passed, %d failed, %d pending; those behind it did not run\n"):format(counts.passed,
    counts.failed + 1, counts.skipped)
  local text = table.concat(lines, "\n")
  io.stdout:flush()
  C.mw_vm_last_words(text, #text, FAILED)
end

local function has_own_words(arguments)
  for _, argument in ipairs(arguments) do
    if argument:find("--output=moonwire.", 1, true) == 1 then return true end
  end
  return false
end

--- Counts what busted reports; an error outside of a test (a file that does not load, a failing setup) is a failure.
local function counting(make, counts, own_words)
  return function(...)
    local busted = make(...)
    busted.subscribe({ "test", "start" }, function(element)
      if not own_words then prepare_last_words(counts, full_name(busted, element)) end
      return nil, true
    end)
    busted.subscribe({ "test", "end" }, function(_, _, status)
      local name = status == "success" and "passed" or status == "pending" and "skipped" or "failed"
      counts[name] = counts[name] + 1
      return nil, true
    end)
    local function outside(element, _, message, trace)
      if element.descriptor ~= "it" then counts.failed = counts.failed + 1 end
      note(busted, counts.failures, element, message, trace)
      return nil, true
    end
    busted.subscribe({ "error" }, outside)
    busted.subscribe({ "failure" }, outside)
    return busted
  end
end

---@param arguments string[] as busted's own command takes them; paths absolute
---@param keep string[]|nil modules of the caller that have to outlive busted's clearing
---@return { passed: integer, failed: integer, skipped: integer, failures: table[] }|nil counts, string|nil error
---  failures: { name, file, line, message } of each, the first ones
function M.run(arguments, keep)
  local compatibility, err = find_busted()
  if not compatibility then return nil, err end
  for _, name in ipairs(KEEP) do require(name) end
  for _, name in ipairs(keep or {}) do require(name) end
  local counts = { passed = 0, failed = 0, skipped = 0, failures = {} }
  local over = {} -- busted would end the process, and with it what has to be put away first
  compatibility.exit = function(code)
    over.code = code
    error(over, 0)
  end
  package.loaded["busted.core"] = counting(require "busted.core", counts, has_own_words(arguments))
  local before = rawget(_G, "arg")
  rawset(_G, "arg", arguments)
  arguments[0] = "busted"
  local ok, why = xpcall(function() require "busted.runner" { standalone = false } end, function(e)
    return e == over and e or debug.traceback(tostring(e), 2)
  end)
  rawset(_G, "arg", before)
  io.stdout:flush()
  if not ok and why ~= over then return nil, why end
  if over.code and over.code ~= 0 and counts.failed == 0 then counts.failed = 1 end -- wrong arguments, say
  return counts
end

return M
