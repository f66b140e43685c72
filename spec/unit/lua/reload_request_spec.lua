-- What a reload is asked for must come out of the socket as it went in, whoever passes it on.
local answers = require "moonwire.cli.process.answers"
local request = require "moonwire.cli.reload.request"

describe("reload_request", function()
  it("survives the way through the socket", function()
    local asked = { gate = "spec", gate_limit = 12.5, canary = 0.05, canary_for = 30, canary_least = 7 }
    local words = request.words(asked)
    assert.same(asked, request.parse(words))
    assert.equal("reload =gate%3Dspec =canary%3D0.05 =canary_for%3D30",
      answers.line("reload", unpack(request.words { gate = "spec", canary = 0.05, canary_for = 30 })))
    assert.same({}, request.parse {})
    assert.same({ finish = "promote" }, request.parse { "finish=promote" })
  end)

  it("refuses what it does not know, and says what is meant", function()
    for _, case in ipairs {
      { { "gaet=spec" }, 'did you mean "gate"' }, { { "gate" }, 'unknown word "gate"' },
      { { "gate=yes" }, "gate must be spec or none" }, { { "canary=5" }, "a share between 0 and 1" },
      { { "canary=0" }, "a share" }, { { "canary=nan" }, "a share" }, { { "canary_for=30" }, "need canary" },
      { { "canary=0.1", "canary_for=-1" }, "seconds" }, { { "canary=0.1", "canary_least=1.5" }, "messages" },
      { { "finish=promote", "gate=spec" }, "stands alone" }, { { "finish=maybe" }, "promote or rollback" },
    } do
      local made, why = request.parse(case[1])
      assert.is_nil(made)
      assert.truthy(why:find(case[2], 1, true), why)
    end
  end)
end)
