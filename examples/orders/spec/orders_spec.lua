-- The story of the demo, in milliseconds: `moonwire test` runs the project on a memory broker with a clock of its own.
local testing = require "moonwire.testing"

local function order(item, quantity, email)
  return { email = email or "ann@example.org", item = item, quantity = quantity or 1 }
end

describe("orders", function()
  local app

  before_each(function() app = testing.start() end)
  after_each(function() app:stop() end)

  it("asks for an email with the ack", function()
    app:publish("order.created.v1", order("cup", 6), { key = "ann" })
    app:settle()
    local mails = app:published "email.requested.v1"
    assert.equal(1, #mails)
    assert.same({ to = "ann@example.org", text = "6 x cup is on its way" }, mails[1].data)
    assert.equal("ann", mails[1].key)
  end)

  it("tries again when the stock service fails, and keeps the order of a customer meanwhile", function()
    app:publish("order.created.v1", order "kettle", { key = "bob", id = "o-1" })
    app:publish("order.created.v1", order "cup", { key = "bob", id = "o-2" })
    app:publish("order.created.v1", order "spoon", { key = "ann", id = "o-3" })
    app:settle()
    local texts = {}
    for i, mail in ipairs(app:published "email.requested.v1") do texts[i] = mail.data.text end
    assert.same({ "1 x spoon is on its way", "1 x kettle is on its way", "1 x cup is on its way" }, texts)
    assert.same({}, app:dead "order.dead.v1")
  end)

  it("keeps what does not exist as a dead letter, with the reason", function()
    app:publish("order.created.v1", order "unicorn")
    app:settle()
    local dead = app:dead "order.dead.v1"
    assert.equal(1, #dead)
    assert.equal("business", dead[1].headers["mw-dead-class"])
    assert.equal("no such item: unicorn", dead[1].headers["mw-dead-reason"])
    assert.same({}, app:published "email.requested.v1")
  end)

  it("never sees an order that does not fit the schema", function()
    app:publish("order.created.v1", { email = "dan@example.org", item = "spoon" })
    app:settle()
    local dead = app:dead "order.dead.v1"
    assert.equal("invalid", dead[1].headers["mw-dead-class"])
    assert(dead[1].headers["mw-dead-reason"]:find 'required property "quantity" is missing')
  end)

  it("skips the same id", function()
    for _ = 1, 2 do app:publish("order.created.v1", order "cup", { id = "o-1" }) end
    app:settle()
    assert.equal(1, #app:published "email.requested.v1")
  end)
end)
