-- Standard streams that are closed, as some supervisors leave them: no file of ours may get their numbers.
local cli = require "spec.functional.cli.support"
local process = require "spec.support.process"

-- Talks more than the first pages of a store hold.
local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect "embedded:data"
mw.pipeline "orders" { from = broker:channel "orders", handler = function(msg)
  mw.log.info(("chatter "):rep(20000))
  print(("more of it "):rep(1000))
  return mw.reject("no " .. msg.body)
end }
]]

-- Runs `moonwire …` with some of the three streams closed.
local function run_closed(here, words, closed)
  local command = ('exec timeout 20 "$0" %s %s'):format(words, closed)
  return process.run { { "sh", "-c", command, cli.binary }, cwd = here.path, timeout = 30 }
end

describe("closed standard streams", function()
  for _, closed in ipairs { "2>&-", ">&- 2>&-", "<&- >&- 2>&-" } do
    it("leave the store whole: " .. closed, function()
      local here = cli.workdir()
      here:write("moonwire.lua", MAIN)
      for i, how in ipairs { "run --once --workers 0", "run --once" } do
        here:publish("orders", "order " .. i)
        assert.equal(0, run_closed(here, how, closed).code)
        assert.equal(i, #here:letters())
      end
    end)
  end

  it("are an input that is empty", function()
    local here = cli.workdir()
    assert.equal(0, run_closed(here, "publish -b embedded:data orders -", "<&-").code)
    assert.equal("", here:messages("orders")[1].body)
  end)
end)
