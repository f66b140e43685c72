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
}

local TOP = { classes = { kind = "table" } }
for name, rule in pairs(RULES) do TOP[name] = rule end

local CLASS = { pause = { kind = "seconds", min = 0.001 } }
for name, rule in pairs(RULES) do CLASS[name] = { kind = rule.kind, min = rule.min, max = rule.max } end

-- What holds without a word about it: bad data does not get better by trying again, and an outage is nobody's fault.
local BUILT_IN = {
  invalid = "dead",
  outage = { pause = 5, cap = 60, jitter = 0.2 },
}

local function check_backoff(b, where, problems, prefix)
  local line = fields.line_of(where.source, where.line, "backoff")
  local function problem(text)
    problems[#problems + 1] = ("%s:%d: %s: %s.backoff %s"):format(where.file, line, where.what, prefix, text)
  end
  if type(b) == "table" then
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
  return type(settings.backoff) == "table" and #settings.backoff + 1 or 5
end

local function set_name(policy, name)
  local ffi = require "ffi"
  ffi.copy(policy.name, name)
end

local function fill(policy, name, settings)
  set_name(policy, name)
  policy.attempts = attempts_of(settings)
  policy.max_age_ms = math.floor((settings.max_age or 0) * 1000)
  if settings.pause then
    policy.kind = OUTAGE
    fill_backoff(policy.backoff, { base = settings.pause, cap = math.max(settings.cap, settings.pause),
      jitter = settings.jitter, backoff = "exponential" })
  else
    policy.kind = RETRY
    fill_backoff(policy.backoff, settings)
  end
end

--- Classes take from the pipeline's own retry settings what they do not say themselves.
local function inherit(class, top)
  local all = {}
  for name in pairs(RULES) do
    all[name] = class[name]
    if all[name] == nil then all[name] = top[name] end
  end
  if type(class.backoff) == "table" and not class.attempts then all.attempts = nil end -- the list says how many
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
  if class.backoff ~= nil then check_backoff(class.backoff, where, problems, prefix) end
  return class
end

--- Checks the user's `retry` and returns a function that fills the policies of an mw_pipeline_spec.
---@param retry table|nil
---@param where moonwire.Where
---@param problems string[]
---@return fun(spec: ffi.cdata*)
function M.prepare(retry, where, problems)
  local top = fields.check(retry or {}, TOP, where, problems, "retry")
  check_backoff(top.backoff, where, problems, "retry")
  local classes = {}
  for name, class in pairs(BUILT_IN) do classes[name] = class end
  for name, class in pairs(top.classes or {}) do
    class = check_class(name, class, where, problems)
    if type(name) == "string" then classes[name] = class end
  end
  local names = {}
  for name in pairs(classes) do names[#names + 1] = name end
  table.sort(names)
  if #names > 15 then
    local text = "%s:%d: %s: more than 15 classes in retry.classes"
    problems[#problems + 1] = text:format(where.file, where.line, where.what)
  end
  return function(spec)
    fill(spec.policies[0], "", top)
    for i, name in ipairs(names) do
      local policy, class = spec.policies[i], classes[name]
      if class == "dead" then
        set_name(policy, name)
        policy.kind, policy.attempts = DEAD, 1
      else
        fill(policy, name, inherit(class, top))
      end
    end
    spec.policy_count = #names + 1
  end
end

return M
