-- The words of a handler, and errors with a class.
local fault = require "moonwire.internal.api.fault"
local mw = require "moonwire"
local verdict = require "moonwire.internal.api.verdict"

local function refuses(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(text, err, 1, true)
end

describe("verdicts", function()
  it("have reasons and classes of their own accord", function()
    local r = mw.retry()
    assert.same({ "retry", "transient", "the handler asked for a retry" }, { r.kind, r.class, r.reason })
    assert.is_nil(r.after)
    r = mw.retry { after = 2.5, class = "busy", reason = 7 }
    assert.same({ 2.5, "busy", "7" }, { r.after, r.class, r.reason })
    assert.equal("why", mw.retry("why").reason)
    assert.same({ "reject", "rejected by the handler", "rejected" },
      { mw.reject().kind, mw.reject().reason, mw.reject().class })
    assert.equal("odd", mw.reject("x", "odd").class)
    assert.same({ "drop", "x" }, { mw.drop("x").kind, mw.drop("x").reason })
    assert.equal("drop: x", tostring(mw.drop "x"))
  end)

  it("are known from tables that look like them", function()
    assert.is_true(verdict.is(mw.drop "x"))
    for _, value in ipairs { { kind = "drop" }, "drop", 1, fault.new { class = "x", text = "y" } } do
      assert.is_false(verdict.is(value))
    end
  end)

  it("refuse options that are none", function()
    refuses('mw.retry: unknown option "afer"; did you mean "after"?', mw.retry, { afer = 1 })
    refuses('mw.retry: unknown option "qqqq"; it takes after, reason and class', mw.retry, { qqqq = 1 })
    refuses('mw.retry: unknown option "1"', mw.retry, { "why" })
    refuses("mw.retry: write { after = 5 } for a delay in seconds", mw.retry, 5)
    for _, after in ipairs { -1, 0 / 0, math.huge, 1e300, "5", true } do
      refuses("mw.retry: after must be seconds, 0 or more", mw.retry, { after = after })
    end
    refuses("mw.retry: reason must be a string, got table", mw.retry, { reason = {} })
    refuses("mw.retry: class must be a string, got boolean", mw.retry, { class = true })
    refuses("mw.reject: reason must be a string, got table", mw.reject, {})
    refuses("mw.reject: class must be a string, got table", mw.reject, "x", {})
    refuses("mw.drop: reason must be a string, got function", mw.drop, print)
  end)
end)

describe("mw.error", function()
  it("makes an object that reads like its text", function()
    local e = mw.error("outage", "stock is down", 5)
    assert.is_true(fault.is(e))
    assert.same({ "outage", "stock is down", 5 }, { e.class, e.text, e.after })
    assert.equal("stock is down", tostring(e))
    assert.equal("failed: stock is down", "failed: " .. e)
    assert.equal("stock is down!", e .. "!")
    assert.is_false(fault.is { class = "x", text = "y" })
    assert.is_false(fault.is "x")
  end)

  it("refuses what it cannot use", function()
    refuses("mw.error: expected a class and a text", mw.error, "outage")
    refuses("mw.error: expected a class and a text", mw.error, 1, "x")
    for _, after in ipairs { -1, 0 / 0, math.huge, "5", {} } do
      refuses("mw.error: after must be seconds, 0 or more", mw.error, "outage", "x", after)
    end
  end)
end)

describe("the text of what was raised", function()
  it("says something whatever it was", function()
    assert.equal("no", fault.text "no")
    assert.equal("error() without a text", fault.text(nil))
    assert.equal('error object {"a":[1,2],"code":5}', fault.text { code = 5, a = { 1, 2 } })
    assert.equal("error object of type table", fault.text { f = print })
    assert.equal("mine", fault.text(setmetatable({}, { __tostring = function() return "mine" end })))
    assert.equal("error object of type table", fault.text(setmetatable({}, { __tostring = error })))
    local long = fault.text { text = ("x"):rep(5000) }
    assert.is_true(#long < 1100 and long:find("…", 1, true) ~= nil)
  end)
end)

describe("mw", function()
  it("names the nearest for what it has not", function()
    refuses("mw.pubish does not exist; did you mean mw.publish?", function() return mw.pubish end)
    refuses("mw.qqqqqqqq does not exist", function() return mw.qqqqqqqq end)
    refuses("mw.log.inf does not exist; did you mean mw.log.info?", function() return mw.log.inf end)
    refuses("mw.http.gett does not exist; did you mean mw.http.get?", function() return mw.http.gett end)
    refuses("mw.json.decod does not exist; did you mean mw.json.decode?", function() return mw.json.decod end)
  end)

end)
