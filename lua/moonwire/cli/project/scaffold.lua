--- The files of a new project, as `moonwire new` writes them; NAME stands for the project's name, and
--- ANNOTATIONS for the folders where LuaLS finds what the library has.
return {
  { "moonwire.lua", [[
-- What runs: connections and pipelines. `moonwire check` tells what is wrong with it.
local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "embedded:data"))

mw.pipeline "orders" {
  from    = broker:channel "orders",
  handler = "handlers.orders",
  order   = "key", -- one message of a key at a time; keys do not wait for each other
  retry   = { attempts = 5, backoff = "exponential", base = 1, cap = 60 },
  dead    = broker:channel "orders.dead",
}
]] },
  { "handlers/orders.lua", [[
-- Takes orders. Returning is the ack; error() is a retry; mw.reject is a dead letter.
local mw = require "moonwire"

local M = { schema = "schemas/order.json" } -- what does not fit becomes a dead letter of class "invalid"

function M.handle(msg)
  local order = msg.data
  if order.quantity > 100 then
    return mw.reject(("%d of %s are more than we have"):format(order.quantity, order.item), "business")
  end
  mw.log.info("order taken", { item = order.item, quantity = order.quantity })
  mw.publish("orders.taken", { item = order.item }, { key = msg.key }) -- leaves with the ack
end

return M
]] },
  { "schemas/order.json", [[
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["item", "quantity"],
  "properties": {
    "item": { "type": "string", "minLength": 1 },
    "quantity": { "type": "integer", "minimum": 1 }
  }
}
]] },
  { "spec/orders_spec.lua", [[
-- Run by `moonwire test`: the whole project, on a broker in memory and a clock that the spec moves.
local testing = require "moonwire.testing"

describe("orders", function()
  local app

  before_each(function() app = testing.start() end)
  after_each(function() app:stop() end)

  it("are passed on", function()
    app:publish("orders", { item = "teapot", quantity = 1 }, { key = "ann" })
    app:settle()
    assert.handled(app, "orders", 1)
    assert.published(app, "orders.taken", { { item = "teapot" } })
  end)

  it("of more than we have are dead letters", function()
    app:publish("orders", { item = "teapot", quantity = 1000 })
    app:settle()
    assert.dead(app, "orders", { class = "business", reason = "1000 of teapot are more than we have" })
    assert.published(app, "orders.taken", 0)
  end)
end)
]] },
  { ".env.example", [[
# Settings of this machine: copy to .env. The commands read it in this folder; what the environment says wins.
BROKER_URL=embedded:data
#BROKER_URL=redis://localhost
#BROKER_URL=amqp://localhost
#BROKER_URL=kafka://localhost:9092
]] },
  { ".luarc.json", [[
{
  "runtime.version": "LuaJIT",
  "workspace.library": ANNOTATIONS,
  "workspace.checkThirdParty": false
}
]] },
  { ".gitignore", [[
/data/
/.env
]] },
  { "README.md", [[
# NAME

A Moonwire project: `moonwire.lua` says what runs, `handlers/` what is done with a message.

    moonwire check                 # is it right?
    moonwire test                  # run the specs
    moonwire run                   # run it; Ctrl-C ends it
    moonwire run --watch           # and take new code whenever a file is saved

In another terminal:

    moonwire publish orders '{"item": "teapot", "quantity": 1}' --key ann
    moonwire publish orders '{"item": "teapot", "quantity": 1000}' --key bob
    moonwire dlq ls

Messages are kept in the folder `data`, by the broker in the binary. For another one, copy `.env.example` to `.env`.
]] },
}
