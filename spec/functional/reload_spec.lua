-- HUP: new code while messages flow. What runs ends on the code it began with; code that does not load changes nothing.
local clock = require "spec.support.wait"
local process = require "spec.support.process"

local binary = os.getenv "MOONWIRE_BIN"
local MAIN = [[
local mw = require "moonwire"
mw.pipeline "p" { from = mw.connect "embedded:data":channel "in", handler = "handler" }
]]
local HANDLER = [[
local mw = require "moonwire"
return { handle = function(msg)
  mw.log.info("begun")
  mw.sleep(tonumber(msg.body))
  mw.log.info(%q)
end }
]]

describe("reload", function()
  local dir, child

  local function write(name, text)
    local file = assert(io.open(dir .. "/" .. name, "wb"))
    file:write(text)
    file:close()
  end

  local function publish(body, id)
    local sent = process.run { binary, "publish", "in", body, "--id", id, "--broker", "embedded:" .. dir .. "/data" }
    assert(sent.code == 0, sent.stderr)
  end

  local function see(pattern)
    return clock.until_(function() return child:stderr():match(pattern) end, 15, pattern)
  end

  before_each(function()
    dir = process.tmpdir()
    write("moonwire.lua", MAIN)
    write("handler.lua", HANDLER:format "first")
    child = process.spawn { { binary, "run", dir }, env = { BROKER_URL = false } }
    see "msg=started"
  end)
  after_each(function() assert.equal(0, (child:stop(15))) end)

  it("takes new code for new messages, and lets the others end on the old", function()
    publish("2", "slow")
    see "msg=begun[^\n]*id=slow"
    write("handler.lua", HANDLER:format "second")
    child:kill "HUP"
    see "msg=reloaded[^\n]*kept=1"
    publish("0", "quick")
    see "msg=second[^\n]*id=quick"
    see "msg=first[^\n]*id=slow attempt=1"
  end)

  it("refuses code that does not load, says why, and goes on", function()
    write("handler.lua", "return {")
    child:kill "HUP"
    assert(see 'msg="reload refused"[^\n]*':find "handler.lua:1")
    publish("0", "m")
    see "msg=first[^\n]*id=m"
  end)
end)
