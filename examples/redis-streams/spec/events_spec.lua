local testing = require "moonwire.testing"

describe("events", function()
  local app
  before_each(function()
    app = testing.start()
    app:redis { HINCRBY = 1 }
  end)
  after_each(function() app:stop() end)

  it("welcomes a new user, once", function()
    app:publish("events", { type = "user.created", user = "ann", email = "ann@example.org" }, { id = "e1" })
    app:publish("events", { type = "user.created", user = "ann", email = "ann@example.org" }, { id = "e1" })
    app:settle()
    assert.equal(1, app:handled "events")
    assert.equal(1, app:handled "welcome")
  end)

  it("counts how often a user was seen", function()
    app:publish("events", { type = "user.seen", user = "bob" })
    app:settle()
    assert.same({ "HINCRBY", "seen", "bob", "1" }, app:commands()[1])
  end)

  it("tries a failing event three times, then buries it; other users do not wait", function()
    app:publish("events", { type = "user.created", user = "mallory" }, { id = "bad" })
    app:publish("events", { type = "user.seen", user = "bob" }, { id = "good" })
    app:settle()
    assert.equal(2, #app:retries "events")
    local letter = app:messages("events.dead")[1]
    assert.equal("bad", letter.id)
    assert.equal("3", letter.headers["mw-dead-attempts"])
    assert.equal(1, app:handled "events")
  end)

  it("rejects what it does not know", function()
    app:publish("events", { type = "user.vanished", user = "eve" })
    app:settle()
    assert.equal("no such event: user.vanished", app:messages("events.dead")[1].headers["mw-dead-reason"])
  end)
end)
