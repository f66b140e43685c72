local testing = require "moonwire.testing"

describe("shop-hook", function()
  local app

  before_each(function() app = testing.start { env = { HOOK_URL = "https://shop.example/hook" } } end)
  after_each(function() app:stop() end)

  local function order() app:publish("order.created", { order = 1 }, { key = "ann" }) end

  it("posts the order", function()
    app:http { ["POST https://shop.example/hook"] = 204 }
    order()
    app:settle()
    assert.handled(app, "shop-hook", 1)
    local request = app:requests()[1]
    assert.same({ order = 1 }, request.data)
    assert.equal("orders", request.headers["X-Source"])
  end)

  it("tries again while the shop deploys", function()
    app:http { ["*"] = { 404, { timeout = true }, 204 } }
    order()
    app:settle()
    assert.retried(app, "shop-hook", { 0.2, 0.4 })
    assert.handled(app, "shop-hook", 1)
  end)

  it("keeps what could not be delivered, with the reason", function()
    app:http { ["*"] = { error = "connection refused", kind = "connect" } }
    order()
    app:settle()
    assert.dead(app, "shop-hook", { attempts = 4, error = "connection refused" })
  end)
end)
