--- moonwire reload: the workers of a running project load its code anew, all or none. What does not load, does not pass
--- its specs, or fails more often than the old code, changes nothing.
local answers = require "moonwire.cli.process.answers"
local control = require "moonwire.cli.process.control"
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"
local request_of = require "moonwire.cli.reload.request"
local trial = require "moonwire.cli.reload.trial"

local PATIENCE = 900 -- seconds, besides those that were asked for: the project may have a long gate_limit

-- ---- telling ----

local function canary_lines(canary)
  local lines = {}
  for i, p in ipairs(canary and canary.pipelines or {}) do
    lines[i] = ("pipeline %s: new code: %s; old code: %s"):format(p.name, trial.rate(p.failures, p.messages),
      trial.rate(p.old_failures, p.old_messages))
  end
  return lines
end

local function tell_failure(name, failure)
  local lines = {}
  for line in failure.message:gmatch "[^\n]+" do lines[#lines + 1] = line end
  if failure.file or failure.name ~= "" then
    out.note("%s: %s: %s", name, failure.file and ("%s:%d"):format(failure.file, failure.line or 0) or "spec",
      failure.name)
  end
  for _, line in ipairs(lines) do out.note("%s:   %s", name, out.plain(line)) end
end

local ENDS = {
  refused = "refused: the old code keeps running", rolled_back = "rolled back: the old code keeps running",
}

local function tell_refusal(name, reply)
  if reply.unchanged then
    out.note("%s: unchanged, generation %d: another worker refused", name, reply.generation)
    return
  end
  if reply.failures and #reply.failures > 0 then
    for _, failure in ipairs(reply.failures) do tell_failure(name, failure) end
  else
    for line in (reply.problems or ""):gmatch "[^\n]+" do out.note("%s: %s", name, out.plain(line)) end
  end
  if reply.by ~= "canary" then -- else the problem has told them
    for _, line in ipairs(canary_lines(reply.canary)) do out.note("%s: %s", name, out.plain(line)) end
  end
  if ENDS[reply.state] and not reply.restarted then out.note("%s: %s", name, ENDS[reply.state]) end
end

local function tell(name, reply)
  if not reply.ok then
    tell_refusal(name, reply)
  elseif reply.state == "begun" then
    out.line(("%s: begun; `moonwire status` tells how it stands"):format(name))
  elseif reply.restarted then
    out.line(("%s: starts anew, generation %d"):format(name, reply.generation))
  else
    for _, line in ipairs(canary_lines(reply.canary)) do out.line(("%s: %s"):format(name, out.plain(line))) end
    out.line(("%s: generation %d: %d kept, %d started, %d draining"):format(name, reply.generation, reply.kept,
      reply.added, reply.removed))
  end
end

-- ---- the command ----

local function request_from(values)
  local request = { gate = values.gate, gate_limit = values["gate-limit"], canary = values.canary,
    canary_for = values["for"], canary_least = values.least }
  if values.promote and values.rollback then fail.usage "--promote or --rollback, not both" end
  if values.promote or values.rollback then
    if next(request) or values["no-wait"] then fail.usage "--promote and --rollback stand alone" end
    return { finish = values.promote and "promote" or "rollback" }
  end
  if not request.canary and (request.canary_for or request.canary_least) then
    fail.usage "--for and --least need --canary, such as --canary 5%"
  end
  return request
end

-- Wrong code is 78, as for check; what its specs or its messages say against it is 1.
local function code_of(reply, values)
  if reply.ok or values.rollback and reply.state == "rolled_back" then return 0 end
  return reply.by == "load" and fail.CONFIG or fail.FAILED
end

local function run(values)
  local request = request_from(values)
  if values["no-wait"] then request.wait = "no" end
  local line = answers.line("reload", unpack(request_of.words(request)))
  local code = 0
  local patience = PATIENCE + (values["gate-limit"] or 0) + (values["for"] or 0)
  for _, answer in ipairs(control.ask(values.DIR, line, patience)) do
    if values.json then
      answer.reply.pid, answer.reply.worker = answer.pid, answer.worker
      out.json(answer.reply)
    else
      tell(answer.name, answer.reply)
    end
    code = math.max(code, code_of(answer.reply, values))
  end
  return code
end

return {
  name = "reload",
  summary = "Makes every worker of a running project load its code anew, all or none, and tells what came of it.",
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
    { "json", nil, "one object a worker: worker, pid, ok, state, generation, kept, added, removed, problems,\nby, "
      .. "failures, canary" },
  },
  examples = { "moonwire reload shop", "moonwire reload shop --gate spec", "moonwire reload --canary 5% --for 30s" },
  run = run,
}
