-- The story of the demo: `moonwire test` runs the project in the real core, on a memory broker and a virtual clock.
local testing = require "moonwire.testing"

local function order(item, quantity, email)
  return { email = email or "ann@example.org", item = item, quantity = quantity or 1 }
end

describe("orders", function()
  local app

  before_each(function() app = testing.start() end)
  after_each(function() app:stop() end)

  it("sends an email for an order", function()
    app:publish("order.created.v1", order("cup", 6), { key = "ann" })
    app:settle()
    local mails = app:published "email.sent.v1"
    assert.equal(1, #mails)
    assert.same({ to = "ann@example.org", text = "6 x cup is on its way" }, mails[1].data)
    assert.equal("ann", mails[1].key)
  end)

  it("tries again when the stock service fails, and keeps the order of a customer meanwhile", function()
    app:publish("order.created.v1", order "kettle", { key = "bob", id = "o-1" })
    app:publish("order.created.v1", order "cup", { key = "bob", id = "o-2" })
    app:publish("order.created.v1", order "spoon", { key = "ann", id = "o-3" })
    app:settle()
    local texts = {} -- in the order in which they were sent
    for i, mail in ipairs(app:published "email.sent.v1") do texts[i] = mail.data.text end
    assert.same({ "1 x spoon is on its way", "1 x kettle is on its way", "1 x cup is on its way" }, texts)
    assert.retried(app, "orders", { 0.5, 1 })
    assert.dead(app, "orders", 0)
  end)

  it("keeps what does not exist as a dead letter, with the reason", function()
    app:publish("order.created.v1", order "unicorn")
    app:settle()
    assert.dead(app, "orders", { class = "business", reason = "no such item: unicorn" })
    assert.published(app, "email.sent.v1", {})
  end)

  it("never sees an order that does not fit the schema", function()
    app:publish("order.created.v1", { email = "dan@example.org", item = "spoon" })
    app:settle()
    assert.dead(app, "orders", { class = "invalid", reason = 'required property "quantity" is missing' })
  end)

  it("skips the same id", function()
    for _ = 1, 2 do app:publish("order.created.v1", order "cup", { id = "o-1" }) end
    app:settle()
    assert.equal(1, app:handled "orders")
    assert.equal(1, app:status("orders").deduped)
    assert.published(app, "email.sent.v1", 1)
  end)

  it("forgets an id after ten minutes", function()
    app:publish("order.created.v1", order "cup", { id = "o-1" })
    app:advance(601)
    app:publish("order.created.v1", order "cup", { id = "o-1" })
    app:settle()
    assert.handled(app, "orders", 2)
  end)

  it("loses nothing when it is killed, and counts the attempt", function()
    app:publish("order.created.v1", order("cup", 2), { key = "ann", id = "o-1" })
    app:crash "before_ack"
    app:settle()
    assert.published(app, "email.sent.v1", 1)
  end)
end)
