--- Assertions for busted whose failures say what happened instead: assert.handled, dead, retried, published, settled.
local json = require "moonwire.json"

local M = {}

local JITTER = 0.2 -- of a delay: the default of retry.jitter

local function text_of(value)
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) == "table" then return json.encode(value, { sort = true }) or tostring(value) end
  return tostring(value)
end

local function same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for name, value in pairs(a) do
    if not same(value, b[name]) then return false end
  end
  for name in pairs(b) do
    if a[name] == nil then return false end
  end
  return true
end

local function listed(lines, none)
  if #lines == 0 then return "  " .. none end
  return "  " .. table.concat(lines, "\n  ")
end

-- ---- each returns whether it holds, and a text that says how it is ----

local function letter_lines(letters)
  local lines = {}
  for i, letter in ipairs(letters) do
    local h = letter.headers
    lines[i] = ("%s: class %s, %s attempt%s, %s"):format(letter.id, h["mw-dead-class"], h["mw-dead-attempts"],
      h["mw-dead-attempts"] == "1" and "" or "s",
      text_of(h["mw-dead-last-error"] or h["mw-dead-reason"]))
  end
  return lines
end

local function counters(app, pipeline)
  local s = app:status(pipeline)
  local parts = {}
  for _, name in ipairs { "received", "handled", "retried", "dead", "dropped", "deduped", "in_flight" } do
    parts[#parts + 1] = ("%s %d"):format(name, s[name])
  end
  return table.concat(parts, ", ")
end

function M.handled(app, pipeline, count)
  local got = app:handled(pipeline)
  return got == (count or 1), ("pipeline %q handled %d, expected %d\n  %s\nits dead letters:\n%s"):format(pipeline, got,
    count or 1, counters(app, pipeline), listed(letter_lines(app:dead(pipeline)), "none"))
end

local DEAD = {
  class = "mw-dead-class", reason = "mw-dead-reason", error = "mw-dead-last-error", attempts = "mw-dead-attempts",
  pipeline = "mw-dead-pipeline",
}

local function is_letter(letter, expected)
  for name, value in pairs(expected) do
    local got
    if DEAD[name] then got = letter.headers[DEAD[name]] else got = letter[name] end
    if name == "reason" or name == "error" then
      if not (got or ""):find(value, 1, true) then return false end
    elseif name == "attempts" then
      if tonumber(got) ~= value then return false end
    elseif not same(got, value) then
      return false
    end
  end
  return true
end

function M.dead(app, name, expected)
  local letters = app:dead(name)
  local tail = ("\nits dead letters:\n%s"):format(listed(letter_lines(letters), "none"))
  if type(expected) == "number" then
    return #letters == expected, ("%s has %d dead letters, expected %d%s"):format(name, #letters, expected, tail)
  elseif expected == nil then
    return #letters > 0, ("%s: a dead letter was expected%s"):format(name, tail)
  end
  for _, letter in ipairs(letters) do
    if is_letter(letter, expected) then return true, ("%s has such a dead letter: %s"):format(name, letter.id) end
  end
  return false, ("%s: no dead letter with %s%s"):format(name, text_of(expected), tail)
end

function M.retried(app, pipeline, delays, tolerance)
  local retries = app:retries(pipeline)
  local lines = {}
  local good
  if type(delays) == "number" then
    good = #retries == delays
  elseif delays == nil then
    good = #retries > 0
  else
    good = #retries == #delays
    for i, delay in ipairs(delays) do
      local got = retries[i] and retries[i].delay
      good = good and math.abs(got - delay) <= delay * (tolerance or JITTER) + 0.001
    end
  end
  for i, r in ipairs(retries) do
    lines[i] = ("%s attempt %d at %g s: %s, class %s; again after %g s"):format(r.id, r.attempt, r.at, text_of(r.error),
      r.class, r.delay)
  end
  return good, ("pipeline %q: expected %s\nits retries:\n%s"):format(pipeline, delays == nil and "a retry"
    or type(delays) == "number" and delays .. " retries"
    or ("retries after %s s (within %g %%)"):format(table.concat(delays, ", "), (tolerance or JITTER) * 100),
    listed(lines, "none"))
end

local function data_of(m)
  local ok, value = pcall(function() return m.data end)
  if ok then return value end
  return m.body
end

function M.published(app, channel, expected)
  local found, lines = {}, {}
  for i, m in ipairs(app:published(channel)) do
    found[i] = data_of(m)
    lines[i] = ("%s%s"):format(m.key and m.key .. ": " or "", text_of(found[i]))
  end
  local tail = ("\nthat is in channel %q:\n%s"):format(channel, listed(lines, "nothing"))
  if type(expected) == "number" then
    return #found == expected, ("%d messages were published, expected %d%s"):format(#found, expected, tail)
  elseif expected == nil then
    return #found > 0, "something was expected" .. tail
  elseif type(expected) == "table" and (expected[1] ~= nil or next(expected) == nil) then
    return same(found, expected), ("expected exactly %s%s"):format(text_of(expected), tail)
  end
  for _, data in ipairs(found) do
    if same(data, expected) then return true, ("%s is there%s"):format(text_of(expected), tail) end
  end
  return false, ("%s was expected%s"):format(text_of(expected), tail)
end

function M.settled(app)
  local left = app:left()
  return left == nil, left and "not settled: left are " .. left or "everything is settled"
end

local NAMES = { "handled", "dead", "retried", "published", "settled" }

--- Makes them known to busted's assert; nothing happens without it.
function M.register()
  local ok, luassert = pcall(require, "luassert")
  if not ok then return end
  for _, name in ipairs(NAMES) do
    luassert:register("assertion", name, function(state, arguments)
      local asked, good, text = pcall(M[name], unpack(arguments, 1, arguments.n))
      arguments.nofmt = { true, true, true, true } -- nobody wants to see a whole app
      if not asked then -- a pipeline that does not exist, say: it fails, however it was asked, at the spec's line
        rawset(state, "failure_message", (tostring(good):gsub("^%S+:%d+: ", "")))
        return not state.mod
      end
      rawset(state, "failure_message", (state.mod and "" or "not expected: ") .. text)
      return good
    end)
  end
end

return M
