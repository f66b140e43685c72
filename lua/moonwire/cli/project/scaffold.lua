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
-- Run by `moonwire test`. A handler is a plain table: call it with what it reads of a message.
local mw = require "moonwire"
local orders = require "handlers.orders"

describe("orders", function()
  local publish

  before_each(function() publish = stub(mw, "publish") end)
  after_each(function() publish:revert() end)

  it("are passed on", function()
    local verdict = orders.handle { key = "ann", data = { item = "teapot", quantity = 1 } }
    assert.is_nil(verdict) -- the ack
    assert.stub(publish).was_called_with("orders.taken", { item = "teapot" }, { key = "ann" })
  end)

  it("of more than we have are rejected", function()
    local verdict = orders.handle { data = { item = "teapot", quantity = 1000 } }
    assert.equal("reject", verdict.kind)
    assert.equal("business", verdict.class)
    assert.stub(publish).was_not_called()
  end)
end)
]] },
  { ".env.example", [[
# Settings of this machine: copy to .env. The commands read it in this folder; what the environment says wins.
BROKER_URL=embedded:data
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

    cp .env.example .env           # where the broker is
    moonwire check                 # is it right?
    moonwire test                  # run the specs
    moonwire run                   # run it; Ctrl-C ends it

In another terminal:

    moonwire publish orders '{"item": "teapot", "quantity": 1}' --key ann
    moonwire publish orders '{"item": "teapot", "quantity": 1000}' --key bob
    moonwire dlq ls orders.dead
]] },
}
