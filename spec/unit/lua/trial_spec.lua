-- Is new code worse? The test against values that are known, and the rule at its edges.
local trial = require "moonwire.cli.reload.trial"

local function near(expected, value) assert.is_true(math.abs(expected - value) < 1e-9 + expected * 1e-6, value) end

local function pipeline(messages, failures, old_messages, old_failures)
  return { name = "p", messages = messages, failures = failures, old_messages = old_messages,
    old_failures = old_failures }
end

describe("the chance of so many failures", function()
  it("is that of Fisher's exact test", function()
    near(1, trial.chance(0, 0, 0, 0))
    near(1, trial.chance(10, 0, 10, 5))
    near(0.5, trial.chance(1, 1, 1, 0))
    near(1 / 6, trial.chance(2, 2, 2, 0))
    near(0.24285714285714285, trial.chance(4, 3, 4, 1)) -- the lady tasting tea
    near(25 / 525, trial.chance(25, 1, 500, 0))
  end)

  it("adds up the terms, however they are counted", function()
    local function choose(n, k)
      local product = 1
      for i = 1, k do product = product * (n - k + i) / i end
      return product
    end
    for _, c in ipairs { { 10, 3, 20, 2 }, { 30, 9, 40, 3 }, { 5, 5, 60, 7 }, { 25, 0, 25, 3 } } do
      local n, f, m, g = unpack(c)
      local sum = 0
      for k = f, math.min(n, f + g) do
        if f + g - k <= m then sum = sum + choose(n, k) * choose(m, f + g - k) / choose(n + m, f + g) end
      end
      near(sum, trial.chance(n, f, m, g))
    end
  end)

  it("stands large numbers", function()
    assert.is_true(trial.chance(1e6, 1e4, 1e7, 1e5) > 0.4)
    assert.is_true(trial.chance(1e6, 1.1e4, 1e7, 1e5) < 1e-12)
    assert.is_true(trial.chance(5e5, 0, 1e7, 1e6) == 1)
  end)
end)

describe("a trial", function()
  it("is ended at once by what is beyond doubt only", function()
    assert.equal("rollback", (trial.judge({ pipeline(10, 8, 190, 1) }, false)))
    assert.is_nil((trial.judge({ pipeline(1, 1, 19, 0) }, false)))
    assert.is_nil((trial.judge({ pipeline(20, 2, 380, 4) }, false)))
  end)

  it("is decided at its end", function()
    assert.equal("promote", (trial.judge({ pipeline(100, 0, 1900, 0) }, true)))
    assert.equal("promote", (trial.judge({ pipeline(100, 5, 1900, 95) }, true)))
    assert.equal("promote", (trial.judge({ pipeline(100, 1, 1900, 9) }, true)))
    assert.equal("rollback", (trial.judge({ pipeline(100, 10, 1900, 95) }, true)))
    assert.equal("promote", (trial.judge({ pipeline(100, 1, 1900, 900) }, true)))
  end)

  it("needs some messages", function()
    local verdict, why = trial.judge({ pipeline(19, 0, 400, 0) }, true)
    assert.equal("rollback", verdict)
    assert.truthy(why:find("only 19 messages", 1, true), why)
    assert.equal("promote", (trial.judge({ pipeline(12, 0, 400, 0), pipeline(8, 0, 10, 0) }, true)))
    assert.equal("promote", (trial.judge({ pipeline(0, 0, 0, 0) }, true, 0)))
  end)

  it("looks at each pipeline: a small one does not hide behind a large one", function()
    local verdict, why = trial.judge({ pipeline(5000, 50, 95000, 950), pipeline(6, 6, 100, 0) }, false)
    assert.equal("rollback", verdict)
    assert.truthy(why:find("new code: 6 of 6 failed (100%); old code: 0 of 100 failed (0%)", 1, true), why)
  end)

  it("does not blame equal code often, asked again and again", function()
    math.randomseed(7)
    local blamed, runs = 0, 300
    for _ = 1, runs do
      local p = pipeline(0, 0, 0, 0)
      for step = 1, 100 do
        for _ = 1, 20 do
          local failed = math.random() < 0.05 and 1 or 0
          if math.random() < 0.05 then
            p.messages, p.failures = p.messages + 1, p.failures + failed
          else
            p.old_messages, p.old_failures = p.old_messages + 1, p.old_failures + failed
          end
        end
        if step < 100 and trial.judge({ p }, false) then
          blamed = blamed + 1
          break
        end
      end
    end
    assert.is_true(blamed / runs < 0.02, blamed)
  end)
end)
