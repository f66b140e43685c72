--- How a supervisor answers what comes through its control socket: it asks its workers and puts their answers beside
--- each other. Each command is a coroutine; `s` is described in runtime/supervisor/desk.h. The answer:
---
---   { ok, workers = { { worker, pid, state, since, restarts, still, starts_in, pipeline, id, reply }... } }
---
---   state     up | starting | draining | down (starts_in seconds it is started again) | ended
---   still     seconds since it was last seen to move; pipeline, id: the message whose handler computes
---   reply     what the worker answered, or what is known without it: then it has `stale = true`
local answers = require "moonwire.cli.process.answers"
local json = require "moonwire.json"
local log = require "moonwire.log"

local ANSWER, PREPARE, COMMIT = 2, 30, 10 -- seconds that a worker may take
local STILL = 1.5 -- who has not moved for so long is not asked what can be known without it

local command = {}

local function decoded(answer)
  if answer.state ~= "answered" then return nil end
  local reply = json.decode(answer.text)
  return type(reply) == "table" and reply or nil
end

local LATE = { late = "no answer within %g s", gone = "it died meanwhile and starts again", absent = "it does not run" }

local function missing(answer, seconds)
  return { ok = false, problems = (LATE[answer.state] or "its answer cannot be read"):format(seconds) }
end

local function compose(workers)
  local ok = true
  for _, w in ipairs(workers) do
    ok, w.heard = ok and w.reply.ok ~= false, nil
  end
  return { ok = ok, workers = json.array(workers) }
end

--- Asks, and puts the replies into the list of workers. `otherwise(worker, answer)` makes up for one that is missing.
local function ask(s, line, seconds, which, otherwise)
  local list = s.round(line, seconds, which)
  local workers = s.workers()
  for k, w in ipairs(workers) do
    local answer = list[k] or { state = "absent" }
    w.heard = answer.state
    w.reply = decoded(answer) or otherwise and otherwise(w, answer) or missing(answer, seconds)
  end
  return workers
end

local function those(s, wanted)
  local which = {}
  for k, w in ipairs(s.workers()) do which[k] = wanted(w) end
  return which
end

local function moves(w) return w.state ~= "starting" and (w.still or 0) < STILL end

-- ---- looking ----

function command.status(s, line)
  return compose(ask(s, line, ANSWER, those(s, moves), function(w)
    return { ok = true, stale = true, generation = s.generation(), pipelines = json.array(s.tallies(w.worker)) }
  end))
end

function command.explain(s, line, words)
  return compose(ask(s, line, ANSWER, those(s, moves), function(w)
    return { ok = true, stale = true, pipelines = json.array {}, begun = json.array(s.begun(w.worker, words[1] or "")) }
  end))
end

-- ---- changing ----

local function set_paused(s, line, words, paused)
  return compose(ask(s, line, ANSWER, nil, function(w, answer)
    if answer.state == "gone" then return nil end
    for i = 1, math.max(1, #words) do s.pause(w.worker, words[i], paused) end
    return { ok = true, later = true, pipelines = json.array(words) } -- it holds when it moves, or starts again
  end))
end

function command.pause(s, line, words) return set_paused(s, line, words, true) end
function command.resume(s, line, words) return set_paused(s, line, words, false) end

function command.drain(s)
  log.info("draining all workers", { by = "command" })
  s.drain()
  local workers = s.workers()
  for _, w in ipairs(workers) do w.reply = { ok = true } end
  return compose(workers)
end

-- ---- reloading: all or none ----

local function refused(w) return w.reply.ok == false end

--- The first one alone: what hangs or kills while it is read costs one worker, not all. One that dies later has not
--- refused: it starts again, with the new code.
---@return table[] workers, table<integer, boolean> asked, boolean failed
local function prepare(s, line, serving)
  local first = table.remove(serving, 1)
  local asked, rest, failed = { [first] = true }, {}, false
  local workers = ask(s, line, PREPARE, asked)
  if refused(workers[first]) then return workers, asked, true end
  for _, k in ipairs(serving) do asked[k], rest[k] = true, true end
  workers = ask(s, line, PREPARE, rest)
  workers[first].reply = { ok = true }
  for k in pairs(rest) do failed = failed or refused(workers[k]) and workers[k].heard ~= "gone" end
  return workers, asked, failed
end

-- Everything that keeps the old code, each reason once.
local function log_refusal(workers, which)
  local told = {}
  for k, w in ipairs(workers) do
    for problem in (which[k] and refused(w) and w.reply.problems or ""):gmatch "[^\n]+" do
      if not told[problem] then log.error("reload refused", { error = problem, by = "worker " .. w.worker }) end
      told[problem] = true
    end
  end
end

local function keep_old(s, workers, asked, generation)
  s.round("abandon", ANSWER, asked)
  s.generation(generation)
  log_refusal(workers, asked)
  for k, w in ipairs(workers) do
    if not (asked[k] and refused(w)) then
      w.reply = { ok = false, unchanged = true, generation = generation, problems = "nothing changed: another worker refused" }
    end
  end
  return workers
end

--- Those that do not serve read the new files when they start: now, rather than after their pause.
local function start_the_rest(s, workers, asked)
  for k, w in ipairs(workers) do
    if not asked[k] then
      if w.state == "starting" then s.restart(w.worker) end
      w.reply = { ok = true, restarted = true, generation = s.generation() }
    end
  end
  s.hurry()
end

local function commit(s, line, asked)
  local workers = ask(s, (line:gsub("^%S+", "commit")), COMMIT, asked, function(_, answer)
    if answer.state == "gone" then return { ok = true, restarted = true, generation = s.generation() } end
    if answer.state == "late" then
      return { ok = false, problems = ("no answer within %g s: it changes when its handler ends"):format(COMMIT) }
    end
  end)
  for k, w in ipairs(workers) do
    if asked[k] and refused(w) and not w.reply.problems:find "^no answer" then
      w.reply.problems = w.reply.problems .. "\nthis worker is started anew, with the new code"
      s.restart(w.worker)
    end
  end
  start_the_rest(s, workers, asked)
  return workers
end

local function reload(s, line)
  local generation, serving = s.generation(), {}
  for k, w in ipairs(s.workers()) do
    if w.state == "up" then serving[#serving + 1] = k end
  end
  s.generation(generation + 1)
  if #serving == 0 then
    local workers = s.workers()
    start_the_rest(s, workers, {})
    return workers
  end
  local workers, asked, failed = prepare(s, (line:gsub("^%S+", "prepare")), serving)
  if failed then return keep_old(s, workers, asked, generation) end
  return commit(s, line, asked)
end

local reloading = false

function command.reload(s, line)
  while reloading do s.sleep(0.05) end
  reloading = true
  s.notify "reloading"
  local ok, result = pcall(reload, s, line)
  reloading = false
  s.notify "ready"
  if not ok then error(result, 0) end
  return compose(result)
end

-- ---- anything else is the workers' ----

local function pass_on(s, line) return compose(ask(s, line, ANSWER)) end

---@param s table
---@param line string
---@return string
return function(s, line)
  local word, words = answers.parse(line)
  return (json.encode((command[word] or pass_on)(s, line, words), { sort = true }))
end
