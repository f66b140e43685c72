-- moonwire explain: one sentence for each thing that keeps a message or a key where it is.
local cli = require "spec.functional.cli.support"
local insight = require "spec.functional.insight_support"

describe("explain", function()
  local app
  before_each(function() app = insight.start() end)
  after_each(function() app:stop() end)

  local function says(text, ...)
    for _, part in ipairs { ... } do assert(text:find(part), ("%q is not in:\n%s"):format(part, text)) end
  end

  it("tells of a key that a retry holds, and what waits behind it", function()
    app:publish("orders", "fail", "--key", "ann", "--id", "a1")
    app:publish("orders", "0", "--key", "ann", "--id", "a2")
    app:publish("orders", "0", "--key", "ann", "--id", "a3")
    app:until_status("orders", "held", function(p) return p.held == 1 and p.waiting == 2 end)
    local text, code = app:explain "ann"
    assert.equal(0, code)
    says(text, "^Key ann is in pipeline orders %(process %d+%), lane %x+%.\n",
      "\nMessage a1 holds it: it failed and keeps its place; attempt 2 follows in [23]%d%.%ds%.",
      "Error: [^\n]*no such customer\n",
      "\n2 messages wait behind it: a2, a3%.\n$")
    says(app:explain "a1", "^Message a1 is in pipeline orders", "attempt 2 follows in", "2 messages wait behind it")
    says(app:explain "a3", "^Message a3 is in pipeline orders %(process %d+%): it waits in its lane%.\n",
      "\n2 messages are in front of it in lane %x+; the first is a1: it failed")
    says(app:explain("ann", "--pipeline", "orders"), "Message a1 holds it")
    local p = app:pipeline "orders"
    assert(p.next_retry > 15 and p.next_retry <= 30, p.next_retry)
    assert.equal(1, p.retrying)
  end)

  it("names only the first few of many", function()
    app:publish("orders", "fail", "--key", "ann", "--id", "first")
    local lines = {}
    for i = 1, 100 do lines[i] = "0" end
    local sent = app.work:run({ "publish", "-b", "embedded:data", "orders", "--lines", "--key", "ann" },
      { stdin = table.concat(lines, "\n") .. "\n" })
    assert.equal(0, sent.code, sent.stderr)
    app:until_status("orders", "waiting", function(p) return p.waiting == 100 end)
    says(app:explain "ann", "100 messages wait behind it: ", " and 90 more%.")
  end)

  it("tells of a key that is held since a dead letter, and where its messages are", function()
    app:publish("orders", "reject", "--key", "bob", "--id", "b1")
    app:publish("orders", "0", "--key", "bob", "--id", "b2")
    app:until_status("orders", "parked", function(p) return p.parked_now == 1 and p.held_keys == 1 end)
    local text = app:explain "bob"
    says(text, "^Nothing of key bob is in pipeline orders", "An earlier message of this key is a dead letter",
      "dlq ls orders%.dead %-%-key bob", "Message b2 is on channel orders: it is parked until its key goes on%.",
      "Message b1 is on channel orders%.dead: it is a dead letter %(rejected%): not wanted")
    says(app:explain "b2", "it is parked until its key goes on")
    says(app:explain "b1", "No process has b1 in flight", "it is a dead letter")
    assert(app:run("status").stdout:find("1 held key", 1, true))
  end)

  it("tells of what runs, of what is delayed at the broker, and of what is nowhere", function()
    app:publish("orders", "1.5", "--key", "cat", "--id", "c1")
    app:publish("orders", "0", "--id", "later", "--delay", "60")
    app:publish("loose", "fail", "--id", "d1", "--key", "dan")
    app:until_status("loose", "delayed", function(p) return p.retrying == 1 and p.in_flight == 0 end)
    says(app:explain "c1", "Message c1 is in pipeline orders [^:]*: a handler has had it for [%d.]+m?s %(attempt 1%)")
    says(app:explain "later", "Message later is on channel orders: it is delayed until 20")
    says(app:explain "dan", "Message d1 is on channel loose: it is delayed until 20")
    local next_retry = app:pipeline "loose".next_retry
    assert(next_retry > 15 and next_retry <= 30, next_retry)
    local text, code = app:explain "nothing of the kind"
    assert.equal(1, code)
    says(text, "nothing of the kind is in no process, as a key or an id%.", "It was settled, or never published")
    assert.equal(64, app:run("explain", "").code)
  end)

  it("tells of an outage, and of keys without lanes", function()
    app:publish("loose", "2", "--id", "e1", "--key", "eve")
    app:publish("orders", "outage", "--id", "f1", "--key", "fay")
    local p = app:until_status("orders", "open", function(p) return p.breaker == "open" and p.held == 1 end)
    assert(p.breaker_left > 0 and p.breaker_left < 10, p.breaker_left)
    says(app:explain "fay", "Pipeline orders waits out an outage: it tries one message in", "the bank is closed")
    says(app:explain "eve", "1 message of key eve in pipeline loose [^\n]*where keys make no lanes:\n",
      "\nMessage e1: a handler has")
    assert(app:run("status").stdout:find("outage, tries in", 1, true))
  end)

  it("takes any key, and tells it to machines", function()
    local key = 'a b%20"\n\195\164;='
    app:publish("orders", "fail", "--key", key, "--id", "odd one")
    app:until_status("orders", "held", function(p) return p.held == 1 end)
    says(app:explain(key), "^Key a b%%20\"\\n\195\164;= is in", "Message odd one holds it")
    local result = app:run("explain", key, "--json")
    local object = cli.objects(result.stdout)[1]
    assert.equal(key, object.what)
    assert.is_true(object.found)
    assert.equal(2, object.pipelines[1].lane.holder.attempt)
    assert.equal("held", object.pipelines[1].lane.holder.state)
    assert.equal("odd one", object.pipelines[1].lane.holder.id)
    assert.is_nil(object.pipelines[1].address)
    app:publish("orders", "fail", "--key", "\255\254", "--id", "raw")
    app:until_status("orders", "held", function(p) return p.held == 2 end)
    says(app:explain "\255\254", "^Key \\xff\\xfe is in pipeline orders", "Message raw holds it")
    assert.equal(0, app:run("explain", "\255\254", "--json").code)
  end)

  it("refuses what cannot be: a pipeline that is not there, a text too long", function()
    local _, code, err = app:explain("ann", "--pipeline", "nope")
    assert.equal(1, code)
    says(err, 'there is no pipeline "nope"')
    _, code, err = app:explain(("x"):rep(5000))
    assert.equal(64, code)
    says(err, "too long")
  end)
end)
