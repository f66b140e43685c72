--- What the specs of a reload say: from the end of their process and its report to the problems that are told.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local json = require "moonwire.json"

local M = {}

--- As elsewhere, files are told as seen from the project; and their place once.
local function shorten(dir, failure)
  local prefix = dir .. "/"
  local at = failure.file and failure.line and ("%s:%d: "):format(failure.file, failure.line)
  if at and failure.message:sub(1, #at) == at then failure.message = failure.message:sub(#at + 1) end
  if failure.file and failure.file:sub(1, #prefix) == prefix then failure.file = failure.file:sub(#prefix + 1) end
end

local function place(failure)
  return failure.file and ("%s:%d: "):format(failure.file, failure.line or 0) or ""
end

---@param code integer how the process ended
---@param report string as `moonwire test --report` writes it; empty when it did not come so far
---@param said string the end of what it wrote
---@param dir string the project's folder
---@return integer|nil passed how many did; nil: not all
---@return string|nil problems, table[]|nil failures
function M.outcome(code, report, said, dir)
  local counts = json.decode(report)
  counts = type(counts) == "table" and counts or {}
  if code == 0 and (counts.passed or 0) > 0 and counts.failed == 0 then return counts.passed end
  local problems, failures = {}, counts.failures or {}
  for i, failure in ipairs(failures) do
    shorten(dir, failure)
    local first = failure.message:match "^[^\n]*"
    problems[i] = failure.name == "" and place(failure) .. first
      or ("%sspec failed: %s: %s"):format(place(failure), failure.name, first)
  end
  if #problems == 0 then
    local early = code == 0 and ", before they were over" or ""
    problems[1] = ("the specs ended with %d%s%s"):format(code, early, said ~= "" and ":\n" .. said or "")
  end
  return nil, table.concat(problems, "\n"), json.array(failures)
end

--- The process that tests: on the very files that were read.
---@return userdata|nil child, string|nil error
function M.start(dir, sources)
  return core.child({ "test", "--files=/proc/self/fd/3", "--report=/proc/self/fd/4", "--", dir },
    { capture = true, files = sources })
end

M.OUTPUT = 4000 -- bytes of what the specs wrote, when that is all there is to tell

--- All of it at once, where nothing else has to go on.
---@return string|nil problems
function M.run(dir, sources, limit)
  local child, why = M.start(dir, sources)
  if not child then return why end
  local ends, code = C.mw_real_seconds() + limit, child:poll()
  while not code and C.mw_real_seconds() < ends do
    core.step(20)
    code = child:poll()
  end
  local said = child:output(M.OUTPUT):gsub("%s+$", "")
  if not code then
    child:kill()
    return ("the specs were not over after %g s%s"):format(limit, said ~= "" and "; they wrote:\n" .. said or "")
  end
  local passed, problems = M.outcome(code, child:report(), said, dir)
  return not passed and problems or nil
end

return M
