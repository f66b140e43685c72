-- How long until the next attempt: every kind, its bounds, and numbers that no sane policy has.
local ffi = require "ffi"
local C = require "spec.unit.core.declare"

local EXPONENTIAL, FIXED, LIST = 0, 1, 2

local function backoff(fields)
  local b = ffi.new "mw_backoff"
  b.kind, b.base, b.cap, b.jitter = fields.kind, fields.base or 0, fields.cap or 60, fields.jitter or 0
  for i, seconds in ipairs(fields.steps or {}) do b.steps[i - 1] = seconds end
  b.step_count = fields.steps and #fields.steps or 0
  return b
end

local function delay(b, attempt, random) return tonumber(C.mw_backoff_delay(b, attempt, random or 0.5)) end

describe("mw_backoff_delay", function()
  it("doubles up to the cap", function()
    local b = backoff { kind = EXPONENTIAL, base = 1, cap = 60 }
    for attempt, expected in ipairs { 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000 } do
      assert.equal(expected, delay(b, attempt), "attempt " .. attempt)
    end
    assert.equal(1000, delay(b, 0))
  end)

  it("stays at the cap for attempts beyond all measure", function()
    for _, base in ipairs { 0.001, 1, 59 } do
      local b = backoff { kind = EXPONENTIAL, base = base, cap = 60 }
      for _, attempt in ipairs { 33, 60, 61, 62, 64, 65, 1000, 2 ^ 31, 2 ^ 32 - 1 } do
        assert.equal(60000, delay(b, attempt), ("base %g, attempt %.0f"):format(base, attempt))
      end
    end
    assert.equal(0, delay(backoff { kind = EXPONENTIAL, base = 0 }, 2 ^ 32 - 1))
  end)

  it("is fixed when it is fixed, and never over the cap", function()
    local b = backoff { kind = FIXED, base = 0.25 }
    for _, attempt in ipairs { 0, 1, 2, 100, 2 ^ 32 - 1 } do assert.equal(250, delay(b, attempt)) end
    assert.equal(2000, delay(backoff { kind = FIXED, base = 5, cap = 2 }, 1))
  end)

  it("goes through a list and repeats its last step; the cap is not for lists", function()
    local b = backoff { kind = LIST, steps = { 1, 0.5, 120 }, cap = 60 }
    for attempt, expected in ipairs { 1000, 500, 120000, 120000, 120000 } do
      assert.equal(expected, delay(b, attempt))
    end
    assert.equal(120000, delay(b, 2 ^ 32 - 1))
    local full = {}
    for i = 1, 32 do full[i] = i end
    assert.equal(32000, delay(backoff { kind = LIST, steps = full }, 32))
    assert.equal(32000, delay(backoff { kind = LIST, steps = full }, 33))
  end)

  it("spreads by the jitter to both sides, and no further", function()
    math.randomseed(42)
    for _, kind in ipairs { EXPONENTIAL, FIXED, LIST } do
      for _, jitter in ipairs { 0, 0.2, 1 } do
        local b = backoff { kind = kind, base = 2, cap = 60, jitter = jitter, steps = { 2 } }
        local least, most = math.huge, 0
        for _ = 1, 2000 do
          local d = delay(b, 1, math.random())
          least, most = math.min(least, d), math.max(most, d)
        end
        assert.is_true(least >= 2000 * (1 - jitter) and most <= 2000 * (1 + jitter), ("%g..%g"):format(least, most))
        local spread = most - least
        assert.is_true(spread >= 2000 * jitter * 1.9, ("a jitter of %g spreads over %g ms only"):format(jitter, spread))
        assert.equal(2000, delay(b, 1, 0.5))
        assert.equal(2000 * (1 - jitter), delay(b, 1, 0))
      end
    end
  end)

  it("is never negative", function()
    assert.equal(0, delay(backoff { kind = FIXED, base = 0, jitter = 1 }, 1, 0))
    assert.equal(0, delay(backoff { kind = LIST, steps = { 0 }, jitter = 1 }, 1, 0.999))
  end)
end)
