-- moonwire test -o junit and -o tap: what programs read stays readable, whatever stands in names and messages, and
-- however the run ends.
local cli = require "spec.functional.cli.support"

local MAIN = [[
local mw = require "moonwire"
mw.pipeline "stuck" { from = mw.connect "memory:":channel "in", timeout = 0.1, handler = function()
  return ("a"):rep(60):find(("a?"):rep(60) .. ("a"):rep(60)) and nil
end }]]
local STICKS = [[
it("sticks", function()
  local app = require "moonwire.testing".start()
  app:publish("in", "x")
  app:run()
end)
it("is behind it", function() end)]]
local ODD = [==[
describe("odd", function()
  it("takes <a> & \"b\" 'c' ]]>", function() end)
  it("has \0 \1 \127 \27[31m and \255\200 and \237\160\128 and \239\191\191", function() error "\0\1\255 ]]> <!--" end)
  it("is on\ntwo lines # TODO not", function() assert.equal("<x>", "&y;") end)
  it("throws a table", function() error { code = 7 } end)
  it("throws nothing", function() error() end)
  it("is Unicode: äöü €", function() assert.equal("ä", "ö") end)
  pending "comes later # SKIP"
  describe("with a setup", function()
    before_each(function() error "no setup" end)
    it("is not run", function() end)
  end)
end)]==]

-- A tree of { name =, attributes =, text =, … }; an error when it is not well-formed.
local function parse_xml(text)
  assert(text:find "^<%?xml version='1.0' encoding='UTF%-8'%?>\n", "no declaration")
  assert(not text:find "[%z\1-\8\11\12\14-\31]", "a control character")
  local stack = { { name = "document", text = "" } }
  local function plain(part)
    assert(not part:find "[<>]" and not part:gsub("&%a+;", ""):gsub("&#%d+;", ""):find("&", 1, true), part)
    return (part:gsub("&(%a+);", { amp = "&", lt = "<", gt = ">", quot = '"', apos = "'" }))
  end
  for before, tag in text:gsub("^.-%?>\n", ""):gmatch "([^<]*)(%b<>)" do
    local top = stack[#stack]
    top.text = top.text .. plain(before)
    local closing, name, rest, own = tag:match "^<(/?)(%a+)(.-)(/?)>$"
    assert(name, tag)
    if closing == "/" then
      assert(table.remove(stack).name == name, "closes another: " .. tag)
    else
      local element = { name = name, text = "", attributes = {} }
      for key, value in rest:gmatch "(%a+)='([^']*)'" do element.attributes[key] = plain(value) end
      table.insert(top, element)
      if own ~= "/" then table.insert(stack, element) end
    end
  end
  assert(#stack == 1, "not closed: " .. stack[#stack].name)
  return stack[1][1]
end

local function numbers(element)
  local a = element.attributes
  return { tonumber(a.tests), tonumber(a.failures), tonumber(a.errors), tonumber(a.skipped) }
end

describe("moonwire test", function()
  local here

  before_each(function()
    here = cli.workdir()
    here:write("moonwire.lua", MAIN)
  end)

  local function junit(...)
    local result = here:run { "test", "-o", "junit", ... }
    local root = parse_xml(result.stdout)
    assert.equal("testsuites", root.name)
    assert.same(numbers(root), numbers(root[1]))
    local cases = {}
    for _, case in ipairs(root[1]) do
      assert.equal("testcase", case.name)
      cases[#cases + 1] = { case.attributes.name, case[1] and case[1].name, case[1] and case[1].text or "",
        place = case.attributes.classname }
    end
    return result.code, numbers(root), cases
  end

  it("writes XML that can be read, with odd names and messages", function()
    here:write("spec/odd_spec.lua", ODD)
    here:write("spec/broken_spec.lua", "describe(")
    local code, counted, cases = junit()
    assert.equal(1, code)
    local by = {}
    for _, case in ipairs(cases) do by[case[1]] = case end
    assert.equal(#cases, counted[1])
    assert.is_nil(by["odd takes <a> & \"b\" 'c' ]]>"][2])
    assert.equal("error", by["odd has ? ? ? ?[31m and ?? and ??? and ???"][2])
    assert.equal("failure", by["odd is on&#10;two lines # TODO not"][2])
    assert.truthy(by["odd is on&#10;two lines # TODO not"][3]:find("(string) '&y;'", 1, true))
    assert.truthy(by["odd is on&#10;two lines # TODO not"].place:find "spec/odd_spec.lua:4$")
    assert.truthy(by["odd throws a table"][3]:find("code = 7", 1, true))
    assert.equal("error", by["odd throws nothing"][2])
    assert.truthy(by["odd is Unicode: äöü €"][3]:find("'ö'", 1, true))
    assert.equal("skipped", by["odd comes later # SKIP"][2])
    local broken
    for name, case in pairs(by) do broken = name:find "broken_spec.lua" and case or broken end
    assert.equal("error", broken[2])
    assert.truthy(broken.place:find "broken_spec.lua:1$", broken.place)
  end)

  it("writes complete XML when a handler is stuck in a C call", function()
    local many = {}
    for i = 1, 1000 do many[i] = ("it('is number %d', function() end)"):format(i) end -- more than 64 KB
    here:write("spec/a_spec.lua", "it('is wrong', function() error 'on purpose' end)\n" .. table.concat(many, "\n"))
    here:write("spec/b_spec.lua", STICKS)
    local code, counted, cases = junit()
    assert.equal(1, code)
    assert.same({ 1002, 0, 2, 0 }, counted)
    assert.equal(1002, #cases)
    assert.equal("error", cases[1][2])
    assert.truthy(cases[1][3]:find("on purpose", 1, true))
    assert.same({ "sticks", "error", "stuck in a C call past its timeout; the tests behind it did not run" },
      { unpack(cases[1002]) })
    assert.truthy(cases[1002].place:find "spec/b_spec.lua:1$")
  end)

  it("writes it when the first test is stuck", function()
    here:write("spec/b_spec.lua", STICKS)
    local code, counted = junit()
    assert.equal(1, code)
    assert.same({ 1, 0, 1, 0 }, counted)
  end)

  it("writes TAP in which no name passes for a directive or a line", function()
    here:write("spec/odd_spec.lua", ODD)
    local tap = here:run { "test", "-o", "tap" }
    assert.equal(1, tap.code)
    assert.truthy(tap.stdout:find("not ok 3 - odd is on two lines \\# TODO not\n", 1, true), tap.stdout)
    assert.truthy(tap.stdout:find("ok 7 - odd comes later \\# SKIP # SKIP pending\n", 1, true), tap.stdout)
    local number = 0
    for line in tap.stdout:gmatch "[^\n]*\n" do
      local n = line:match "^ok (%d+) %- " or line:match "^not ok (%d+) %- "
      if n then
        number = number + 1
        assert.equal(number, tonumber(n))
      else
        assert.truthy(line:find "^# " or line == ("1..%d\n"):format(number), line)
      end
    end
  end)
end)
