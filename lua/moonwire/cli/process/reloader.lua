--- A reload inside of a running process, from the request to its end: loads, tests (the gate), tries (the canary),
--- switches. Commands, HUP and changed files all come here. Nothing waits: the loop calls `beat` while something is
--- under way. What can be asked for, and what is answered: reload_request.lua.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local json = require "moonwire.json"
local log = require "moonwire.log"
local request_of = require "moonwire.cli.process.reload_request"
local trial = require "moonwire.cli.process.trial"

local GATE_BEAT, CANARY_BEAT = 25, 200 -- ms
local FOR = 30 -- seconds of a canary
local OUTPUT = 4000 -- bytes of what the specs wrote, when that is all there is to tell

---@class moonwire.Reloader
local Reloader = {}
Reloader.__index = Reloader

local M = {}

--- The time, not as old as the loop's turn.
local now = C.mw_real_seconds

---@param app userdata
---@param dir string
---@param gate string|nil what `run --gate` says
---@return moonwire.Reloader
function M.new(app, dir, gate)
  local none = { ok = true, reload = 0, state = "none" }
  return setmetatable({ app = app, dir = dir, gate = gate, last = none }, Reloader)
end

-- ---- how it ends ----

local function finish(self, outcome)
  outcome.reload = self.last.reload
  self.last = outcome
  self.under_way, self.specs = nil, nil
  self.app:announce(false)
  return outcome
end

local function refuse(self, by, problems, more)
  self.app:discard()
  problems = problems:gsub("^!", "")
  for line in problems:gmatch "[^\n]+" do log.error("reload refused", { error = line, by = by }) end
  local outcome = { ok = false, state = "refused", by = by, problems = problems }
  for name, value in pairs(more or {}) do outcome[name] = value end
  return finish(self, outcome)
end

local function done(self, changes, figures)
  log.info("reloaded", changes)
  return finish(self, { ok = true, state = "done", generation = changes.generation, kept = changes.kept,
    added = changes.added, removed = changes.removed, canary = figures })
end

-- ---- the canary ----

--- Its figures now; nil when none runs.
---@return { generation: integer, share: number, left: number, pipelines: table[] }|nil
function Reloader:canary()
  local figures = self.under_way == "canary" and self.app:trial()
  if not figures then return nil end
  figures.share, figures.left = self.request.canary, math.max(0, self.ends - now())
  figures.pipelines = json.array(figures.pipelines)
  return figures
end

local function rolled_back(self, by, why, figures)
  log.error("canary rolled back", { generation = figures and figures.generation, by = by, reason = why })
  self.app:rollback()
  return finish(self, { ok = false, state = "rolled_back", by = by, problems = why, canary = figures })
end

local function promoted(self, by, figures)
  log.info("canary promoted", { generation = figures.generation, by = by })
  return done(self, self.app:promote(), figures)
end

local function begin_canary(self)
  local generation, why = self.app:try(self.request.canary, self.sources)
  if not generation then return refuse(self, "canary", why) end
  local seconds = self.request.canary_for or FOR
  self.under_way, self.ends = "canary", now() + seconds
  log.info("canary", { generation = generation, share = self.request.canary, seconds = seconds })
  self.app:announce(false)
  self.app:beat(CANARY_BEAT)
  self.last = { ok = true, reload = self.last.reload, state = "canary", generation = generation }
  return self.last
end

local function look_at_canary(self)
  local figures = self:canary()
  if not figures then return rolled_back(self, "drain", "the process is draining") end
  local verdict, why = trial.judge(figures.pipelines, figures.left == 0, self.request.canary_least)
  if verdict == "rollback" then return rolled_back(self, "canary", why, figures) end
  if verdict == "promote" then return promoted(self, "canary", figures) end
  self.app:beat(math.min(CANARY_BEAT, math.max(1, figures.left * 1000)))
end

local function end_by_hand(self, how)
  local figures = self:canary()
  if not figures then
    return { ok = false, reload = self.last.reload, state = self.last.state, by = "command",
      problems = ("there is no canary to %s"):format(how == "promote" and "promote" or "roll back") }
  end
  if how == "promote" then return promoted(self, "command", figures) end
  return rolled_back(self, "command", "rolled back by command", figures)
end

-- ---- the gate ----

local function switch(self)
  if self.request.canary then return begin_canary(self) end
  local changes, why = self.app:switch()
  if not changes then return refuse(self, "load", why) end
  return done(self, changes)
end

