-- moonwire dlq spec: a spec made of a dead letter fails now, and passes when the handler is mended.
local cli = require "spec.functional.cli.support"

local function spec_of(here, ...) return here:run { "dlq", "spec", "-b", "embedded:data", "orders.dead", ... } end

local BODY = '{"fail":true,\n "text":"]] and \\"quotes\\" – ü","b":[1,2]}'

describe("dlq spec", function()
  local here = cli.workdir()
  here:project()
  here:publish("orders", BODY, "--id", "f/1", "-H", "tenant=acme", "--key", "k\"1", "--type", "application/json")
  here:publish("orders", "reject \1\2\n\255\254 x", "--id", "r1")
  here:publish("orders", "reject me]", "--id", "r2")
  here:settle()

  it("writes a spec that fails until the handler is mended", function()
    local result = spec_of(here, "f/1")
    assert.equal(0, result.code, result.stderr)
    assert.equal("spec/dead_f_1_spec.lua\n", result.stdout)
    local text = here:read "spec/dead_f_1_spec.lua"
    assert.truthy(text:find("[=[" .. BODY .. "]=]", 1, true), text)
    assert.truthy(text:find('key = "k\\"1"', 1, true), text)
    assert.truthy(text:find('["tenant"] = "acme"', 1, true), text)
    assert.truthy(text:find("class transient", 1, true), text)
    assert.falsy(text:find("mw-dead", 1, true), text)

    local now = here:run { "test", "spec/dead_f_1_spec.lua" }
    assert.equal(1, now.code)
    assert.truthy(now.stdout:find("orders has 1 dead letters, expected 0", 1, true), now.stdout)
    assert.truthy(now.stdout:find("handler says no", 1, true), now.stdout)
    local mended = here:run({ "test", "spec/dead_f_1_spec.lua" }, { env = { MENDED = "yes" } })
    assert.equal(0, mended.code, mended.stdout .. mended.stderr)
  end)

  it("overwrites nothing", function()
    local result = spec_of(here, "f/1")
    assert.equal(1, result.code)
    assert.truthy(result.stderr:find("exists already", 1, true), result.stderr)
  end)

  it("carries bytes of every kind", function()
    for _, id in ipairs { "r1", "r2" } do
      local path = ("elsewhere/%s_spec.lua"):format(id)
      local result = spec_of(here, id, "--out", path)
      assert.equal(0, result.code, result.stderr)
      local now = here:run { "test", path }
      assert.equal(1, now.code)
      assert.truthy(now.stdout:find("class business", 1, true), now.stdout)
      assert.equal(0, here:run({ "test", path }, { env = { MENDED = "yes" } }).code)
    end
  end)

  it("names the project when it is written outside of it", function()
    local other = cli.workdir()
    local result = spec_of(here, "r2", "--out", other.path .. "/r2_spec.lua")
    assert.equal(0, result.code, result.stderr)
    assert.truthy(other:read("r2_spec.lua"):find(('dir = "%s"'):format(here.path), 1, true))
    assert.equal(0, other:run({ "test", "r2_spec.lua" }, { env = { MENDED = "yes" } }).code)
    local printed = spec_of(here, "r2", "--out", "-")
    assert.truthy(printed.stdout:find('describe("dead letter r2 of orders.dead"', 1, true))
  end)

  it("says what is wrong", function()
    local missing = spec_of(here, "nope")
    assert.equal(1, missing.code)
    assert.truthy(missing.stderr:find("not on orders.dead: nope", 1, true), missing.stderr)
    local other = cli.workdir()
    local nowhere = other:run { "dlq", "spec", "-b", "embedded:" .. here.path .. "/data", "orders.dead", "r2" }
    assert.equal(64, nowhere.code)
    assert.truthy(nowhere.stderr:find("there is no project in", 1, true), nowhere.stderr)
    here:publish("plain", "x", "--id", "p1")
    local plain = here:run { "dlq", "spec", "-b", "embedded:data", "plain", "p1" }
    assert.equal(1, plain.code)
    assert.truthy(plain.stderr:find("is not a dead letter of Moonwire", 1, true), plain.stderr)
  end)
end)
