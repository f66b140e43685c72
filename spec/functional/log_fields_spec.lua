-- Log lines of handlers: no name stands twice in one of them.
local cli = require "spec.functional.cli.support"
local json = require "moonwire.json"

-- The lines of a project with this handler, as texts and as tables.
local function lines_of(code, settings)
  local here = cli.workdir()
  here:write("moonwire.lua", ([[
    local mw = require "moonwire"
    mw.pipeline "p" { from = mw.connect "embedded:data":channel "orders", %s handler = function(msg) %s end }
  ]]):format(settings or "", code))
  here:publish("orders", "x", "--id", "m1")
  local result = here:run { "run", "--once", "--log", "json" }
  assert.equal(0, result.code, result.stderr)
  local by_text = {}
  for line in result.stderr:gmatch "[^\n]+" do
    local seen = {}
    for name in line:gmatch '[{,]"([%w_]+)":' do
      assert.is_nil(seen[name], line)
      seen[name] = true
    end
    local fields = json.decode(line)
    by_text[fields.msg] = fields
  end
  return by_text
end

describe("the line about an outage", function()
  it("says which message found it, and what it said", function()
    local line = lines_of([[if mw.shared.incr("n") == 1 then error(mw.error("outage", "stock is down", 0.05)) end]],
      "retry = { classes = { outage = { pause = 0.05 } } },")["source paused"]
    assert.same({ "m1", "stock is down", "outage" }, { line.id, line.error, line.class })
  end)
end)

describe("a field of a log line", function()
  it("that the line has already is left out when it says the same, and renamed when not", function()
    local code = [[mw.log.info("order", { id = msg.id, attempt = 7, pipeline = "other", worker = 3, n = 1 })]]
    local line = lines_of(code).order
    assert.same({ "m1", 1, "p", 1, 1 }, { line.id, line.attempt, line.pipeline, line.worker, line.n })
    assert.same({ nil, 7, "other", 3 }, { line.field_id, line.field_attempt, line.field_pipeline, line.field_worker })
  end)

  it("stands there once in our own lines too", function()
    local line = lines_of [[return "odd"]]["the handler returned a value that means nothing"]
    assert.same({ "p", "m1" }, { line.pipeline, line.id })
  end)
end)
