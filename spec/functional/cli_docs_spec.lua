-- docs/cli.md stays true: its examples run, and it names every verb and every flag.
local args = require "moonwire.cli.args"
local cli = require "spec.functional.cli_support"
local process = require "spec.support.process"
local verbs = require "moonwire.cli.verbs"

local function read(path)
  local file = assert(io.open(cli.root .. "/" .. path))
  local text = file:read "*a"
  file:close()
  return text
end

local page, manual = read "docs/cli.md", read "docs/man/moonwire.1"

-- All in one folder, one after the other, as a reader would do it.
describe("the examples of docs/cli.md", function()
  local here = cli.workdir()
  process.run { "mkdir", here.path .. "/bin" }
  process.run { "ln", "-s", cli.binary, here.path .. "/bin/moonwire" }
  local path = here.path .. "/bin:" .. os.getenv "PATH"

  local number = 0
  for block in page:gmatch "\n```sh run\n(.-)```" do
    number = number + 1
    it(("run: %d, %s"):format(number, block:match "[^\n]*"), function()
      local result = process.run {
        { "bash", "-euo", "pipefail", "-c", block }, cwd = here.path, env = { PATH = path, BROKER_URL = false },
      }
      assert.equal(0, result.code, block .. result.stdout .. result.stderr)
    end)
  end

  it("are there", function() assert.truthy(number >= 10) end)
end)

describe("every verb", function()
  local function check(verb)
    for _, flag in ipairs(args.flags(verb)) do
      local name = "--" .. flag[1]
      local escaped = "\\-\\-" .. flag[1]:gsub("%-", "\\-")
      it(("%s %s is documented"):format(verb.name, name), function()
        assert.truthy(page:find(name, 1, true), name .. " is missing in docs/cli.md")
        assert.truthy(manual:find(escaped, 1, true), name .. " is missing in docs/man/moonwire.1")
      end)
    end
  end
  for _, name in ipairs(verbs.names()) do
    it(name .. " is documented", function()
      assert.truthy(page:find(name, 1, true))
      assert.truthy(manual:find(name, 1, true))
    end)
    local ok, verb = pcall(verbs.load, name)
    if ok and type(verb) == "table" and name ~= "test" then
      if verb.verbs then
        for _, inner in ipairs(verb.verbs) do check(inner) end
      else
        check(verb)
      end
    end
  end
end)
