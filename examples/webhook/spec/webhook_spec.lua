local testing = require "moonwire.testing"

describe("shop-hook", function()
  local app

  before_each(function() app = testing.start { env = { HOOK_URL = "http://127.0.0.1:1/" } } end)
  after_each(function() app:stop() end)

  it("keeps what could not be delivered, with the reason", function() -- nobody listens on port 1
    app:publish("order.created", { order = 1 }, { key = "ann" })
    app:settle()
    local dead = app:dead "shop-hook"
    assert.equal(1, #dead)
    assert.equal("4", dead[1].headers["mw-dead-attempts"])
    assert(dead[1].headers["mw-dead-last-error"]:find "refused")
  end)
end)
