--- Asking all workers at once, and putting their answers beside each other: what commands.lua and reloading.lua share.
local json = require "moonwire.json"

local M = {}

local function decoded(answer)
  if answer.state ~= "answered" then return nil end
  local reply = json.decode(answer.text)
  return type(reply) == "table" and reply or nil
end

local LATE = { late = "no answer within %g s", gone = "it died meanwhile and starts again", absent = "it does not run" }

local function missing(answer, seconds)
  return { ok = false, problems = (LATE[answer.state] or "its answer cannot be read"):format(seconds) }
end

--- Asks, and puts the replies into the list of workers. `otherwise(worker, answer)` makes up for one that is missing.
---@param s table see runtime/supervisor/desk.h
---@param line string
---@param seconds number
---@param which table<integer, boolean>|nil
---@param otherwise (fun(worker: table, answer: table): table|nil)|nil
---@return table[] workers
function M.ask(s, line, seconds, which, otherwise)
  local list = s.round(line, seconds, which)
  local workers = s.workers()
  for k, w in ipairs(workers) do
    local answer = list[k] or { state = "absent" }
    w.heard = answer.state
    w.reply = decoded(answer) or otherwise and otherwise(w, answer) or missing(answer, seconds)
  end
  return workers
end

---@return boolean
function M.refused(w) return w.reply.ok == false end

--- The answer of all: see commands.lua.
---@param workers table[]
---@return table
function M.compose(workers)
  local ok = true
  for _, w in ipairs(workers) do
    ok, w.heard = ok and w.reply.ok ~= false, nil
  end
  return { ok = ok, workers = json.array(workers) }
end

return M
