-- moonwire groups: which groups there are, and removing one, seen from the messages that wait for it.
local cli = require "spec.functional.cli.support"
local process = require "spec.support.process"
local wait = require "spec.support.wait"

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect "embedded:data"
local function pipeline(name)
  mw.pipeline(name) { from = broker:channel "orders", handler = function() end }
end
pipeline "orders"
%s
]]

local function groups(here, verb, ...) return here:run { "groups", verb, "-b", "embedded:data", ... } end

-- Two pipelines have run; one of them was taken out, and 3 messages came since.
local function with_old_group()
  local here = cli.workdir()
  here:write("moonwire.lua", MAIN:format 'pipeline "audit"')
  assert.equal(0, here:run({ "run", "--once" }).code)
  here:write("moonwire.lua", MAIN:format "")
  for i = 1, 3 do assert.equal(0, here:run({ "publish", "-b", "embedded:data", "orders", "x" .. i }).code) end
  assert.equal(0, here:run({ "run", "--once" }).code)
  return here
end

describe("groups ls", function()
  teardown(function() process.cleanup() end)
  local here = with_old_group()

  it("lists all, and names those that nobody consumes and messages wait for", function()
    for _, words in ipairs { { "ls" }, { "ls", "orders" } } do
      local result = groups(here, unpack(words))
      assert.equal(0, result.code)
      assert.truthy(result.stdout:match "^CHANNEL +GROUP +CONSUMERS +READY +DELAYED +PARKED\n", result.stdout)
      assert.truthy(result.stdout:match "\norders +audit +0 +3 +0 +0\n", result.stdout)
      assert.truthy(result.stdout:match "\norders +orders +0 +0 +0 +0\n", result.stdout)
      local said = "nobody consumes group audit of orders now, and 3 messages wait for it"
      assert.truthy(result.stderr:find(said, 1, true))
      assert.falsy(result.stderr:find("group orders of", 1, true))
    end
  end)

  it("gives objects", function()
    local found = cli.objects(groups(here, "ls", "--json").stdout)
    assert.same({ channel = "orders", group = "audit", consumers = 0, ready = 3, delayed = 0, parked = 0 }, found[1])
    assert.equal(2, #found)
  end)

  it("says when there are none, and makes no store", function()
    local result = groups(here, "ls", "nowhere")
    assert.same({ 0, "", "no groups on nowhere\n" }, { result.code, result.stdout, result.stderr })
    local empty = cli.workdir()
    assert.equal(69, groups(empty, "ls").code)
    assert.equal(69, groups(empty, "rm", "orders", "audit", "--yes").code)
    assert.equal("", process.run({ "ls", "-A", empty.path }).stdout)
  end)

  it("is refused for a broker that is only here", function()
    local result = here:run { "groups", "ls", "-b", "memory:x" }
    assert.equal(64, result.code)
    assert.truthy(result.stderr:find("memory:x lives inside of one process", 1, true))
  end)
end)

describe("groups rm", function()
  teardown(function() process.cleanup() end)

  it("lets go what waits for the group, and nothing else", function()
    local here = with_old_group()
    here:run { "publish", "-b", "embedded:data", "orders", "new" } -- nobody has handled it yet
    assert.equal(4, #here:messages "orders")
    local result = groups(here, "rm", "orders", "audit", "--yes", "--json")
    assert.equal(0, result.code)
    local told = { channel = "orders", group = "audit", messages = 4, result = "removed" }
    assert.same({ told }, cli.objects(result.stdout))
    assert.equal("removed group audit of orders; 4 messages waited for it\n", result.stderr)
    local left = here:messages "orders"
    assert.same({ 1, "new" }, { #left, left[1].body })
    assert.equal(0, here:run({ "run", "--once" }).code)
    assert.equal(0, #here:messages "orders")
  end)

  it("needs a yes, and a group that is there", function()
    local here = with_old_group()
    local result = groups(here, "rm", "orders", "audit")
    assert.equal(64, result.code)
    assert.truthy(result.stderr:find("say --yes", 1, true))
    result = groups(here, "rm", "orders", "adit", "--yes")
    assert.equal(1, result.code)
    assert.equal("moonwire groups rm: orders has no group adit; did you mean audit?\n", result.stderr)
    assert.equal(1, groups(here, "rm", "nowhere", "audit", "--yes").code)
    assert.equal(3, #here:messages "orders")
  end)

  it("is refused while the group is consumed; forced, its consumer goes on as a new group", function()
    local here = with_old_group()
    local child = here:spawn { "run" }
    local function consumed()
      return groups(here, "ls", "--json").stdout:find('"consumers":1,"delayed":0,"group":"orders"', 1, true)
    end
    wait.until_(consumed, 20, "the consumer")
    local result = groups(here, "rm", "orders", "orders", "--yes")
    assert.equal(1, result.code)
    assert.truthy(result.stderr:find("group orders of orders has 1 consumer: stop it first, or say --force", 1, true))
    assert.equal(0, groups(here, "rm", "orders", "orders", "--yes", "--force").code)
    wait.until_(consumed, 20, "the consumer to be there again")
    assert.equal(0, groups(here, "rm", "orders", "audit", "--yes").code)
    here:run { "publish", "-b", "embedded:data", "orders", "new" }
    wait.until_(function() return #here:messages "orders" == 0 end, 20, "the new group to handle it")
    assert.equal(0, child:stop(20))
  end)
end)
