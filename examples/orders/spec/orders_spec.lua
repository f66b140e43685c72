-- The story of the demo: `moonwire test` runs the project in the real core, on a memory broker.
local testing = require "moonwire.testing"

local function order(item, quantity, email)
  return { email = email or "ann@example.org", item = item, quantity = quantity or 1 }
end

describe("orders", function()
  local app

  before_each(function() app = testing.start { env = { RETRY_BASE = "0.02" } } end)
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
    assert.equal(2, app:status("orders").retried)
    assert.same({}, app:dead "orders")
  end)

  it("keeps what does not exist as a dead letter, with the reason", function()
    app:publish("order.created.v1", order "unicorn")
    app:settle()
    local dead = app:dead "orders"
    assert.equal(1, #dead)
    assert.equal("business", dead[1].headers["mw-dead-class"])
    assert.equal("no such item: unicorn", dead[1].headers["mw-dead-reason"])
    assert.same({}, app:published "email.sent.v1")
  end)

  it("never sees an order that does not fit the schema", function()
    app:publish("order.created.v1", { email = "dan@example.org", item = "spoon" })
    app:settle()
    local dead = app:dead "orders"
    assert.equal("invalid", dead[1].headers["mw-dead-class"])
    assert(dead[1].headers["mw-dead-reason"]:find 'required property "quantity" is missing')
  end)

  it("skips the same id", function()
    for _ = 1, 2 do app:publish("order.created.v1", order "cup", { id = "o-1" }) end
    app:settle()
    assert.equal(1, app:handled "orders")
    assert.equal(1, app:status("orders").deduped)
    assert.equal(1, #app:published "email.sent.v1")
  end)

  it("loses nothing when it is killed, and counts the attempt", function()
    app:publish("order.created.v1", order("cup", 2), { key = "ann", id = "o-1" })
    app:crash()
    app:settle()
    assert.equal(1, #app:published "email.sent.v1")
  end)
end)
