-- Runs on a memory broker and a virtual clock; retry topics become delays of the same length there.
local testing = require "moonwire.testing"

describe("orders", function()
  local app

  before_each(function() app = testing.start() end)
  after_each(function() app:stop() end)

  it("are confirmed", function()
    app:publish("order.created.v1", { item = "teapot" }, { key = "ann" })
    app:settle()
    assert.published(app, "order.confirmed.v1", 1)
  end)

  it("that fail are tried again after 1 s and 3 s", function()
    app:publish("order.created.v1", { item = "kettle" }, { key = "bob" })
    app:settle()
    assert.retried(app, "orders", { 1, 3 })
    assert.equal(3, app:published("order.confirmed.v1")[1].data.attempt)
  end)

  it("that cannot be are dead letters", function()
    app:publish("order.created.v1", { item = "unicorn" }, { key = "cleo" })
    app:settle()
    assert.dead(app, "orders", { class = "business", reason = "no such item: unicorn" })
    assert.published(app, "order.confirmed.v1", 0)
  end)
end)

describe("parcels", function()
  it("keep the order of their scans through a failure", function()
    local app = testing.start()
    for _, place in ipairs { "warehouse", "customs", "depot", "door" } do
      app:publish("parcel.scanned.v1", { place = place }, { key = "p1" })
    end
    app:publish("parcel.scanned.v1", { place = "warehouse" }, { key = "p2" })
    app:settle()
    local places = {}
    for _, m in ipairs(app:published "parcel.state.v1") do
      if m.key == "p1" then places[#places + 1] = m.data.place end
    end
    assert.same({ "warehouse", "customs", "depot", "door" }, places)
    app:stop()
  end)
end)
