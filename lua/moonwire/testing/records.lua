--- What a project under test logged, and what the runtime logged about it: every line, kept by C whatever its level.
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"
local json = require "moonwire.json"
local wait = require "moonwire.internal.wait"

local M = {}

local RETRY = "failed, will retry" -- runtime/pipeline/verdict.c
local len = ffi.new "size_t[1]"

function M.begin()
  C.mw_vm_capture(wait.vm, true)
  C.mw_log_capture_clear()
end

function M.finish() C.mw_vm_capture(wait.vm, false) end

--- Gives every app what was logged since the last call: a line does not tell whose it is.
---@param apps table<{ lines: table[], started: number }, true>
function M.take(apps)
  local text = C.mw_log_captured(len)
  if len[0] == 0 then return end
  text = ffi.string(text, len[0])
  C.mw_log_capture_clear()
  for line in text:gmatch "[^\n]+" do
    local raw = assert(json.decode(line))
    for app in pairs(apps) do
      app.lines[#app.lines + 1] = {
        at = math.floor(raw.at - app.started * 1000 + 0.5) / 1000, level = raw.level, text = raw.msg,
        fields = raw.fields, project = raw.project,
      }
    end
  end
end

--- The retries among them.
---@return { id: string, attempt: integer, at: number, delay: number, error: string, class: string }[]
function M.retries(lines, pipeline)
  local list = {}
  for _, line in ipairs(lines) do
    local f = line.fields
    if not line.project and line.text == RETRY and f.pipeline == pipeline then
      list[#list + 1] = {
        id = f.id, attempt = f.attempt, at = line.at, delay = f.next_in, error = f.error, class = f.class,
      }
    end
  end
  return list
end

return M
