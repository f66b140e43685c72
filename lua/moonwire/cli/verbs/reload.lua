--- moonwire reload: the running processes of a project load its code anew. What does not load, does not pass its specs,
--- or fails more often than the old code, changes nothing.
local answers = require "moonwire.cli.process.answers"
local control = require "moonwire.cli.process.control"
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"
local request_of = require "moonwire.cli.process.reload_request"
local trial = require "moonwire.cli.process.trial"

local UNDER_WAY = { testing = true, canary = true }
local LOOK_EVERY = 0.1

-- ---- telling ----

local function canary_lines(canary)
  local lines = {}
  for i, p in ipairs(canary and canary.pipelines or {}) do
    lines[i] = ("pipeline %s: new code: %s; old code: %s"):format(p.name, trial.rate(p.failures, p.messages),
      trial.rate(p.old_failures, p.old_messages))
  end
  return lines
end

local function tell_failure(pid, failure)
  local lines = {}
  for line in failure.message:gmatch "[^\n]+" do lines[#lines + 1] = line end
  if failure.file or failure.name ~= "" then
    out.note("%d: %s: %s", pid, failure.file and ("%s:%d"):format(failure.file, failure.line or 0) or "spec",
      failure.name)
  end
  for _, line in ipairs(lines) do out.note("%d:   %s", pid, out.plain(line)) end
end

local ENDS = { refused = "refused: the old code serves on", rolled_back = "rolled back: the old code serves on" }

local function tell_refusal(pid, reply)
  if reply.failures and #reply.failures > 0 then
    for _, failure in ipairs(reply.failures) do tell_failure(pid, failure) end
  else
    for line in (reply.problems or ""):gmatch "[^\n]+" do out.note("%d: %s", pid, out.plain(line)) end
  end
  if reply.state == "rolled_back" then
    for _, line in ipairs(canary_lines(reply.canary)) do
      if not (reply.problems or ""):find("new code", 1, true) then out.note("%d: %s", pid, out.plain(line)) end
    end
  end
  if ENDS[reply.state] then out.note("%d: %s", pid, ENDS[reply.state]) end
end

local function tell(pid, reply)
  if not reply.ok then return tell_refusal(pid, reply) end
  if reply.state == "testing" then
    out.line(("%d: the specs run; `moonwire status --json` shows what comes of it"):format(pid))
  elseif reply.state == "canary" then
    out.line(("%d: generation %d is on trial; `moonwire status` shows how it stands"):format(pid, reply.generation))
  else
    for _, line in ipairs(canary_lines(reply.canary)) do out.line(("%d: %s"):format(pid, out.plain(line))) end
    out.line(("%d: generation %d: %d kept, %d started, %d draining"):format(pid, reply.generation, reply.kept,
      reply.added, reply.removed))
  end
end

-- ---- waiting ----

local function any_under_way(list)
  for _, answer in ipairs(list) do
    if UNDER_WAY[answer.reply.state] then return true end
  end
end

local function gone(reply, problems)
  return { ok = false, reload = reply.reload, state = "lost", by = "command", problems = problems }
end

--- Each process is asked until its reload is over.
local function follow(dir, list)
  while any_under_way(list) do
    posix.sleep(LOOK_EVERY)
    local by_pid = {}
    for _, answer in ipairs(control.ask(dir, "outcome", 10)) do by_pid[answer.pid] = answer.reply end
    for _, answer in ipairs(list) do
      local before, reply = answer.reply, by_pid[answer.pid]
      if UNDER_WAY[before.state] then
        if not reply then
          answer.reply = gone(before, "the process ended before the reload was over")
        elseif reply.reload ~= before.reload then
          answer.reply = gone(before, "another reload came between: what it tells counts")
        else
          answer.reply = reply
        end
      end
    end
  end
end

-- ---- the command ----

local function request_from(values)
  local request = { gate = values.gate, gate_limit = values["gate-limit"], canary = values.canary,
    canary_for = values["for"], canary_least = values.least }
  if values.promote and values.rollback then fail.usage "--promote or --rollback, not both" end
  if values.promote or values.rollback then
    if next(request) then fail.usage "--promote and --rollback stand alone" end
    return { finish = values.promote and "promote" or "rollback" }
  end
  if not request.canary and (request.canary_for or request.canary_least) then
    fail.usage "--for and --least need --canary, such as --canary 5%"
  end
  return request
end

-- Wrong code is 78, as for check; what its specs or its messages say against it is 1.
local function code_of(reply)
  if reply.ok then return 0 end
  return reply.by == "load" and fail.CONFIG or fail.FAILED
end

local function run(values)
  local words = request_of.words(request_from(values))
  local list, code = control.ask(values.DIR, answers.line("reload", unpack(words)), 30), 0
  if not values["no-wait"] then follow(values.DIR, list) end
  for _, answer in ipairs(list) do
    if values.json then
      answer.reply.pid = answer.pid
      out.json(answer.reply)
    else
      tell(answer.pid, answer.reply)
    end
    code = math.max(code, code_of(answer.reply))
  end
  return code
end

return {
  name = "reload",
  summary = "Makes every process that runs the project load its code anew, and tells what came of it.",
  details = "Waits until it is over: specs have run, a canary was promoted or rolled back. Ends with 0 when the new\n"
    .. "code serves, 78 when it does not load, 1 when its specs fail or it was rolled back.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = {
    { "gate", "WHAT", "spec: run the project's specs on the new code first; none: do not\n(default: the project's "
      .. "own setting)", of = { "spec", "none" } },
    { "gate-limit", "SECONDS", "how long they may take (default: the project's, 60)", kind = "seconds" },
    { "canary", "SHARE", "try the new code on this share of the messages, such as 5%", kind = "share" },
    { "for", "SECONDS", "for so long (default: 30)", kind = "seconds" },
    { "least", "N", "with fewer messages than this it is rolled back (default: 20)", kind = "integer" },
    { "promote", nil, "end the canary that runs: its code gets all messages" },
    { "rollback", nil, "end the canary that runs: the old code gets all messages" },
    { "no-wait", nil, "return at once; status tells what comes of it" },
    { "json", nil, "one object a process: pid, ok, state, generation, kept, added, removed, problems, by,\nfailures, "
      .. "canary" },
  },
  examples = { "moonwire reload shop", "moonwire reload shop --gate spec", "moonwire reload --canary 5% --for 30s" },
  run = run,
}
