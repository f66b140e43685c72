-- The numbers of `status` and `top`: sums over processes, and how they read.
local figures = require "moonwire.cli.process.figures"

local function pipeline(fields)
  local p = { name = "p", channel = "c", generation = 1, breaker = "closed", paused = false, draining = false }
  for name, value in pairs(fields) do p[name] = value end
  return p
end

local function answers(...)
  local list = {}
  for i, p in ipairs { ... } do list[i] = { pid = i, reply = { pipelines = { p } } } end
  return list
end

describe("figures", function()
  it("sum up what each process has, and count once what all see alike", function()
    local total = figures.totals(answers(
      pipeline { rate = 2.5, handled = 10, held = 1, delayed = 3, lag = 7, unsettled = 2, next_retry = 9, p99 = 0.1,
        oldest = 4 },
      pipeline { rate = 1.5, handled = 20, held = 2, delayed = 3, lag = 4, unsettled = 5, next_retry = 3, p99 = 0.3,
        generation = 2 }))[1]
    assert.equal(4, total.rate)
    assert.equal(30, total.handled)
    assert.equal(6, total.retrying)
    assert.equal(2, total.lag) -- nine are not settled, seven of them are somewhere in flight
    assert.equal(3, total.next_retry)
    assert.equal(0.3, total.p99)
    assert.equal(4, total.oldest)
    assert.equal(2, total.generation)
    assert.equal(2, total.processes)
  end)

  it("take the worst state of all, and say where it holds only in some", function()
    local total = figures.totals(answers(pipeline { paused = true }, pipeline { breaker = "open", breaker_left = 4 },
      pipeline { breaker = "half-open", held_keys = 1 }))[1]
    assert.equal("paused in 1 of 3, outage, tries in 4.0s, 1 held key", figures.state(total))
    assert.equal("ok", figures.state(figures.totals(answers(pipeline {}))[1]))
    assert.equal("draining", figures.state(pipeline { draining = true }))
  end)

  it("do without what the broker, or a process of another version, does not tell", function()
    local list = answers { name = "old", channel = "c", in_flight = 3, running = 1, handled = 5 }
    for _, each in ipairs { false, true } do
      local rows = each and figures.each(list) or figures.totals(list)
      local heads, cells = figures.table(rows, each)
      assert.equal(#heads, #cells[1])
    end
  end)

  it("read well", function()
    local times = { { 0, "0us" }, { 0.0000069, "6.9us" }, { 0.00042, "420us" }, { 0.0042, "4.2ms" }, { 0.042, "42ms" },
      { 4.2, "4.2s" }, { 75, "1m15s" }, { 3599.7, "1h00m" }, { 7260, "2h01m" }, { 90000, "1d01h" } }
    for _, case in ipairs(times) do assert.equal(case[2], figures.seconds(case[1])) end
    assert.equal("-", figures.seconds(nil))
    for n, text in pairs { [0] = "0B", [999] = "999B", [1900] = "1.9kB", [64e6] = "64MB", [5e9] = "5.0GB" } do
      assert.equal(text, figures.bytes(n))
    end
  end)

  it("leave columns out on a narrow terminal, never the name and the state", function()
    local list = figures.totals(answers(pipeline {}))
    local all = figures.table(list)
    local few = figures.table(list, false, 60)
    assert(#few < #all)
    assert.equal("PIPELINE", few[1])
    assert.equal("STATE", few[#few])
    assert.equal(#all, #figures.table(list, false, 500))
  end)
end)

describe("the lines of the control socket", function()
  it("carry any text", function()
    local answers_ = require "moonwire.cli.process.answers"
    local asked
    local app = {
      explain = function(_, text) asked = text return {} end,
      generation = function() return 1 end, trial = function() end,
    }
    local answer = answers_.of(app, {})
    for _, text in ipairs { "plain", "", " ", "a b", "%20", "\n\r\t", "\0", "\255\254", "=x =y", "\195\164" } do
      local line = answers_.line("explain", text)
      assert.is_nil(line:find "[\n%z]")
      assert(answer(line):find('"ok":true', 1, true))
      assert.equal(text, asked)
    end
    assert(answer("explain"):find('"ok":false', 1, true))
    assert(answer("\255"):find('"ok":false', 1, true))
  end)
end)
