--- How a running project answers what comes through its control socket: a line in, one JSON object out. A line is a
--- word and its arguments, each escaped as in an address (%20), so that keys and ids may hold anything.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local gate_of = require "moonwire.cli.reload.gate"
local json = require "moonwire.json"
local log = require "moonwire.log"
local out = require "moonwire.cli.out"

local M = {}

local function unescape(hex) return string.char(tonumber(hex, 16)) end

M.line = require "moonwire.cli.process.line"

--- The word and the arguments of a line.
---@param line string
---@return string word, string[] arguments
function M.parse(line)
  local words = {}
  for argument in line:gmatch " =(%S*)" do words[#words + 1] = (argument:gsub("%%(%x%x)", unescape)) end
  return line:match "^%S*", words
end

local answer = {}

-- ---- a reload, in steps: whoever leads it (reloading.lua) makes all workers take the next one, or none ----

local now = C.mw_real_seconds

local waiting -- the settings of what is prepared
local specs -- the process that tests it
local trial_ends

local function stop_specs()
  if specs then specs:kill() end
  specs = nil
end

function answer.prepare(app, _, of)
  stop_specs()
  local ok, result = app:prepare()
  if not ok then return { ok = false, problems = (tostring(result):gsub("^!", "")) } end
  waiting = result
  core.worker_sources(result.sources)
  local gate = of.gate or result.gate
  return { ok = true, gate = gate, gate_limit = result.gate_limit, code = core.hash(result.sources) }
end

--- The specs run on the very files that were read.
function answer.test(_, _, of)
  local why
  specs, why = gate_of.start(of.dir, waiting.sources)
  return specs and { ok = true } or { ok = false, problems = why }
end

local function failed(problems, failures)
  stop_specs()
  return { ok = false, over = true, problems = problems, failures = failures }
end

--- tested(limit): how they stand; with a limit, that is over
function answer.tested(app, words, of)
  if not specs then return failed "the specs do not run" end
  if app:draining() then return failed "the process is draining" end
  local code = specs:poll()
  local said = (code or words[1]) and specs:output(gate_of.OUTPUT):gsub("%s+$", "")
  if code then
    local passed, problems, failures = gate_of.outcome(code, specs:report(), said, of.dir)
    if not passed then return failed(problems, failures) end
    stop_specs()
    return { ok = true, over = true, passed = passed }
  elseif words[1] then
    local wrote = said ~= "" and "; they wrote:\n" .. said or ""
    return failed(("the specs were not over after %s s%s"):format(words[1], wrote))
  end
  return { ok = true, over = false }
end

local function changed(result)
  core.worker_settings(waiting.workers or 1, waiting.drain, waiting.crash_attempts)
  return { ok = true, generation = result.generation, kept = result.kept, added = result.added,
    removed = result.removed }
end

function answer.commit(app)
  local result, problems = app:commit()
  if not result then
    log.error("reload refused", { error = problems })
    return { ok = false, problems = problems }
  end
  return changed(result)
end

function answer.abandon(app)
  stop_specs()
  app:abandon()
  return { ok = true }
end

--- try(share, seconds): what is prepared becomes a canary
function answer.try(app, words)
  local generation, problems = app:try(tonumber(words[1]), waiting.sources)
  if not generation then return { ok = false, problems = problems } end
  trial_ends = now() + tonumber(words[2])
  return { ok = true, generation = generation }
end

function answer.trial(app)
  local figures = app:trial()
  if not figures then return { ok = false, problems = "the process is draining" } end
  return { ok = true, generation = figures.generation, pipelines = json.array(figures.pipelines) }
end

function answer.promote(app)
  local result = app:promote()
  if not result then return { ok = false, problems = "the process is draining" } end
  return changed(result)
end

function answer.rollback(app)
  app:rollback()
  return { ok = true }
end

-- ---- looking ----

--- Each pipeline has its part of a canary's figures.
local function with_canary(pipelines, trial)
  local by_name = {}
  for _, figures in ipairs(trial and trial.pipelines or {}) do by_name[figures.name] = figures end
  for _, p in ipairs(pipelines) do
    local f = not p.draining and by_name[p.name]
    if f then
      p.canary = { generation = trial.generation, share = f.share, left = math.max(0, trial_ends - now()),
        messages = f.messages, failures = f.failures, old_messages = f.old_messages, old_failures = f.old_failures }
    end
  end
  return pipelines
end

function answer.status(app, _, of)
  return { ok = true, generation = app:generation(), version = core.version, worker = of.worker,
    reload = of.reload_state and of.reload_state(), pipelines = json.array(with_canary(app:status(), app:trial())),
    connections = json.array(app:connections()) }
end

function answer.drain(app)
  log.info("draining", { by = "command" })
  app:drain()
  return { ok = true }
end

function answer.explain(app, words)
  if not words[1] then return { ok = false, problems = "explain what?" } end
  local list = with_canary(app:explain(words[1]), app:trial())
  for _, p in ipairs(list) do
    p.of_key = json.array(p.of_key)
    if p.lane then p.lane.behind = json.array(p.lane.behind) end
  end
  return { ok = true, generation = app:generation(), pipelines = json.array(out.printable(list)) }
end

local function names_of(app)
  local names = {}
  for _, p in ipairs(app:status()) do
    if not p.draining then names[#names + 1] = p.name end
  end
  return names
end

-- All or nothing: a misspelt name changes nothing.
local function set_paused(app, words, paused)
  local names, known = names_of(app), {}
  for _, name in ipairs(names) do known[name] = true end
  for _, name in ipairs(words) do
    if not known[name] then
      local all = table.concat(names, ", ")
      return { ok = false, problems = ("there is no pipeline %q; there is: %s"):format(name, all) }
    end
  end
  local chosen = #words > 0 and words or names
  for _, name in ipairs(chosen) do
    app:pause(name, paused)
    log.info(paused and "pipeline paused" or "pipeline resumed", { pipeline = name, by = "command" })
  end
  return { ok = true, pipelines = json.array(chosen) }
end

function answer.pause(app, words) return set_paused(app, words, true) end
function answer.resume(app, words) return set_paused(app, words, false) end

--- The function that answers as a worker.
---@param app userdata
---@param of { dir: string, gate: string|nil, worker: integer|nil, reload_state: function|nil } gate: of `run --gate`;
---  worker: which one this is
---@return fun(line: string): string
function M.of(app, of)
  return function(line)
    local word, words = M.parse(line)
    local known = answer[word]
    local reply = known and known(app, words, of) or { ok = false, problems = ("unknown command %q"):format(line) }
    return (json.encode(out.printable(reply), { sort = true }))
  end
end

M.stop = stop_specs -- before the process ends

return M
