-- No broker is needed here: the bindings of the topology decide where messages go, on a broker in memory.
local testing = require "moonwire.testing"

describe("rabbitmq", function()
  local app
  before_each(function() app = testing.start() end)
  after_each(function() app:stop() end)

  local function notes()
    local list = {}
    for _, m in ipairs(app:published "notes") do list[#list + 1] = m.data.service .. " " .. m.data.order end
    table.sort(list)
    return list
  end

  it("routes orders by their key to three services", function()
    app:publish("orders.incoming", { id = 1, customer = "ann" })
    app:publish("orders.incoming", { id = 2, customer = "bob", urgent = true })
    app:publish("orders.incoming", { id = 3, customer = "ann", state = "paid", urgent = true })
    app:publish("orders.incoming", { id = 4, customer = "eve", state = "paid" })
    app:settle()
    local expected = { "audit 1", "audit 2", "audit 3", "audit 4", "urgent 2", "urgent 3", "welcome 1", "welcome 2" }
    assert.same(expected, notes())
  end)

  it("takes an image through its steps", function()
    app:publish("image.uploaded", { image = "cat.png", format = "png" }, { key = "cat.png" })
    app:publish("image.uploaded", { image = "old.tiff", format = "tiff" }, { key = "old.tiff" })
    app:settle()
    local online = app:published "image.published"
    assert.equal(1, #online)
    assert.equal("https://img.example/cat.png", online[1].data.url)
    assert.equal(2, #online[1].data.sizes)
    assert.equal("unsupported", app:dead("resize")[1].headers["mw-dead-class"])
  end)

  it("does urgent tasks first", function()
    for i = 1, 3 do app:publish("tasks", { task = "normal " .. i }) end
    app:publish("tasks", { task = "urgent" }, { priority = 9 })
    app:settle()
    local order = {}
    for _, m in ipairs(app:published "done") do order[#order + 1] = m.data.task end
    assert.equal(4, #order)
    assert.is_true(order[1] == "urgent" or order[2] == "urgent", table.concat(order, ", "))
  end)

  it("buries a message that keeps failing, with its history", function()
    app:publish("invoices", { number = 7, amount = -1 }, { id = "seven" })
    app:publish("invoices", { number = 8, amount = 10 })
    app:settle()
    local dead = app:dead "invoices"
    assert.equal(1, #dead)
    assert.equal("seven", dead[1].id)
    assert.equal("3", dead[1].headers["mw-dead-attempts"])
    assert.matches("no such amount: %-1", dead[1].headers["mw-dead-first-error"])
    assert.equal(1, #app:published "done")
  end)
end)
