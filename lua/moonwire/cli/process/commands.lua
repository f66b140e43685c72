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
local reloading = require "moonwire.cli.reload.reloading"
local rounds = require "moonwire.cli.process.rounds"

local ANSWER = 2 -- seconds that a worker may take
local STILL = 1.5 -- who has not moved for so long is not asked what can be known without it

local ask, compose = rounds.ask, rounds.compose
local command = {}

local function those(s, wanted)
  local which = {}
  for k, w in ipairs(s.workers()) do which[k] = wanted(w) end
  return which
end

local function moves(w) return w.state ~= "starting" and (w.still or 0) < STILL end

-- ---- looking ----

function command.status(s, line)
  local workers = ask(s, line, ANSWER, those(s, moves), function(w)
    return { ok = true, stale = true, generation = s.generation(), pipelines = json.array(s.tallies(w.worker)) }
  end)
  for _, w in ipairs(workers) do w.reply.reload = reloading.state() end
  return compose(workers)
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

function command.reload(s, _, words) return compose(reloading.reload(s, words)) end

-- ---- anything else is the workers' ----

local function pass_on(s, line) return compose(ask(s, line, ANSWER)) end

---@param s table
---@param line string
---@return string
return function(s, line)
  local word, words = answers.parse(line)
  return (json.encode((command[word] or pass_on)(s, line, words), { sort = true }))
end
