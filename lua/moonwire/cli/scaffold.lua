--- The files of a new project, as `moonwire new` writes them; NAME stands for the project's name.
return {
  { "moonwire.lua", [[
-- What runs: connections and pipelines. `moonwire check` tells what is wrong with it.
local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "embedded:data"))

mw.pipeline "orders" {
  from    = broker:channel "order.created.v1",
  handler = "handlers.orders",
  order   = "key", -- one message of a key at a time; keys do not wait for each other
  retry   = { attempts = 5, backoff = "exponential", base = 1, cap = 60 },
} -- what cannot be handled goes to order.created.v1.dead
]] },
  { "handlers/orders.lua", [[
-- Takes orders. Returning is the ack; error() is a retry; mw.reject is a dead letter.
local mw = require "moonwire"

local M = { schema = "schemas/order.created.v1.json" } -- what does not fit is a dead letter of class "invalid"

function M.handle(msg)
  local order = msg.data
  if (order.quantity or 1) > 100 then
    return mw.reject(("%d are more than we have"):format(order.quantity), "business")
  end
  mw.log.info("order taken", { order = order.id })
  mw.publish("email.requested.v1", { to = order.email, order = order.id }, { key = msg.key }) -- leaves with the ack
end

return M
]] },
  { "schemas/order.created.v1.json", [[
{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["id", "email"],
  "properties": {
    "id": { "type": "string", "minLength": 1 },
    "email": { "type": "string", "minLength": 3 },
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

  it("asks for an email to the customer", function()
    local verdict = orders.handle { key = "ann", data = { id = "o-1", email = "ann@example.org" } }
    assert.is_nil(verdict) -- the ack
    local email = { to = "ann@example.org", order = "o-1" }
    assert.stub(publish).was_called_with("email.requested.v1", email, { key = "ann" })
  end)

  it("rejects more than we have", function()
    local verdict = orders.handle { data = { id = "o-2", email = "bob@example.org", quantity = 1000 } }
    assert.equal("reject", verdict.kind)
    assert.equal("business", verdict.class)
    assert.stub(publish).was_not_called()
  end)
end)
]] },
  { ".env.example", [[
# Copy to .env. What the environment says wins over the file.
BROKER_URL=embedded:data
]] },
  { ".env", [[
# Settings of this machine, not under version control; the commands read them in this folder.
BROKER_URL=embedded:data
]] },
  { ".gitignore", [[
/data/
/.env
]] },
  { "README.md", [[
# NAME

A Moonwire project: `moonwire.lua` says what runs, `handlers/` what is done with a message.

    cp .env.example .env           # in a fresh clone
    moonwire check                 # is it right?
    moonwire test                  # run the specs
    moonwire run                   # run it; Ctrl-C ends it

In another terminal:

    moonwire publish order.created.v1 '{"id": "o-1", "email": "ann@example.org"}' --key ann
    moonwire publish order.created.v1 '{"id": "o-2", "email": "bob@example.org", "quantity": 1000}' --key bob
    moonwire dlq ls order.created.v1.dead
]] },
}
