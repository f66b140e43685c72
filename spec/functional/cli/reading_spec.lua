-- Reading a project: within limits, and without a word on stdout.
local cli = require "spec.functional.cli.support"
local json = require "moonwire.json"

local PIPELINE = [[
local mw = require "moonwire"
mw.pipeline "p" { from = mw.connect "memory:x":channel "in", handler = function() end }
]]

describe("a project that is read", function()
  it("has a limit of time", function()
    local here = cli.workdir()
    here:write("moonwire.lua", "local n = 0\nwhile true do n = n + 1 end")
    here:write("spec/x_spec.lua", 'it("starts", function() require "moonwire.testing".start() end)')
    local cases = {
      { here:spawn { "check" }, 78 }, { here:spawn { "topology", "plan" }, 78 }, { here:spawn { "test" }, 1 },
      { here:spawn { "publish", "--broker", "embedded:data", "in", "x" }, 0 }, -- needs it for options of channels only
    }
    for _, case in ipairs(cases) do
      local child, code = unpack(case)
      assert.equal(code, child:wait(60))
      local text = child:stdout() .. child:stderr()
      assert.truthy(text:find("moonwire.lua:2: still not read after 10 s", 1, true), text)
    end
  end)

  it("has a limit of memory, its own where it says so", function()
    local here = cli.workdir()
    here:write("moonwire.lua", "require 'moonwire'.settings { memory = '32MB' }\n"
      .. "local t = {}\nwhile true do t[#t + 1] = {} end")
    for _, words in ipairs { { "check" }, { "topology", "plan" } } do
      local result = here:run(words, { timeout = 30 })
      assert.equal(78, result.code)
      assert.truthy(result.stderr:find("moonwire.lua:3: out of memory while the project is read: the limit is 32 MB", 1,
        true), result.stderr)
    end
  end)

  it("has its limit of memory to itself, whatever its specs hold", function()
    local here = cli.workdir()
    here:write("moonwire.lua", "require 'moonwire'.settings { memory = '32MB' }\n" .. PIPELINE)
    here:write("spec/x_spec.lua", [[
      local much = {}
      for i = 1, 100 do much[i] = (" "):rep(1e6) .. i end
      it("starts", function() require "moonwire.testing".start():stop() end)
      it("holds it", function() assert.equal(100, #much) end)]])
    local result = here:run { "test" }
    assert.equal(0, result.code, result.stdout .. result.stderr)
  end)

  it("prints to stderr: what the command says is for programs", function()
    local here = cli.workdir()
    here:write("moonwire.lua", "print('reading', 1)\n" .. PIPELINE)
    local result = here:run { "check", "--json" }
    assert.equal(0, result.code)
    assert.is_true(json.decode(result.stdout).ok)
    assert.equal("reading\t1\n", result.stderr)
  end)
end)