local function run_specs(self, limit)
  local why
  self.specs, why = core.child({ "test", "--files=/proc/self/fd/3", "--report=/proc/self/fd/4", "--", self.dir },
    { capture = true, files = self.sources })
  if not self.specs then return refuse(self, "gate", why) end
  log.info("testing the new code", { seconds = limit })
  self.under_way, self.ends, self.limit = "testing", now() + limit, limit
  self.app:beat(GATE_BEAT)
  self.last = { ok = true, reload = self.last.reload, state = "testing" }
  return self.last
end

--- As elsewhere, files are told as seen from the project; and their place once.
local function shorten(self, failure)
  local prefix = self.dir .. "/"
  local at = failure.file and failure.line and ("%s:%d: "):format(failure.file, failure.line)
  if at and failure.message:sub(1, #at) == at then failure.message = failure.message:sub(#at + 1) end
  if failure.file and failure.file:sub(1, #prefix) == prefix then failure.file = failure.file:sub(#prefix + 1) end
end

local function place(failure)
  return failure.file and ("%s:%d: "):format(failure.file, failure.line or 0) or ""
end

local function tested(self, code)
  local specs = self.specs
  local report = json.decode(specs:report())
  report = type(report) == "table" and report or {}
  if code == 0 and (report.passed or 0) > 0 and report.failed == 0 then
    log.info("the specs passed", { passed = report.passed })
    return switch(self)
  end
  local problems, failures = {}, report.failures or {}
  for i, failure in ipairs(failures) do
    shorten(self, failure)
    local first = failure.message:match "^[^\n]*"
    problems[i] = failure.name == "" and place(failure) .. first
      or ("%sspec failed: %s: %s"):format(place(failure), failure.name, first)
  end
  if #problems == 0 then
    local said = specs:output(OUTPUT):gsub("%s+$", "")
    problems[1] = ("the specs ended with %d%s"):format(code, said ~= "" and ":\n" .. said or "")
  end
  return refuse(self, "gate", table.concat(problems, "\n"), { failures = json.array(failures) })
end

local function look_at_specs(self)
  if self.app:draining() then
    self.specs:kill()
    return refuse(self, "gate", "the process is draining")
  end
  local code = self.specs:poll()
  if code then return tested(self, code) end
  if now() < self.ends then
    self.app:beat(GATE_BEAT)
    return
  end
  self.specs:kill()
  local said = self.specs:output(OUTPUT):gsub("%s+$", "")
  local wrote = said ~= "" and "; they wrote:\n" .. said or ""
  return refuse(self, "gate", ("the specs were not over after %g s%s"):format(self.limit, wrote))
end

-- ---- from outside ----

local function busy_with_canary(self)
  local figures = self:canary()
  return { ok = false, reload = self.last.reload, state = "busy", by = "canary", generation = figures.generation,
    problems = ("a canary runs, generation %d, for another %.0f s: `moonwire reload --promote` or `--rollback` ends it")
      :format(figures.generation, figures.left) }
end

--- Begins a reload.
---@param request table see reload_request.lua
---@param by string for the log: command | HUP | files
---@return table outcome as far as it is known
function Reloader:start(request, by)
  if request.finish then return end_by_hand(self, request.finish) end
  if self:canary() then
    local refused = busy_with_canary(self)
    log.error("reload refused", { error = refused.problems, by = "canary" })
    return refused
  end
  if self.specs then -- the files have changed since: what is tested is not wanted any more
    self.specs:kill()
    log.info("reload superseded", { by = by })
  end
  self.specs, self.under_way, self.request = nil, nil, request
  self.last = { ok = true, reload = self.last.reload + 1, state = "testing" }
  self.app:announce(true)
  local ok, settings = self.app:prepare()
  if not ok then return refuse(self, "load", settings) end
  self.sources = settings.sources
  local gate = request.gate or self.gate or settings.gate
  if gate == "spec" then return run_specs(self, request.gate_limit or settings.gate_limit) end
  return switch(self)
end

--- For the control socket: the words of the command.
function Reloader:command(words)
  local request, problems = request_of.parse(words)
  if not request then return { ok = false, reload = self.last.reload, state = "refused", by = "command",
    problems = problems } end
  return self:start(request, "command")
end

--- How the last reload stands.
function Reloader:outcome()
  if self.under_way == "canary" then self.last.canary = self:canary() end
  return self.last
end

--- Called by the loop, once for each app:beat.
function Reloader:beat()
  if self.under_way == "testing" then look_at_specs(self) end
  if self.under_way == "canary" then look_at_canary(self) end
end

--- Before the process ends.
function Reloader:stop()
  if self.specs then self.specs:kill() end
end

return M
