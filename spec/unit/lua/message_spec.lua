-- The message as a handler sees it: fields on first use, paths into the body, nothing after the verdict, nothing to
-- change.
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"
local json = require "moonwire.json"
local message = require "moonwire.internal.api.message"
local publish = require "moonwire.internal.api.publish"

local anchors = {}
local function wrap(body, options)
  local m = ffi.gc(assert(publish.message(body, options or {})), C.mw_message_unref)
  anchors[#anchors + 1] = m
  return message.view(m, 3, { name = "orders", channel = "in" })
end

local function refuses(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(text, tostring(err), 1, true)
end

describe("a message", function()
  it("has its fields, made when they are read", function()
    local m = wrap({ a = { b = 1 } }, { key = "k", id = "i", headers = { h = "v" }, priority = 2 })
    assert.equal(1, m.data.a.b)
    assert.equal(m.data, m.data)
    assert.same({ "i", "k", 2, "application/json", 3, "in", "orders" },
      { m.id, m.key, m.priority, m.type, m.attempt, m.channel, m.pipeline })
    assert.equal("v", m:header "h")
    assert.is_nil(m:header "H")
    assert.equal('{"a":{"b":1}}', m.body)
    assert.is_nil(wrap("x").key)
  end)

  it("cannot be changed, also what was read before", function()
    local m = wrap({ a = 1 }, { id = "i", key = "k" })
    for _, field in ipairs { "id", "body", "data", "key", "headers", "attempt", "other" } do
      if field ~= "other" then assert.is_not_nil(m[field]) end
      refuses(("a message cannot be changed: publish a new one instead of setting %q"):format(field), function()
        m[field] = "x"
      end)
    end
    assert.equal('{"a":1}', m.body)
    refuses("msg.get: write msg:get(…), with a colon", function() return m.get("a") end)
    refuses("msg.header: write msg:header(…), with a colon", function() return m.header("a") end)
  end)

  it("keeps what was read when it is settled, and says so about the rest", function()
    local m = wrap({ a = 1 }, { id = "i" })
    assert.same({ "i", 1 }, { m.id, m.data.a })
    message.seal(m)
    assert.same({ "i", 1, 3, "in", 1 }, { m.id, m.data.a, m.attempt, m.channel, (m:get "a") })
    refuses("the message is settled: read what you need before the handler returns", function() return m.body end)
    refuses("the message is settled", function() return m:header "x" end)
    local unread = wrap { a = 1 }
    message.seal(unread)
    refuses("the message is settled", function() return unread:get "a" end)
    refuses("the message is settled", function() return unread.data end)
  end)

  it("names the nearest for an unknown field, and cannot be changed", function()
    local m = wrap "x"
    refuses('a message has no field "boddy"; did you mean "body"?', function() return m.boddy end)
    refuses('a message has no field "zzzzzzz"', function() return m.zzzzzzz end)
    assert.is_nil(m[99])
    refuses('a message cannot be changed: publish a new one instead of setting "body"', function() m.body = "y" end)
    refuses("a message cannot be changed", function() m.new = 1 end)
    refuses("a message cannot be changed", function() m[99] = 1 end)
  end)

  it("raises for a body that is not JSON, wherever it is read", function()
    local m = wrap "{nonsense"
    assert.equal("{nonsense", m.body)
    refuses("body is not JSON: ", function() return m.data end)
    refuses("body is not JSON: ", function() return m:get "a" end)
    refuses("body is not JSON: ", function() return wrap("").data end)
  end)

  it("takes false and null for what they are", function()
    assert.is_false(wrap("false").data)
    assert.equal(json.null, wrap("null").data)
    assert.equal(json.null, (wrap('{"a":null}'):get "a"))
  end)

  it("gets paths, the same before and after the body is decoded", function()
    local body = [=[{"customer":{"id":"c7","vip":true,"none":null},"items":[{"sku":"a","n":1.5},{"sku":"b"},[10,20]],
      "1":"one","deep":{"1":{"2":"x"}},"":{"":"empty"},"big":9007199254740993,"t":{},"f":false}]=]
    local PATHS = {
      "customer.id", "customer.vip", "customer.none", "customer.none.x", "customer", "customer.nothing",
        "items.1.sku", "items.2.n",
      "items.2.sku", "items.3.1", "items.3.2", "items.3.3", "items.0", "items.4", "items.-1", "items.01", "items.1.5",
        "items.x",
      "items", "1", "2", "deep.1.2", "big", "t", "f", "customer.id.x", "items.0x1", "items.1e0", "items. 1",
        "nothing.at.all",
    }
    for _, path in ipairs(PATHS) do
      local raw, decoded = wrap(body), wrap(body)
      assert.is_table(decoded.data)
      assert.same((raw:get(path)), (decoded:get(path)), path)
    end
    local m = wrap(body)
    assert.same({ "c7", "b", 20 }, { m:get("customer.id", "items.2.sku", "items.3.2") })
    assert.equal(3, select("#", m:get("nothing", "nor.this", "customer.gone")))
    assert.equal("c7", (select(2, m:get("nothing", "customer.id"))))
    assert.equal("x", (m:get "deep.1.2"))
  end)
end)
