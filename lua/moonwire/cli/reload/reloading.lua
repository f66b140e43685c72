--- Leads a reload from the request to its end: all workers prepare it, one of them tests it (the gate), all try it (the
--- canary), and then all of them take it, or none. A coroutine; `s` is what it can do: see runtime/supervisor/desk.h,
--- and lone.lua for a process without a supervisor. What can be asked for: reload_request.lua. What a worker does:
--- answers.lua.
local C = require "moonwire.internal.cdef"
local json = require "moonwire.json"
local line_of = require "moonwire.cli.process.line"
local log = require "moonwire.log"
local request_of = require "moonwire.cli.reload.request"
local rounds = require "moonwire.cli.process.rounds"
local trial = require "moonwire.cli.reload.trial"

local M = {}

local ANSWER, PREPARE, COMMIT = 2, 30, 10 -- seconds that a worker may take
local GATE_LOOK, CANARY_LOOK = 0.03, 0.2
local FOR = 30 -- seconds of a canary
local GATE = 60 -- and of specs, when nobody could read how long they may take
local IN_VAIN = 2 -- starts of every worker, before the code that they run is taken to be at fault
local DRAINING = "it is draining: nothing is loaded any more"
local NOT_STARTED = "no worker serves, and none starts with the new code either: the log tells why"

local now = C.mw_real_seconds
local ask, refused = rounds.ask, rounds.refused

local going = false -- one at a time
local stage = {} -- of the one that goes: testing | canary, and what others want of it
local last = { state = "none" } -- how the last one ended

--- For status: how the reload that goes stands, or how the last one ended.
---@return { state: string, by: string|nil, problems: string|nil }
function M.state()
  if stage.state then return { state = stage.state } end
  return last
end

-- ---- how it ends ----

local function answer_all(s, reply)
  local workers = s.workers()
  for _, w in ipairs(workers) do
    w.reply = {}
    for name, value in pairs(reply) do w.reply[name] = value end
  end
  return workers
end

local function refuse_all(s, state, by, problems)
  log.error("reload refused", { error = problems, by = by })
  return answer_all(s, { ok = false, state = state, by = by, problems = problems, generation = s.generation() })
end

-- Each reason once, line by line.
local function log_refusal(workers, which, by)
  local told = {}
  for k, w in ipairs(workers) do
    for problem in (which[k] and refused(w) and w.reply.problems or ""):gmatch "[^\n]+" do
      if not told[problem] then log.error("reload refused", { error = problem, by = by, worker = w.worker }) end
      told[problem] = true
    end
  end
end

local function first_problem(workers)
  for _, w in ipairs(workers) do
    if refused(w) and not w.reply.unchanged then return w.reply end
  end
end

--- Nobody changes: those that had nothing against it say so.
local function keep_old(s, workers, asked, generation, by)
  s.round("abandon", ANSWER, asked)
  s.generation(generation)
  log_refusal(workers, asked, by)
  for k, w in ipairs(workers) do
    if asked[k] and refused(w) then
      w.reply.state, w.reply.by = w.reply.state or "refused", w.reply.by or by
    else
      w.reply = { ok = false, unchanged = true, state = "refused", by = by, generation = generation,
        problems = "nothing changed: another worker refused" }
    end
  end
  local why = first_problem(workers) or {}
  last = { state = "refused", by = by, problems = why.problems, failures = why.failures }
  return workers
end

--- Those that did not take part run the old code, or are about to: they start with the new one, now.
local function start_the_rest(s, workers, took_part)
  for k, w in ipairs(workers) do
    if not took_part[k] then
      if w.state == "starting" or w.state == "up" then s.restart(w.worker) end
      w.reply = { ok = true, state = "done", restarted = true, generation = s.generation() }
    end
  end
  s.hurry()
end

