-- docs/cli.md and the manual name every verb and every flag. (Their examples are run by docs_spec.lua.)
local args = require "moonwire.cli.args"
local cli = require "spec.functional.cli.support"
local verbs = require "moonwire.cli.verbs"

local function read(path)
  local file = assert(io.open(cli.root .. "/" .. path))
  local text = file:read "*a"
  file:close()
  return text
end

local page, manual = read "docs/cli.md", read "docs/man/moonwire.1"

describe("every verb", function()
  local function check(verb)
    for _, flag in ipairs(args.flags(verb)) do
      local name = "--" .. flag[1]
      local escaped = "\\-\\-" .. flag[1]:gsub("%-", "\\-")
      if not flag.hidden then
        it(("%s %s is documented"):format(verb.name, name), function()
          assert.truthy(page:find(name, 1, true), name .. " is missing in docs/cli.md")
          assert.truthy(manual:find(escaped, 1, true), name .. " is missing in docs/man/moonwire.1")
        end)
      end
    end
  end
  for _, name in ipairs(verbs.names()) do
    it(name .. " is documented", function()
      assert.truthy(page:find(name, 1, true))
      assert.truthy(manual:find(name, 1, true))
    end)
    local ok, verb = pcall(verbs.load, name)
    if ok and type(verb) == "table" then
      if verb.verbs then
        for _, inner in ipairs(verb.verbs) do check(inner) end
      else
        check(verb)
      end
    end
  end
end)

describe("docs/cli.md", function()
  it("has an example that is run for every verb", function()
    local examples = {}
    for block in page:gmatch "\n```sh run\n(.-)```" do examples[#examples + 1] = block end
    local all = table.concat(examples)
    for _, words in ipairs {
      "new", "run", "check", "publish", "tail", "dlq ls", "dlq show", "dlq replay", "dlq purge", "dlq spec",
      "groups ls", "groups rm",
      "completion", "version", "help",
    } do
      assert.truthy(all:find("moonwire " .. words, 1, true), words)
    end
  end)
end)
