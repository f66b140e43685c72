-- The worked example of docs/testing.md, run as it stands there.
local process = require "spec.support.process"
local project = require "spec.support.project"

describe("docs/testing.md", function()
  teardown(function() process.cleanup() end)

  it("has a worked example that passes, in no time", function()
    local file = assert(io.open(os.getenv "MOONWIRE_ROOT" .. "/docs/testing.md"))
    local page = file:read "*a"
    file:close()
    local dir, names = process.tmpdir(), {}
    process.run { "mkdir", "-p", dir .. "/handlers", dir .. "/spec" }
    for path, text in page:gmatch "\n```lua\n%-%- ([%w_/]+%.lua)\n(.-)```" do
      project.write(dir .. "/" .. path, text)
      names[#names + 1] = path
    end
    assert.same({ "moonwire.lua", "handlers/payments.lua", "spec/payments_spec.lua" }, names)
    local result = process.run { { os.getenv "MOONWIRE_BIN", "test", dir }, timeout = 60 }
    assert.equal(0, result.code, result.stdout .. result.stderr)
    assert.matches("4 successes / 0 failures / 0 errors", result.stdout)
  end)
end)