--- word: commit, or promote at the end of a canary. The first that took it decides: its code is the one that is kept,
--- and those that could not are started with it. When none could, nothing has changed.
local function commit(s, word, asked, generation)
  local took_part, kept = {}, nil
  local workers = ask(s, word, COMMIT, asked)
  for k, w in ipairs(workers) do
    local same = asked[k] == (w.pid or true) -- else it has started again, and knows nothing of a reload
    took_part[k] = same and (w.heard == "answered" or w.heard == "late")
    if took_part[k] and not refused(w) then
      kept, w.reply.state = kept or k, "done"
    end
  end
  if not kept then return keep_old(s, workers, asked, generation, word == "commit" and "start" or "drain") end
  s.keep(kept)
  for k, w in ipairs(workers) do
    if took_part[k] and refused(w) then
      w.reply.state = "refused"
      if w.heard == "late" then
        w.reply.problems = ("no answer within %g s: it changes when its handler ends"):format(COMMIT)
      else
        w.reply.problems = w.reply.problems .. "\nthis worker is started anew, with the new code"
        w.reply.restarted = true
        s.restart(w.worker)
      end
    end
  end
  start_the_rest(s, workers, took_part)
  last = { state = "done" }
  return workers
end

-- ---- reading ----

--- The first one alone: what hangs or kills while it is read costs one worker, not all. One that dies later has not
--- refused: it starts again, with the new code.
---@return table[] workers, table<integer, integer|true> asked their pids, boolean failed, integer first
local function prepare(s, serving)
  local first = table.remove(serving, 1)
  local asked, rest, failed = { [first] = true }, {}, false
  local workers = ask(s, "prepare", PREPARE, asked)
  asked[first] = workers[first].pid or true
  if refused(workers[first]) then return workers, asked, true, first end
  local reply = workers[first].reply
  for _, k in ipairs(serving) do rest[k] = true end
  if next(rest) then workers = ask(s, "prepare", PREPARE, rest) end
  workers[first].reply = reply
  for k in pairs(rest) do
    local other = workers[k]
    if not refused(other) and other.reply.code ~= reply.code then
      other.reply = { ok = false, problems = "the files changed while they were read: reload again" }
    end
    if other.heard ~= "gone" and other.heard ~= "absent" then
      asked[k], failed = other.pid or true, failed or refused(other)
    end
  end
  return workers, asked, failed, first
end

-- ---- the gate ----

local function test_reply(s, first, limit)
  local only = { [first] = true }
  local worker = ask(s, "test", ANSWER, only)[first]
  if refused(worker) then return worker.reply end
  log.info("testing the new code", { seconds = limit, worker = worker.worker })
  local deadline = now() + limit
  while true do
    s.sleep(GATE_LOOK)
    if stage.superseded then
      return { ok = false, state = "superseded", problems = "another reload came between: what it tells counts" }
    end
    local late = now() > deadline
    worker = ask(s, line_of("tested", late and ("%g"):format(limit) or nil), ANSWER, only)[first]
    if worker.reply.over then return worker.reply end
    if worker.heard ~= "answered" and worker.heard ~= "late" then
      return { ok = false, problems = "the worker that ran the specs died meanwhile" }
    end
  end
end

local function passes_gate(s, workers, asked, first, request)
  local prepared = workers[first].reply
  if (request.gate or prepared.gate) ~= "spec" then return true end
  stage = { state = "testing" }
  local reply = test_reply(s, first, request.gate_limit or prepared.gate_limit)
  stage = {}
  if reply.ok then
    log.info("the specs passed", { passed = reply.passed })
    return true
  end
  reply.over = nil
  for k in pairs(asked) do workers[k].reply = { ok = true } end
  workers[first].reply = reply
  return false
end

-- ---- the canary ----

local SUMS = { "messages", "failures", "old_messages", "old_failures" }

