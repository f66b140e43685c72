-- `retry = { … }`: what holds by default, what classes take over, what ends up in the C struct, what is refused.
local ffi = require "ffi"
require "moonwire.internal.cdef"
local policy = require "moonwire.internal.config.policy"

local KINDS = { [0] = "retry", "dead", "outage" }
local BACKOFFS = { [0] = "exponential", "fixed", "list" }

local function prepare(retry)
  local problems = {}
  local fill = policy.prepare(retry, { file = "f.lua", line = 1, what = "p" }, problems)
  table.sort(problems)
  return fill, problems
end

local function policies(retry)
  local fill, problems = prepare(retry)
  assert.same({}, problems)
  local spec, found = ffi.new "mw_pipeline_spec", {}
  fill(spec)
  for i = 0, spec.policy_count - 1 do
    local p = spec.policies[i]
    local b, name = p.backoff, ffi.string(p.name)
    local steps = {}
    for k = 0, b.step_count - 1 do steps[k + 1] = b.steps[k] end
    found[name] = {
      kind = KINDS[tonumber(p.kind)], attempts = p.attempts, max_age = tonumber(p.max_age_ms) / 1000,
      backoff = BACKOFFS[tonumber(b.kind)], base = b.base, cap = b.cap, jitter = b.jitter, steps = steps,
    }
    assert.equal(i == 0, name == "", "the default comes first")
  end
  return found
end

describe("policy", function()
  it("has sane defaults", function()
    local found = policies(nil)
    assert.same({ kind = "retry", attempts = 5, max_age = 0, backoff = "exponential", base = 1, cap = 60,
      jitter = 0.2, steps = {} },
      found[""])
    assert.equal("dead", found.invalid.kind)
    assert.equal("outage", found.outage.kind)
    assert.equal(5, found.outage.base)
    assert.equal(60, found.outage.cap)
    assert.same(found, policies {})
  end)

  it("takes every setting", function()
    local found = policies { attempts = 7, backoff = "fixed", base = 0.5, cap = 3, jitter = 0, max_age = 60 }
    assert.same({ kind = "retry", attempts = 7, max_age = 60, backoff = "fixed", base = 0.5, cap = 3, jitter = 0,
      steps = {} }, found[""])
  end)

  it("counts the attempts of a list, unless they are said", function()
    assert.equal(4, policies({ backoff = { 1, 2, 4 } })[""].attempts)
    assert.same({ 1, 2, 4 }, policies({ backoff = { 1, 2, 4 } })[""].steps)
    assert.equal(9, policies({ backoff = { 1, 2, 4 }, attempts = 9 })[""].attempts)
    local long = {}
    for i = 1, 32 do long[i] = i end
    assert.equal(33, policies({ backoff = long })[""].attempts)
  end)

  it("lets classes inherit what they do not say", function()
    local found = policies { attempts = 10, base = 2, cap = 9, jitter = 0.1, max_age = 50, classes = {
      plain = {}, fixed = { backoff = "fixed" }, quick = { base = 0.1, attempts = 3 }, list = { backoff = { 5, 6 } },
      young = { max_age = 1 }, gone = "dead", down = { pause = 30 }, invalid = { attempts = 2 },
        slow = { pause = 3, cap = 100 },
    } }
    local function brief(p) return { p.kind, p.attempts, p.backoff, p.base, p.cap, p.jitter, p.max_age } end
    assert.same({ "retry", 10, "exponential", 2, 9, 0.1, 50 }, brief(found.plain))
    assert.same({ "retry", 10, "fixed", 2, 9, 0.1, 50 }, brief(found.fixed))
    assert.same({ "retry", 3, "exponential", 0.1, 9, 0.1, 50 }, brief(found.quick))
    assert.same({ "retry", 3, "list", 2, 9, 0.1, 50 }, brief(found.list))
    assert.equal(1, found.young.max_age)
    assert.equal("dead", found.gone.kind)
    assert.same({ "outage", 30, 30 }, { found.down.kind, found.down.base,
      found.down.cap }) -- the cap is never below the pause
    assert.same({ 3, 100 }, { found.slow.base, found.slow.cap })
    assert.equal("retry", found.invalid.kind) -- what is built in can be changed
    assert.equal(2, found.invalid.attempts)
    local of_list = policies { backoff = { 1, 2 }, classes = { x = { jitter = 0 }, y = { backoff = "exponential" } } }
    assert.same({ "list", 3 }, { of_list.x.backoff, of_list.x.attempts })
    assert.same({ "exponential", 5 }, { of_list.y.backoff, of_list.y.attempts })
  end)

  local too_long = {}
  for i = 1, 33 do too_long[i] = i end
  for text, retry in pairs {
    ["retry.attempts must be a whole number from 1 to 1000000, got 0"] = { attempts = 0 },
    ['unknown field "retry.atempts"; did you mean "attempts"?'] = { atempts = 1 },
    ["retry.base must be seconds, 0 or more, got -1"] = { base = -1 },
    ["retry.jitter must be a number from 0 to 1, got 2"] = { jitter = 2 },
    ['retry.backoff must be "exponential", "fixed" or a list such as {1, 2, 4}, got linear'] = { backoff = "linear" },
    ["retry.backoff must list 1 to 32 delays in seconds"] = { backoff = {} },
    ["retry.backoff must list 1 to 32 delays in seconds "] = { backoff = too_long },
    ["retry.backoff must be a list of delays without holes and names, such as {1, 2, 4}"] = { backoff = { 1, nil, 3 } },
    ["retry.backoff must be a list of delays without holes and names, such as {1, 2, 4} "] = { backoff = { 1, x = 3 } },
    ["retry.backoff must list seconds, 0 or more; item 2 is 2"] = { backoff = { 1, "2" } },
    ["retry.backoff must list seconds, 0 or more; item 1 is -1"] = { backoff = { -1 } },
    ["retry.backoff must list seconds, 0 or more; item 1 is nan"] = { backoff = { 0 / 0 } },
    ['retry.classes.x must be "dead" or a table, got alive'] = { classes = { x = "alive" } },
    ['unknown field "retry.classes.x.puase"; did you mean "pause"?'] = { classes = { x = { puase = 1 } } },
    ["retry.classes.x.pause must be seconds, 0.001 or more, got 0"] = { classes = { x = { pause = 0 } } },
    ["retry.classes.x.backoff must list seconds, 0 or more; item 1 is true"] =
      { classes = { x = { backoff = { true } } } },
    ["a class is named by a string of 1 to 31 characters"] = { classes = { [("x"):rep(32)] = "dead" } },
    ["a class is named by a string of 1 to 31 characters "] = { classes = { "dead" } },
  } do
    it("refuses: " .. text, function()
      local _, problems = prepare(retry)
      assert.same({ "f.lua:1: p: " .. text:gsub(" $", "") }, problems)
    end)
  end

  it("takes a name of 31 characters and 13 classes besides the built-in ones", function()
    local classes = { [("x"):rep(31)] = "dead" }
    for i = 1, 12 do classes["c" .. i] = {} end
    assert.equal("dead", policies({ classes = classes })[("x"):rep(31)].kind)
    classes.one_more = {}
    assert.same({ "f.lua:1: p: more than 15 classes in retry.classes" }, select(2, prepare { classes = classes }))
  end)
end)
