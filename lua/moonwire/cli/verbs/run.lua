--- moonwire run: loads a project, runs its pipelines until a signal or, with --once, until everything is settled.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local fail = require "moonwire.cli.fail"
local log = require "moonwire.log"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"
local project = require "moonwire.cli.project.folder"

-- As in runtime/base/log.h.
local FORMATS = { logfmt = 1, json = 2 }
local LEVELS = { debug = 0, info = 1, warn = 2, error = 3 }

--- In the log, not as the text of a command: others have begun to write it.
local function log_problems(problems, code)
  for line in problems:gmatch "[^\n]+" do log.error("cannot start", { error = line }) end
  out.err "" -- the log
  fail.raise(code or fail.CONFIG, nil)
end

--- A reload found nobody that could test the new code beside the old one: it is tested here, before it serves.
local function test_first(values, dir, settings, gate)
  if gate == "project" then gate = values.gate or settings.gate end
  if gate ~= "spec" then return end
  local outcome = require "moonwire.cli.reload.gate".run(dir, settings.sources, settings.gate_limit)
  if outcome then log_problems(outcome) end
end

-- What a supervisor does not need is required where it is used.
local function load(app, values)
  local url = values.broker and require "moonwire.cli.broker.link".absolute(values.broker)
  local sources, gate
  if values.slot then sources, gate = core.worker_sources() end
  local options = { dir = project.given(values.DIR), jit = values.jit, broker = url, sources = true, files = sources }
  local ok, result = app:load(options)
  options.files = nil -- a reload reads the folder
  if ok and gate then test_first(values, options.dir, result, gate) end
  if ok then
    if values.slot then core.worker_sources(result.sources) end
    return result
  end
  if sources or gate then log_problems((result:gsub("^!", ""))) end
  local trouble = result:match "^!(.*)"
  if trouble then fail.raise(fail.UNAVAILABLE, trouble) end
  project.complain(result)
end

local function summarise(app)
  for _, p in ipairs(app:status()) do
    log.info("pipeline ended", {
      pipeline = p.name, channel = p.channel, received = p.received, handled = p.handled, retried = p.retried,
      dead = p.dead, dropped = p.dropped, deduped = p.deduped, fenced = p.fenced, published = p.published,
      parked = p.parked, released = p.released,
    })
  end
  local all = require "moonwire.metrics".all()
  if next(all) then log.info("metrics", all) end
end

local verb

local function supervise(values)
  local code = require "moonwire.cli.process.supervise"(verb, values)
  out.err "" -- the log
  return code
end

--- How it is reached: by its supervisor, or, alone, by everybody.
local function doors_of(app, values, dir, answers)
  if values.slot then
    return { command = answers.of(app, { dir = dir, gate = values.gate, worker = values.slot }) }
  end
  local of = { dir = dir, gate = values.gate, reload_state = require "moonwire.cli.reload.reloading".state }
  return require "moonwire.cli.process.lone"(app, answers.of(app, of))
end

local function work(values)
  local app = core.app()
  local settings = load(app, values)
  if values.slot then core.worker_settings(settings.workers or 1, settings.drain, settings.crash_attempts) end
  local ok, err = app:start()
  if not ok then fail.raise(fail.UNAVAILABLE, err) end
  log.info("started", { pipelines = #app:status(), version = core.version, generation = app:generation() })
  local dir = project.given(values.DIR)
  local path, close = nil, function() end
  if not values.slot then path, close = require "moonwire.cli.process.door".open(project.dir(values.DIR), dir) end
  local answers = require "moonwire.cli.process.answers"
  local doors = doors_of(app, values, dir, answers)
  local code, why = app:run {
    once = values.once, drain = values.drain or settings.drain, watch = values.watch and dir,
    control = path, command = doors.command, changed = doors.changed,
    beat = doors.beat,
  }
  answers.stop()
  close()
  if not code then fail.raise(fail.FAILED, why) end
  summarise(app)
  app:close()
  out.err "" -- the log
  return code
end

local function run(values)
  C.mw_log_setup(FORMATS[values.log] or 0, LEVELS[values["log-level"] or "info"])
  if not values.slot then C.mw_log_guard() end -- a worker's lines are kept by its supervisor
  posix.hold_signals_for_run() -- a TERM while the project is read drains it like any other
  if not values.slot and values.workers ~= 0 then return supervise(values) end
  if values.slot then
    local attached, why = core.attach_worker(values.slot)
    if not attached then fail.usage("%s", why) end
  end
  return work(values)
end

verb = {
  name = "run",
  summary = "Runs a project's pipelines until INT or TERM; these drain it, a second one ends it at once.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = {
    { "once", nil, "end when there is nothing left to do: all is settled, nothing is waiting for a retry" },
    { "watch", nil, "reload when a Lua or JSON file or .env of the project changes", short = "w" },
    { "gate", "WHAT", "spec: reloads run the project's specs first, and those that fail refuse it",
      of = { "spec", "none" } },
    { "workers", "N", "keep N worker processes running (default: the project's, 1); 0: none, do it all in this one",
      kind = "workers" },
    { "broker", "URL", "use this broker: sets BROKER_URL for the project", short = "b" },
    { "log", "FORMAT", "how to write the log lines on stderr (default: logfmt)", of = { "logfmt", "json" } },
    { "log-level", "LEVEL", "how much to tell (default: info)", of = { "debug", "info", "warn", "error" } },
    { "jit", "MODE", "off interprets handlers, to tell whether a fault comes from compiling", of = { "on", "off" } },
    { "drain", "SECONDS", "how long running handlers may take to end (default: the project's, 25)", kind = "seconds" },
    { "slot", "K", "which worker this is; set by the supervisor", kind = "workers", hidden = true },
  },
  examples = { "moonwire run shop", "moonwire run --once --broker embedded:/var/lib/shop" },
  run = run,
}

return verb
