-- mw.shared and mw.metrics.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local metrics = require "moonwire.metrics"
local shared = require "moonwire.shared"

local function refuses(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(text, err, 1, true)
end

describe("mw.shared", function()
  it("keeps strings, numbers and booleans; nil removes", function()
    for _, value in ipairs { "x", "", "a\0b", 0, -1.5, true, false } do
      shared.set("k", value)
      assert.equal(value, shared.get "k")
    end
    shared.set("k", nil)
    assert.is_nil(shared.get "k")
    assert.is_nil(shared.get "never")
    shared.set("k", 1)
    assert.is_true(shared.delete "k")
    assert.is_false(shared.delete "k")
  end)

  it("counts", function()
    shared.delete "n"
    assert.same({ 1, 2, 4.5, 3.5 }, { shared.incr "n", shared.incr "n", shared.incr("n", 2.5), shared.incr("n", -1) })
    assert.equal(105, shared.incr("from", 5, 100))
    shared.delete "from"
  end)

  it("forgets after the time to live", function()
    shared.set("t", "v", 0.03)
    shared.set("long", "v", 3.2e9)
    assert.equal("v", shared.get "t")
    for _ = 1, 10 do core.step(5) end
    assert.is_nil(shared.get "t")
    assert.equal("v", shared.get "long")
    shared.delete "long"
  end)

  it("refuses what it cannot keep", function()
    refuses("mw.shared: the key must be a string, got number", shared.get, 1)
    refuses("mw.shared: the key must be a string, got nil", shared.set, nil, 1)
    refuses("mw.shared: the key must be a string", shared.incr, {})
    refuses("mw.shared: the key must be a string", shared.delete, 1)
    refuses("mw.shared.set: the value must be a string, a number, a boolean or nil, got table", shared.set, "k", {})
    for _, ttl in ipairs { 0, -1, 0 / 0, math.huge, "1" } do
      refuses("mw.shared.set: ttl must be seconds above 0", shared.set, "k", 1, ttl)
    end
    refuses("mw.shared.incr: by and start must be numbers", shared.incr, "k", "1")
    refuses("mw.shared.incr: by and start must be numbers", shared.incr, "k", 1, {})
  end)
end)

describe("mw.metrics", function()
  it("counts and gauges, by labels in any order", function()
    metrics.count "spec_a"
    metrics.count("spec_a", 2.5)
    metrics.count("spec_a", 0)
    metrics.count("spec_b", 1, { x = 1, y = "two" })
    metrics.count("spec_b", 1, { y = "two", x = 1 })
    metrics.gauge("spec_g", -3)
    metrics.gauge("spec_g", 7)
    metrics.count("spec_q", 1, { v = 'a"b\\c\nd' })
    local all = metrics.all()
    assert.same({ 3.5, 2, 7, 1 }, { all.spec_a, all['spec_b{x="1",y="two"}'], all.spec_g,
      all['spec_q{v="a\\"b\\\\c\\nd"}'] })
    assert.equal("number", type(all.spec_a))
  end)

  it("refuses names, labels and numbers that are none", function()
    for _, name in ipairs { "", "1a", "a b", "a-b", 5,
      "a\n" } do refuses("is not a metric name: letters, digits and _", metrics.count, name) end
    refuses("mw.metrics: labels must be a table", metrics.count, "a", 1, "x")
    for _, label in ipairs { "a b", "", 'x="1",y' } do
      refuses("is not a label: letters, digits and _", metrics.count, "spec_a", 1, { [label] = 1 })
    end
    refuses('"1" is not a label', metrics.gauge, "spec_a", 1, { "x" })
    for _, by in ipairs { -1, 0 / 0, math.huge } do
      refuses("mw.metrics.count: a counter only grows, by a number of 0 or more", metrics.count, "spec_a", by)
    end
    refuses("mw.metrics.count: it is told a number to add, got a string", metrics.count, "spec_a", "1")
    refuses("mw.metrics: label a must be a text or a number, got a table", metrics.count, "spec_a", 1, { a = {} })
    refuses("mw.metrics.gauge: the value must be a number", metrics.gauge, "spec_a", "1")
    refuses("mw.metrics.gauge: the value must be a number", metrics.gauge, "spec_a")
  end)

  it("keeps 1000 series and goes on counting those", function()
    local dict = C.mw_dict_named "metrics"
    for i = 1, 1500 do metrics.count("spec_many", 1, { customer = i }) end
    assert.equal(1000, C.mw_dict_count(dict))
    local before = metrics.all()['spec_many{customer="1"}']
    metrics.count("spec_many", 1, { customer = 1 })
    assert.equal(before + 1, metrics.all()['spec_many{customer="1"}'])
    assert.is_nil(metrics.all()['spec_many{customer="1500"}'])
    for i = 1, 1500 do
      local key = ('spec_many{customer="%d"}'):format(i)
      C.mw_dict_remove(dict, key, #key)
    end
  end)
end)