--- The figures of all workers, by pipeline. One that does not answer in time counts as it last did.
local function sum(known)
  local list, by_name = {}, {}
  for _, reply in pairs(known) do
    for _, p in ipairs(reply.pipelines) do
      local total = by_name[p.name]
      if not total then
        total = { name = p.name, messages = 0, failures = 0, old_messages = 0, old_failures = 0 }
        by_name[p.name], list[#list + 1] = total, total
      end
      for _, name in ipairs(SUMS) do total[name] = total[name] + p[name] end
    end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return json.array(list)
end

--- Looks at all that try it.
---@return string|nil why it cannot go on
---@return string|nil by
local function look(s, asked, pids, known)
  for k, w in ipairs(ask(s, "trial", ANSWER, asked)) do
    if asked[k] and (w.pid ~= pids[k] or w.heard == "gone" or w.heard == "absent") then
      if s.ending() then return DRAINING, "drain" end
      return ("worker %d died on trial, and starts again with the old code"):format(w.worker or 1), "canary"
    elseif asked[k] and w.heard == "answered" then
      if refused(w) then return w.reply.problems, "drain" end
      known[k] = w.reply
    end
  end
end

local function roll_back(s, asked, generation, by, why, figures)
  local workers = ask(s, "rollback", COMMIT, asked)
  s.generation(generation)
  log.error("canary rolled back", { by = by, reason = why })
  for _, w in ipairs(workers) do
    w.reply = { ok = false, state = "rolled_back", by = by, problems = why, generation = generation, canary = figures }
  end
  last = { state = "rolled_back", by = by, problems = why, canary = figures }
  return workers
end

local function promote(s, asked, by, figures, generation)
  log.info("canary promoted", { by = by })
  local workers = commit(s, "promote", asked, generation)
  for _, w in ipairs(workers) do w.reply.canary = figures end
  last.canary = figures
  return workers
end

local function try(s, asked, request)
  local seconds = request.canary_for or FOR
  local line = line_of("try", ("%.15g"):format(request.canary), ("%.15g"):format(seconds))
  local workers, failed, pids = ask(s, line, COMMIT, asked), false, {}
  for k, w in ipairs(workers) do
    failed, pids[k] = failed or asked[k] and refused(w), w.pid
  end
  if failed then
    s.round("rollback", ANSWER, asked)
    return nil, workers
  end
  log.info("canary", { generation = workers[next(asked)].reply.generation, share = request.canary, seconds = seconds })
  return pids, seconds
end

local function run_canary(s, asked, request, pids, seconds, generation)
  local ends, known = now() + seconds, {}
  s.notify "ready"
  while true do
    s.sleep(math.min(CANARY_LOOK, math.max(0.001, ends - now())))
    local why, by = look(s, asked, pids, known)
    local figures = { share = request.canary, pipelines = sum(known) }
    if why then return roll_back(s, asked, generation, by, why, figures) end
    if stage.finish == "promote" then return promote(s, asked, "command", figures, generation) end
    if stage.finish then return roll_back(s, asked, generation, "command", "rolled back by command", figures) end
    local verdict, reason = trial.judge(figures.pipelines, now() >= ends, request.canary_least)
    if verdict == "rollback" then return roll_back(s, asked, generation, "canary", reason, figures) end
    if verdict == "promote" then return promote(s, asked, "canary", figures, generation) end
  end
end

local function canary(s, workers, asked, request, generation)
  local pids, seconds = try(s, asked, request)
  if not pids then return keep_old(s, seconds, asked, generation, "canary") end
  for k in pairs(asked) do workers[k].reply = { ok = true } end
  stage = { state = "canary", ends = now() + seconds, done = false }
  local mine = stage
  local result = run_canary(s, asked, request, pids, seconds, generation)
  mine.result, stage = result, {}
  return result
end

-- ---- when nobody serves ----

local function serving_of(s)
  local serving = {}
  for k, w in ipairs(s.workers()) do
    if w.state == "up" then serving[#serving + 1] = k end
  end
  return serving
end

--- How often they were started in vain since `before` was taken.
local function starts_since(s, before)
  local least = math.huge
  for k, w in ipairs(s.workers()) do least = math.min(least, (w.restarts or 0) - (before[k] or 0)) end
  return least
end

--- They may be between two starts: the first that serves can read the new code and test it, while it serves.
local function wait_for_one(s)
  local serving, before, ends = serving_of(s), {}, now() + PREPARE
  if #serving > 0 then return serving end
  for k, w in ipairs(s.workers()) do before[k] = w.restarts end
  s.hurry()
  while #serving == 0 and now() < ends and not s.ending() and starts_since(s, before) <= IN_VAIN do
    s.sleep(GATE_LOOK)
    serving = serving_of(s)
  end
  return serving
end

--- What is kept does not start. So one worker starts with what stands in the folder; if that does, it is the new code.
local function start_anew(s, request, generation)
  local first = 1
  local before, ends = s.workers()[first].restarts, now() + PREPARE + (request.gate_limit or GATE)
  s.anew(first, request.gate)
  local w
  repeat
    s.sleep(GATE_LOOK)
    w = s.workers()[first]
  until w.state == "up" or w.restarts > before + 1 or w.restarts > before and not w.pid or now() > ends or s.ending()
  if w.state == "up" then
    s.keep(first)
    local workers = s.workers()
    workers[first].reply = { ok = true, state = "done", restarted = true, generation = s.generation() }
    start_the_rest(s, workers, { [first] = true })
    last = { state = "done" }
    return workers
  end
  s.generation(generation)
  last = { state = "refused", by = "load", problems = NOT_STARTED }
  return refuse_all(s, "refused", "load", NOT_STARTED)
end

-- ---- all of it ----

local function reload(s, request)
  local generation, serving = s.generation(), wait_for_one(s)
  if s.ending() then return refuse_all(s, "refused", "drain", DRAINING) end
  s.generation(generation + 1)
  if #serving == 0 then return start_anew(s, request, generation) end
  local workers, asked, failed, first = prepare(s, serving)
  if failed then return keep_old(s, workers, asked, generation, "load") end
  if not passes_gate(s, workers, asked, first, request) then
    return keep_old(s, workers, asked, generation, "gate")
  end
  if request.canary then return canary(s, workers, asked, request, generation) end
  return commit(s, "commit", asked, generation)
end

local function end_by_hand(s, how)
  local running = stage
  if running.state ~= "canary" then
    local what = how == "promote" and "promote" or "roll back"
    return answer_all(s, { ok = false, state = "none", by = "command", problems = "there is no canary to " .. what })
  end
  running.finish = running.finish or how
  while not running.result do s.sleep(GATE_LOOK) end
  return running.result
end

local function is_busy(s)
  if stage.state ~= "canary" then return nil end
  local text = "a canary runs for another %.0f s: `moonwire reload --promote` or `--rollback` ends it"
  return refuse_all(s, "busy", "canary", text:format(math.max(0, stage.ends - now())))
end

--- The command.
---@param s table
---@param words string[]
---@return table[] workers, each with its reply
function M.reload(s, words)
  local request, problems = request_of.parse(words)
  if not request then return refuse_all(s, "refused", "command", problems) end
  if request.wait == "no" then
    request.wait = nil
    s.start(line_of("reload", unpack(request_of.words(request))))
    return answer_all(s, { ok = true, state = "begun", generation = s.generation() })
  end
  if request.finish then return end_by_hand(s, request.finish) end
  while going and stage.state ~= "canary" do
    if stage.state == "testing" then stage.superseded = true end -- what it tests is not wanted any more
    s.sleep(GATE_LOOK)
  end
  local busy = is_busy(s)
  if busy then return busy end
  going = true
  s.notify "reloading"
  local ok, result = pcall(reload, s, request)
  going, stage = false, {}
  s.notify "ready"
  if not ok then error(result, 0) end
  return result
end

return M
