--- moonwire run: loads a project, runs its pipelines until a signal or, with --once, until everything is settled.
local C = require "moonwire.internal.cdef"
local answers = require "moonwire.cli.process.answers"
local broker = require "moonwire.cli.broker.link"
local core = require "moonwire.core"
local fail = require "moonwire.cli.fail"
local log = require "moonwire.log"
local metrics = require "moonwire.metrics"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"
local project = require "moonwire.cli.project.folder"
local reloader = require "moonwire.cli.process.reloader"

-- As in runtime/base/log.h.
local FORMATS = { logfmt = 1, json = 2 }
local LEVELS = { debug = 0, info = 1, warn = 2, error = 3 }

-- With `stop`, as boot.lua tells: nothing is opened, only the settings are read.
local function try_load(app, values, stop)
  local ok, result = app:load {
    dir = project.dir(values.DIR), jit = values.jit, broker = values.broker and broker.absolute(values.broker),
    settings = stop, sources = true,
  }
  if ok then return result end
  return nil, result
end

local function load(app, values, stop)
  local settings, result = try_load(app, values, stop)
  if settings then return settings end
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
  local all = metrics.all()
  if next(all) then log.info("metrics", all) end
end

--- Not being able to open the door is no reason not to work.
local function control_of(dir)
  local path, err = core.control_path(dir)
  if not path then log.warn("no control socket: reload by signal only", { error = err }) end
  return path
end

local verb

local function supervise(app, values, settings)
  app:close()
  local function read()
    local fresh = core.app()
    local result, problems = try_load(fresh, values, true)
    fresh:close()
    return result, problems
  end
  local code = require "moonwire.cli.process.supervise"(verb, values, settings, read)
  out.err "" -- the log
  return code
end

local function run(values)
  C.mw_log_setup(FORMATS[values.log] or 0, LEVELS[values["log-level"] or "info"])
  posix.hold_signals_for_run() -- a TERM while the project is read drains it like any other
  if values.slot then
    local attached, why = core.attach_worker(values.slot)
    if not attached then fail.usage("%s", why) end
  end
  local app = core.app()
  local stop = not values.slot and (values.workers and true or "workers") or nil
  local settings = load(app, values, stop)
  if stop and (values.workers or settings.workers) then return supervise(app, values, settings) end
  local ok, err = app:start()
  if not ok then fail.raise(fail.UNAVAILABLE, err) end
  log.info("started", { pipelines = #app:status(), version = core.version, generation = 1 })
  local dir = project.dir(values.DIR)
  local reload = reloader.new(app, dir, values.gate)
  local code, why = app:run {
    once = values.once, drain = values.drain or settings.drain, watch = values.watch and dir, control = control_of(dir),
    command = answers.of(app, { reloader = reload, worker = values.slot }),
    changed = function(by) reload:start({}, by) end,
    beat = function() reload:beat() end,
  }
  reload:stop()
  if not code then fail.raise(fail.FAILED, why) end
  summarise(app)
  app:close()
  out.err "" -- the log
  return code
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
    { "workers", "N", "keep N worker processes running instead of one (default: the project's)", kind = "workers" },
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
