--- `retry = { … }` and its classes, checked and put into the C struct.
local fields = require "moonwire.internal.config.fields"

local M = {}

local RETRY, DEAD, OUTAGE = 0, 1, 2
local EXPONENTIAL, FIXED, LIST = 0, 1, 2

local RULES = {
  attempts = { kind = "integer", min = 1, max = 1000000 },
  backoff = { kind = "any", default = "exponential" },
  base = { kind = "seconds", default = 1 },
  cap = { kind = "seconds", default = 60 },
  jitter = { kind = "number", min = 0, max = 1, default = 0.2 },
  max_age = { kind = "seconds", min = 0.001 },
  topics = { kind = "table" },
}
local TIERS = 32 -- MW_TIERS in core/spec.h

local TOP = { classes = { kind = "table" } }
for name, rule in pairs(RULES) do TOP[name] = rule end

local CLASS = { pause = { kind = "seconds", min = 0.001 } }
for name, rule in pairs(RULES) do CLASS[name] = { kind = rule.kind, min = rule.min, max = rule.max } end

-- What holds without a word about it: bad data does not get better by trying again, and an outage is nobody's fault.
local BUILT_IN = {
  invalid = "dead",
  outage = { pause = 5, cap = 60, jitter = 0.2 },
}

-- Is it a list, with nothing beside it and no hole in it?
local function is_list(t)
  local count = 0
  for _ in pairs(t) do count = count + 1 end
  for i = 1, count do
    if t[i] == nil then return false end
  end
  return true
end

