-- moonwire tail: looks, follows, ends; never takes anything, never creates anything.
local cli = require "spec.functional.cli.support"
local process = require "spec.support.process"
local wait = require "spec.support.wait"

local function tail(here, ...) return here:run { "tail", "-b", "embedded:data", ... } end

describe("tail", function()
  it("prints what stands there and leaves it there", function()
    local here = cli.workdir()
    here:publish("a", "one", "--id", "1", "--key", "k")
    here:publish("a", "two\27[2J\n\255", "--id", "2")
    for _ = 1, 2 do
      local result = tail(here, "a", "--no-follow")
      assert.equal(0, result.code)
      assert.equal("", result.stderr)
      local first, second = result.stdout:match "^([^\n]*)\n([^\n]*)\n$"
      assert.truthy(first:match "^%d+%-%d+%-%d+T%d+:%d+:%d+%.%d%d%dZ  1  k  one$", first)
      assert.truthy(second:find("2  -  two\\x1b[2J\\n\\xff", 1, true), second)
    end
  end)

  it("says that there is nothing, and which channel may be meant", function()
    local here = cli.workdir()
    here:project()
    here:publish("orders", "x")
    local result = tail(here, "ordres", "--no-follow")
    assert.same({ 0, "", "nothing on ordres; did you mean orders?\n" }, { result.code, result.stdout, result.stderr })
    assert.equal("nothing on emails\n", tail(here, "emails", "--no-follow").stderr)
  end)

  it("prints one JSON object a line", function()
    local here = cli.workdir()
    here:publish("a", "é", "--id", "1", "-H", "a=b")
    here:publish("a", "\255", "--id", "2", "--key", "\254", "-H", "bin=\200")
    local one, two = unpack(cli.objects(tail(here, "a", "--no-follow", "--json").stdout))
    assert.truthy(one.time:match "^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$")
    one.time = nil
    assert.same({ position = 1, id = "1", headers = { a = "b" }, body = "é", priority = 4 }, one)
    assert.same({ "/w==", "/g==", "yA==" }, { two.body_base64, two.key_base64, two.headers_base64.bin })
    assert.is_nil(two.body)
    assert.is_nil(two.key)
  end)

  it("ends after --count messages", function()
    local here = cli.workdir()
    for i = 1, 5 do here:publish("a", "m" .. i) end
    local found = cli.objects(tail(here, "a", "--from", "start", "--count", "3", "--json").stdout)
    assert.same({ "m1", "m2", "m3" }, { found[1].body, found[2].body, found[3].body })
    assert.equal(3, #found)
  end)

  it("pages through more than one page", function()
    local here, lines = cli.workdir(), {}
    for i = 1, 2500 do lines[i] = tostring(i) end
    here:run({ "publish", "-b", "embedded:data", "a", "--lines" }, { stdin = table.concat(lines, "\n") })
    local found = here:messages "a"
    assert.equal(2500, #found)
    assert.equal("2500", found[2500].body)
  end)

  it("follows from the end until INT, which is no failure", function()
    local here = cli.workdir()
    here:publish("a", "old")
    local child = here:spawn { "tail", "-b", "embedded:data", "a", "--json" }
    wait.sleep(0.5)
    here:publish("a", "new")
    wait.until_(function() return child:stdout():find "\n" end, 5, "a line")
    child:kill "INT"
    assert.equal(0, child:wait(5))
    local found = cli.objects(child:stdout())
    assert.equal(1, #found)
    assert.equal("new", found[1].body)
    assert.equal("", child:stderr())
  end)

  it("waits for a channel that does not exist yet", function()
    local here = cli.workdir()
    here:publish("other", "x")
    local child = here:spawn { "tail", "-b", "embedded:data", "a", "--count", "1" }
    wait.sleep(0.3)
    here:publish("a", "there")
    assert.equal(0, child:wait(5))
    assert.truthy(child:stdout():find "there")
    assert.equal("", tail(here, "nobody", "--no-follow").stdout)
  end)

  it("ends quietly when nobody reads any more", function()
    local here, lines = cli.workdir(), {}
    for i = 1, 5000 do lines[i] = ("x"):rep(200) .. i end
    here:run({ "publish", "-b", "embedded:data", "a", "--lines" }, { stdin = table.concat(lines, "\n") })
    local script = [["$0" tail -b embedded:data a --no-follow | head -n 1; echo "${PIPESTATUS[0]}"]]
    local result = process.run { { "bash", "-c", script, cli.binary }, cwd = here.path }
    assert.equal("", result.stderr)
    assert.truthy(result.stdout:match "x1\n0\n$", result.stdout)
  end)

  it("says when its output cannot be written", function()
    local here = cli.workdir()
    here:publish("a", "x")
    local result = process.run {
      { "sh", "-c", '"$0" tail -b embedded:data a --no-follow > /dev/full', cli.binary }, cwd = here.path,
    }
    assert.equal(1, result.code)
    assert.truthy(result.stderr:find("cannot write to standard output: No space left", 1, true), result.stderr)
  end)

  it("creates no store", function()
    local here = cli.workdir()
    local result = tail(here, "a", "--no-follow")
    assert.equal(69, result.code)
    assert.equal("", result.stdout)
    assert.truthy(result.stderr:find("there is no folder " .. here.path .. "/data", 1, true), result.stderr)
    process.run { "mkdir", here.path .. "/data" }
    result = tail(here, "a", "--no-follow")
    assert.equal(69, result.code)
    assert.truthy(result.stderr:find("no store in the folder", 1, true), result.stderr)
    assert.equal("", process.run({ "ls", "-A", here.path .. "/data" }).stdout)
  end)

  it("says when the store is damaged", function()
    local here = cli.workdir()
    here:write("data/moonwire.mdb", ("garbage "):rep(2000))
    local result = tail(here, "a", "--no-follow")
    assert.equal(69, result.code)
    assert.truthy(result.stderr:find("is not a Moonwire store", 1, true), result.stderr)
  end)

  it("uses no colours unless there is a terminal", function()
    local here = cli.workdir()
    here:publish("a", "x")
    assert.falsy(tail(here, "a", "--no-follow").stdout:find "\27")
    if not process.which "script" then return pending "needs script(1)" end
    local function on_terminal(env)
      local command = ("%s '%s' tail -b embedded:data a --no-follow"):format(env, cli.binary)
      local argv = { "script", "-qec", command, "/dev/null" }
      return process.run({ argv, cwd = here.path, env = { TERM = "xterm", NO_COLOR = false } }).stdout
    end
    assert.truthy(on_terminal("env"):find "\27%[2m")
    assert.falsy(on_terminal("env NO_COLOR=1"):find "\27")
  end)
end)
