-- Settings against rules: every kind, what is unknown or missing, and the line that is to blame.
local fields = require "moonwire.internal.config.fields"

local RULES = {
  name = { kind = "string" }, on = { kind = "boolean" }, count = { kind = "integer", min = 1, max = 10, default = 3 },
  wait = { kind = "seconds", default = 1 }, lease = { kind = "seconds", min = 0.5 },
    share = { kind = "number", min = 0, max = 1 },
  mode = { kind = "choice", of = { "fast", "slow" } }, extra = { kind = "table" }, free = { kind = "any" },
}

local function check(given, rules, prefix, source)
  local problems = {}
  local where = { file = "f.lua", line = 2, what = "thing", source = source }
  local copy = fields.check(given, rules or RULES, where, problems, prefix)
  table.sort(problems)
  return copy, problems
end

describe("fields.check", function()
  it("copies what is right and fills defaults", function()
    local extra = {}
    local given = { name = "n", on = false, wait = 0, lease = 0.5, share = 1, mode = "slow", extra = extra,
      free = print }
    local copy, problems = check(given)
    assert.same({}, problems)
    assert.same({ name = "n", on = false, count = 3, wait = 0, lease = 0.5, share = 1, mode = "slow", extra = extra,
      free = print }, copy)
    assert.not_equal(given, copy)
  end)

  local nan = 0 / 0
  for _, case in ipairs {
    { "name", "", 'a string that is not empty, got ""' }, { "name", 5, "a string that is not empty, got 5" },
    { "on", "yes", 'true or false, got "yes"' }, { "on", 1, "true or false, got 1" },
    { "count", 0, "a whole number from 1 to 10, got 0" }, { "count", 11, "a whole number from 1 to 10, got 11" },
    { "count", 1.5, "a whole number from 1 to 10, got 1.5" }, { "count", "5", 'a whole number from 1 to 10, got "5"' },
    { "count", nan, "a whole number from 1 to 10, got" }, { "count", math.huge,
      "a whole number from 1 to 10, got inf" },
    { "wait", -1, "seconds, 0 or more, got -1" }, { "wait", "1s", 'seconds, 0 or more, got "1s"' },
    { "wait", nan, "seconds, 0 or more, got" }, { "wait", math.huge,
      "seconds, 0 or more and at most 3.15e9 (a hundred years), got inf" },
    { "lease", 0.4, "seconds, 0.5 or more, got 0.4" }, { "share", 1.1, "a number from 0 to 1, got 1.1" },
    { "share", nan, "a number from 0 to 1, got" }, { "share", {}, "a number from 0 to 1, got a table" },
    { "mode", "fsat", 'one of "fast", "slow", got "fsat"; did you mean "fast"?' },
    { "mode", "other", 'one of "fast", "slow", got "other"' }, { "mode", true, 'one of "fast", "slow", got true' },
    { "extra", "x", 'a table, got "x"' }, { "extra", print, "a table, got a function" },
  } do
    it(("refuses %s = %s"):format(case[1], tostring(case[2])), function()
      local copy, problems = check { [case[1]] = case[2] }
      assert.equal(1, #problems)
      assert.matches("f.lua:2: thing: " .. case[1] .. " must be " .. case[3], problems[1], 1, true)
      assert.equal((check {})[case[1]], copy[case[1]]) -- the default, so that the rest can still be checked
    end)
  end

  it("names the nearest for an unknown field, or all that are known", function()
    local _, problems = check { cuont = 1, [7] = 1, quux = 1 }
    assert.same({
      'f.lua:2: thing: unknown field "7"; known are count, extra, free, lease, mode, name, on, share, wait',
      'f.lua:2: thing: unknown field "cuont"; did you mean "count"?',
      'f.lua:2: thing: unknown field "quux"; known are count, extra, free, lease, mode, name, on, share, wait',
    }, problems)
    assert.same({ 'f.lua:2: thing: unknown field "retry.bsae"; did you mean "base"?' },
      select(2, check({ bsae = 1 }, { base = { kind = "any" } }, "retry")))
  end)

  it("says what is missing", function()
    local rules = { from = { kind = "any", required = "name the channel" } }
    assert.same({ "f.lua:2: thing: from is missing: name the channel" }, select(2, check({}, rules)))
    assert.same({ "f.lua:2: thing: a.from is missing: name the channel" }, select(2, check({}, rules, "a")))
    assert.same({}, select(2, check({ from = false }, rules)))
  end)
end)

describe("fields.line_of", function()
  local SOURCE = table.concat({
    "-- count = 1", -- 1
    'mw.pipeline "a" {', -- 2
    "  recount = 1, count == 2,", -- 3
    "  count = 5, on=true,", -- 4
    "  retry = {", -- 5
    "    base   = 1,", -- 6
    "  },", -- 7
    "}", -- 8
    "count = 9", -- 9
    "late = 1", -- 10
  }, "\n")

  it("finds the line in the call, by the whole name", function()
    for field, line in pairs { count = 4, on = 4, base = 6, retry = 5, recount = 3 } do
      assert.equal(line, fields.line_of(SOURCE, 2, field), field)
    end
  end)

  it("is the call's own when the field is not there, or set after it", function()
    assert.equal(2, fields.line_of(SOURCE, 2, "late"))
    assert.equal(2, fields.line_of(SOURCE, 2, "nothing"))
    assert.equal(2, fields.line_of(SOURCE, 2, "%d+"))
    assert.equal(7, fields.line_of(nil, 7, "count"))
    assert.equal(9, fields.line_of(SOURCE, 9, "count"))
  end)
end)
