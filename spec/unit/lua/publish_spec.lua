-- The making of messages: what the body and each option become, and what is refused.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local ffi = require "ffi"
local message = require "moonwire.internal.api.message"
local publish = require "moonwire.internal.api.publish"

local function made(body, options)
  local m = assert(publish.message(body, options or {}))
  return message.view(ffi.gc(m, C.mw_message_unref), 1, { name = "p", channel = "c" })
end

describe("publish.message", function()
  it("sends strings as they are and anything else as JSON", function()
    assert.same({ "a\0b", "" }, { made("a\0b").body, made("a\0b").type })
    assert.same({ '{"n":1}', "application/json" }, { made({ n = 1 }).body, made({ n = 1 }).type })
    assert.equal("true", made(true).body)
    assert.equal("12", made(12).body)
    assert.equal("", made("").body)
    assert.equal("text/plain", made({}, { type = "text/plain" }).type)
  end)

  it("fills in the rest", function()
    core.step(0) -- the time is that of the turn
    local m = made "x"
    assert.matches("^%x+%-%x+%-7%x+%-[89ab]%x+%-%x+$", m.id)
    assert.not_equal(m.id, made("x").id)
    assert.is_nil(m.key)
    assert.equal(4, m.priority)
    assert.same({}, m.headers)
    assert.is_true(math.abs(m.time - os.time()) < 5)
  end)

  it("takes every option", function()
    local m = made("x", {
      key = "k", id = "i", priority = 9, type = "t", delay = 3, now = true,
        headers = { a = "1", b = 2, c = true, d = "" },
    })
    assert.same({ "k", "i", 9, "t" }, { m.key, m.id, m.priority, m.type })
    assert.same({ a = "1", b = "2", c = "true", d = "" }, m.headers)
    assert.equal("7", made("x", { key = 7 }).key)
    assert.equal("", made("x", { key = "" }).key)
    assert.equal(0, made("x", { priority = 0 }).priority)
    assert.equal("v", made("x", { headers = { [("n"):rep(255)] = "v" } }).headers[("n"):rep(255)])
  end)

  local cycle = {}
  cycle[1] = cycle
  for _, case in ipairs {
    { nil, {}, "the body is nil" }, { print, {}, "the body cannot be JSON: " },
      { cycle, {}, "the body cannot be JSON: " },
    { "x", { kye = 1 }, 'unknown option "kye"; did you mean "key"?' }, { "x", { [1] = 1 }, 'unknown option "1"' },
    { "x", { zzzzzz = 1 }, 'unknown option "zzzzzz"' },
    { "x", { key = {} }, "key must be a string" }, { "x", { key = true }, "key must be a string" },
    { "x", { id = 5 }, "id must be a string" }, { "x", { type = 5 }, "type must be a string" },
    { "x", { id = ("i"):rep(256) }, "id of 256 bytes is over the limit of 255" },
    { "x", { priority = 10 }, "priority must be a whole number from 0 to 9" },
    { "x", { priority = -1 }, "priority must be a whole number from 0 to 9" },
    { "x", { priority = 1.5 }, "priority must be a whole number from 0 to 9" },
    { "x", { priority = "4" }, "priority must be a whole number from 0 to 9" },
    { "x", { delay = -1 }, "delay must be seconds, 0 or more" }, { "x", { delay = 0 / 0 },
      "delay must be seconds, 0 or more" },
    { "x", { delay = math.huge }, "delay must be seconds, 0 or more" },
      { "x", { delay = "1" }, "delay must be seconds" },
    { "x", { headers = "a" }, "headers must be a table" }, { "x", { headers = { [1] = "a" } },
      "a header's name must be a string, got 1" },
    { "x", { headers = { [""] = "a" } }, "a header's name must be a string" },
    { "x", { headers = { a = {} } }, 'header "a" must be a string, got table' },
    { "x", { headers = { [("n"):rep(256)] = "v" } }, "a header's name has 256 bytes, over the limit of 255" },
    -- The length of a name has 16 bits: this one would read as the header "b" and more.
    { "x", { headers = { ["b" .. ("n"):rep(65536)] = "v" } },
      "a header's name has 65537 bytes, over the limit of 255" },
    { "x", { headers = { a = ("v"):rep(2 ^ 20) } }, "headers of 1048583 bytes are over the limit of 1048576" },
    { "x", { key = ("k"):rep(2 ^ 20 + 1) }, "key of 1048577 bytes is over the limit of 1048576" },
  } do
    it("refuses: " .. case[3], function()
      local m, err = publish.message(case[1], case[2])
      assert.is_nil(m)
      assert.matches(case[3], err, 1, true)
    end)
  end

  it("publishes inside a handler only", function()
    local ok, err = pcall(publish.publish, "channel", "x")
    assert.is_false(ok)
    assert.matches("mw.publish: only inside a handler", err, 1, true)
  end)
end)