local function check_backoff(b, where, problems, prefix)
  local line = fields.line_of(where.source, where.line, "backoff")
  local function problem(text)
    problems[#problems + 1] = ("%s:%d: %s: %s.backoff %s"):format(where.file, line, where.what, prefix, text)
  end
  if type(b) == "table" then
    if not is_list(b) then return problem "must be a list of delays without holes and names, such as {1, 2, 4}" end
    if #b == 0 or #b > 32 then return problem "must list 1 to 32 delays in seconds" end
    for i = 1, #b do
      if type(b[i]) ~= "number" or not (b[i] >= 0 and b[i] <= fields.SECONDS_MOST) then
        local text = "must list seconds, 0 or more%s; item %d is %s"
        return problem(text:format(fields.too_long(b[i]), i, tostring(b[i])))
      end
    end
  elseif b ~= "exponential" and b ~= "fixed" then
    problem(('must be "exponential", "fixed" or a list such as {1, 2, 4}, got %s'):format(tostring(b)))
  end
end

local function milliseconds(seconds) return math.floor(seconds * 1000 + 0.5) end

--- The delays of retry channels: one channel each, one attempt each. They rise, because a later attempt that waits less
--- than the one before is a slip.
local function check_topics(topics, where, problems, prefix)
  local function problem(text)
    problems[#problems + 1] = ("%s:%d: %s: %s.topics %s"):format(where.file,
      fields.line_of(where.source, where.line, "topics"), where.what, prefix, text)
  end
  local good = is_list(topics) and #topics > 0 and #topics <= TIERS
  for i = 1, #topics do
    local s = topics[i]
    good = good and type(s) == "number" and s >= 0.001 and s <= 31536000
  end
  if not good then
    return problem(("must list 1 to %d delays in seconds, such as { 5, 60 }"):format(TIERS))
  end
  for i = 2, #topics do
    if milliseconds(topics[i]) <= milliseconds(topics[i - 1]) then
      local text = "must rise from one attempt to the next: %g comes after %g; with `attempts` the last one is repeated"
      return problem(text:format(topics[i], topics[i - 1]))
    end
  end
end

local function fill_tiers(out, topics)
  out.tier_count = #topics
  for i, seconds in ipairs(topics) do out.tiers_ms[i - 1] = milliseconds(seconds) end
end

local function fill_backoff(out, settings)
  out.base, out.cap, out.jitter = settings.base, settings.cap, settings.jitter
  if type(settings.backoff) == "table" then
    out.kind, out.step_count = LIST, #settings.backoff
    for i, seconds in ipairs(settings.backoff) do out.steps[i - 1] = seconds end
  else
    out.kind = settings.backoff == "fixed" and FIXED or EXPONENTIAL
  end
end

local function attempts_of(settings)
  if settings.attempts then return settings.attempts end
  if settings.topics then return #settings.topics + 1 end
  return type(settings.backoff) == "table" and #settings.backoff + 1 or 5
end

local function set_name(policy, name)
  local ffi = require "ffi"
  ffi.copy(policy.name, name)
end

--- In specs another broker stands in, which keeps retries itself: the delays stay, the channels do not.
local function without_topics(settings)
  local copy = {}
  for name, value in pairs(settings) do copy[name] = value end
  copy.topics, copy.backoff, copy.jitter = nil, settings.topics, 0
  return copy
end

local function fill(policy, name, settings, no_topics)
  set_name(policy, name)
  policy.attempts = attempts_of(settings)
  if no_topics and settings.topics then settings = without_topics(settings) end
  policy.max_age_ms = math.floor((settings.max_age or 0) * 1000)
  if settings.pause then
    policy.kind = OUTAGE
    fill_backoff(policy.backoff, { base = settings.pause, cap = math.max(settings.cap, settings.pause),
      jitter = settings.jitter, backoff = "exponential" })
  else
    policy.kind = RETRY
    fill_backoff(policy.backoff, settings)
    if settings.topics then fill_tiers(policy, settings.topics) end
  end
end

--- Both at once would be two answers to one question: `backoff` holds a message in its lane, `topics` does not.
local function check_way(given, where, problems, prefix)
  if given.backoff == nil or given.topics == nil then return end
  problems[#problems + 1] = ("%s:%d: %s: %s takes either backoff or topics"):format(where.file,
    fields.line_of(where.source, where.line, "topics"), where.what, prefix)
end

--- A class that says how long it waits in its lane is held there, whatever the others do.
local function is_held(class)
  if class.topics ~= nil or class.pause ~= nil then return false end
  return class.backoff ~= nil or class.base ~= nil or class.cap ~= nil or class.jitter ~= nil
end

--- Classes take from the pipeline's own retry settings what they do not say themselves.
local function inherit(class, top)
  local all = {}
  for name in pairs(RULES) do
    all[name] = class[name]
    if all[name] == nil then all[name] = top[name] end
  end
  if is_held(class) then all.topics = nil end
  local listed = class.topics or type(class.backoff) == "table"
  if listed and not class.attempts then all.attempts = nil end -- the list says how many
  all.pause = class.pause
  return all
end

local function check_class(name, class, where, problems)
  local prefix = "retry.classes." .. tostring(name)
  if type(name) ~= "string" or name == "" or #name > 31 then
    local text = "%s:%d: %s: a class is named by a string of 1 to 31 characters"
    problems[#problems + 1] = text:format(where.file, where.line, where.what)
    return "dead"
  end
  if class == "dead" then return class end
  if type(class) ~= "table" then
    problems[#problems + 1] = ('%s:%d: %s: %s must be "dead" or a table, got %s'):format(where.file,
      fields.line_of(where.source, where.line, name), where.what, prefix, tostring(class))
    return "dead"
  end
  class = fields.check(class, CLASS, where, problems, prefix)
  check_way(class, where, problems, prefix)
  if class.backoff ~= nil then check_backoff(class.backoff, where, problems, prefix) end
  if class.topics ~= nil then check_topics(class.topics, where, problems, prefix) end
  return class
end

--- Every retry channel that any of the policies sends to, once: all of them are read.
local function all_tiers(top, classes)
  local seen, list = {}, {}
  local function add(topics)
    for _, seconds in ipairs(topics or {}) do
      local ms = milliseconds(seconds)
      if not seen[ms] then list[#list + 1] = ms end
      seen[ms] = true
    end
  end
  add(top.topics)
  for _, class in pairs(classes) do if type(class) == "table" then add(class.topics) end end
  table.sort(list)
  return list
end

local function check_all_tiers(top, classes, where, problems)
  local count = #all_tiers(top, classes)
  if count <= TIERS then return end
  local text = "%s:%d: %s: retry.topics: %d different delays, with those of its classes; a pipeline has at most %d"
  problems[#problems + 1] = text:format(where.file, fields.line_of(where.source, where.line, "topics"), where.what,
    count, TIERS)
end

--- Checks the user's `retry` and returns a function that fills the policies of an mw_pipeline_spec.
---@param retry table|nil
---@param where moonwire.Where
---@param problems string[]
---@param no_topics boolean|nil
---@return fun(spec: ffi.cdata*)
function M.prepare(retry, where, problems, no_topics)
  local top = fields.check(retry or {}, TOP, where, problems, "retry")
  check_way(retry or {}, where, problems, "retry")
  check_backoff(top.backoff, where, problems, "retry")
  if top.topics then check_topics(top.topics, where, problems, "retry") end
  local classes = {}
  for name, class in pairs(BUILT_IN) do classes[name] = class end
  for name, class in pairs(top.classes or {}) do
    class = check_class(name, class, where, problems)
    if type(name) == "string" then classes[name] = class end
  end
  if #problems == 0 then check_all_tiers(top, classes, where, problems) end
  local names = {}
  for name in pairs(classes) do names[#names + 1] = name end
  table.sort(names)
  if #names > 15 then
    local text = "%s:%d: %s: more than 15 classes in retry.classes"
    problems[#problems + 1] = text:format(where.file, where.line, where.what)
  end
  return function(spec)
    fill(spec.policies[0], "", top, no_topics)
    for i, name in ipairs(names) do
      local policy, class = spec.policies[i], classes[name]
      if class == "dead" then
        set_name(policy, name)
        policy.kind, policy.attempts = DEAD, 1
      else
        fill(policy, name, inherit(class, top), no_topics)
      end
    end
    spec.policy_count = #names + 1
    local tiers = all_tiers(top, classes)
    spec.tier_count = #tiers
    for i, ms in ipairs(tiers) do spec.tiers_ms[i - 1] = ms end
  end
end

return M
