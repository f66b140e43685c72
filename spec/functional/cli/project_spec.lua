-- The verbs that take a project: run, check, new.
local cli = require "spec.functional.cli.support"
local core = require "moonwire.core"
local json = require "moonwire.json"
local process = require "spec.support.process"
local wait = require "spec.support.wait"

local function log_lines(text)
  local by_text = {}
  for line in text:gmatch "[^\n]+" do
    local fields = assert(json.decode(line), line)
    by_text[fields.msg] = fields
  end
  return by_text
end

describe("run", function()
  it("runs once, tells when it starts and what was done", function()
    local here = cli.workdir()
    here:project()
    here:publish("orders", "fine")
    here:publish("orders", "reject it")
    local result = here:run { "run", "--once", "--log", "json" }
    assert.same({ 0, "" }, { result.code, result.stdout })
    local lines = log_lines(result.stderr)
    assert.same({ 1, 1, "info" }, { lines.started.pipelines, lines.started.generation, lines.started.level })
    assert.truthy(lines.started.version:match "^%d+%.%d+%.%d+$")
    local over = lines["pipeline ended"]
    assert.same({ "orders", 2, 1, 1, 0 }, { over.pipeline, over.received, over.handled, over.dead, over.retried })
    assert.equal(1, lines.metrics.taken)
  end)

  it("drains on TERM and ends with 0", function()
    local here = cli.workdir()
    here:project()
    local child = here:spawn { "run", here.path, "--log", "json", "--drain", "2s" }
    wait.until_(function() return child:stderr():find "started" end, 10, "the start")
    child:kill "TERM"
    assert.equal(0, child:wait(5))
    local lines = log_lines(child:stderr())
    assert.truthy(lines.draining)
    assert.truthy(lines["pipeline ended"])
    assert.is_nil(lines.metrics)
  end)

  it("writes logfmt when asked, and less when asked", function()
    local here = cli.workdir()
    here:project()
    assert.truthy(here:run({ "run", "--once", "--log", "logfmt" }).stderr:find "msg=started")
    assert.equal("", here:run({ "run", "--once", "--log-level", "error" }).stderr)
  end)

  it("takes the broker from the flag, relative to where it was called", function()
    local here = cli.workdir()
    here:project()
    local result = here:run { "run", here.path, "--once", "--broker", "embedded:other", "--jit", "off" }
    assert.equal(0, result.code)
    assert.truthy(here:read "other/moonwire.mdb")
    assert.is_nil(here:read "data/moonwire.mdb")
  end)

  it("tells every problem of the project and ends with 78", function()
    local here = cli.workdir()
    here:write("moonwire.lua", [[
local mw = require "moonwire"
local broker = mw.connect "memory:x"
mw.pipeline "a" { from = broker:channel "a", handler = "handlers.a", concurency = 3 }
mw.pipeline "b" { from = broker:channel "b", handler = "handlers.b" }
]])
    for _, words in ipairs { { "run", "--once" }, { "check" } } do
      local result = here:run(words)
      assert.same({ 78, "" }, { result.code, result.stdout })
      local _, count = result.stderr:gsub("\n", "")
      assert.equal(3, count, result.stderr)
      assert.truthy(result.stderr:find("moonwire.lua:3:", 1, true), result.stderr)
      assert.truthy(result.stderr:find("concurrency", 1, true), result.stderr)
    end
    assert.equal(78, cli.workdir():run({ "run" }).code)
  end)

  it("ends with 69 when the broker refuses", function()
    local here = cli.workdir()
    here:project()
    here:write("data/moonwire.mdb", ("garbage "):rep(2000))
    local result = here:run { "run", "--once" }
    assert.equal(69, result.code)
    assert.truthy(result.stderr:find("is not a Moonwire store", 1, true), result.stderr)
  end)

  it("wants a folder that exists", function()
    local here = cli.workdir()
    here:write("file", "")
    for _, verb in ipairs { "run", "check" } do
      local result = here:run { verb, "nowhere" }
      assert.equal(64, result.code)
      assert.truthy(result.stderr:find('there is no folder "nowhere"', 1, true), result.stderr)
      assert.truthy(here:run({ verb, "file" }).stderr:find('"file" is not a folder', 1, true))
    end
  end)
end)

describe("check", function()
  it("counts the pipelines, connects to nothing", function()
    local here = cli.workdir()
    here:project()
    local result = here:run { "check" }
    assert.same({ 0, "ok: 1 pipeline\n", "" }, { result.code, result.stdout, result.stderr })
    assert.is_nil(here:read "data/moonwire.mdb")
    assert.same({ ok = true, pipelines = 1, problems = {} }, cli.objects(here:run({ "check", "--json" }).stdout)[1])
  end)

  it("gives the problems as JSON", function()
    local here = cli.workdir()
    here:write("moonwire.lua", "\nlocal x = = 1\n")
    local result = here:run { "check", "--json" }
    assert.equal(78, result.code)
    local object = cli.objects(result.stdout)[1]
    assert.is_false(object.ok)
    assert.same({ "moonwire.lua", 2 }, { object.problems[1].file, object.problems[1].line })
    assert.truthy(object.problems[1].text:find "unexpected symbol")
  end)
end)

describe("new", function()
  it("makes a project that can be checked and run", function()
    local here = cli.workdir()
    local result = here:run { "new", "shop" }
    assert.equal(0, result.code)
    assert.truthy(result.stdout:find("shop/moonwire.lua\n", 1, true))
    assert.truthy(result.stderr:find("cd shop", 1, true))
    assert.equal("ok: 1 pipeline\n", here:run({ "check", "shop" }).stdout)
    local shop = setmetatable({ path = here.path .. "/shop" }, getmetatable(here))
    shop:write(".env", shop:read ".env.example")
    local function publish(body) assert.equal(0, shop:run({ "publish", "orders", body }).code) end
    publish '{"item":"teapot","quantity":1}'
    publish '{"item":"teapot","quantity":1000}'
    publish '{"item":"teapot"}'
    result = shop:run { "run", "--once", "--log", "json" }
    assert.equal(0, result.code, result.stderr)
    assert.equal("teapot", log_lines(result.stderr)["order taken"].item)
    local letters = cli.objects(shop:run({ "dlq", "ls", "orders.dead", "--json" }).stdout)
    assert.equal(2, #letters)
    local classes = { letters[1].class, letters[2].class }
    table.sort(classes)
    assert.same({ "business", "invalid" }, classes)
    result = shop:run { "tail", "orders.taken", "--json", "--no-follow" }
    assert.equal(1, #cli.objects(result.stdout))
  end)

  it("makes specs that pass", function()
    if not core.source "lua/moonwire/cli/verbs/test.lua" then return pending "this build has no `moonwire test`" end
    local here = cli.workdir()
    assert.equal(0, here:run({ "new", "shop" }).code)
    local result = here:run { "test", "shop" }
    assert.equal(0, result.code, result.stdout .. result.stderr)
    assert.truthy(result.stdout:find "2 success", result.stdout)
  end)

  it("overwrites nothing", function()
    local here = cli.workdir()
    here:write("shop/.gitignore", "mine")
    local result = here:run { "new", "shop" }
    assert.same({ 1, "" }, { result.code, result.stdout })
    assert.truthy(result.stderr:find("shop/.gitignore exists already: nothing was written", 1, true), result.stderr)
    assert.is_nil(here:read "shop/moonwire.lua")
    here:write("file", "")
    assert.equal(1, here:run({ "new", "file" }).code)
  end)

  it("goes where it is told", function()
    local here = cli.workdir()
    assert.equal(0, here:run({ "new", "shop", "--dir", "a/b" }).code)
    assert.truthy(here:read "a/b/shop/moonwire.lua")
    assert.equal(0, here:run({ "new", "c/shop/" }).code)
    assert.truthy(here:read("c/shop/README.md"):find "^# shop\n")
  end)

  it("refuses names that are none", function()
    for _, name in ipairs { "", "-x", "..", "a b", "a\nb", ("x"):rep(101) } do
      local result = cli.workdir():run { "new", "--", name }
      assert.equal(64, result.code, name)
    end
    assert.equal(1, cli.workdir():run({ "new", "shop", "--dir", "/proc/x" }).code)
  end)
end)

describe("a file that is there and cannot be read", function()
  -- Root reads everything, unless it is told not to.
  local function check(here)
    local plain = "--bounding-set=-dac_override,-dac_read_search"
    local words = { cli.binary, "check" }
    if process.run { "id", "-u" }.stdout == "0\n" then words = { "setpriv", plain, "--", cli.binary, "check" } end
    local result = process.run { words, cwd = here.path, timeout = 30 }
    return result.code, result.stderr
  end

  it("is an error with the reason: .env", function()
    local here = cli.workdir()
    here:project()
    here:write(".env", "MENDED=yes\n")
    process.run { "chmod", "000", here.path .. "/.env" }
    local code, text = check(here)
    assert.equal(78, code)
    assert.truthy(text:find("/.env: Permission denied", 1, true), text)
    process.run { "rm", here.path .. "/.env" }
    assert.equal(0, (check(here)))
    process.run { "mkdir", here.path .. "/.env" }
    code, text = check(here)
    assert.equal(78, code)
    assert.truthy(text:find("/.env: Is a directory", 1, true), text)
  end)

  it("is an error with the reason: a handler", function()
    local here = cli.workdir()
    here:project()
    process.run { "chmod", "000", here.path .. "/handlers/orders.lua" }
    local code, text = check(here)
    assert.equal(78, code)
    assert.truthy(text:find("/handlers/orders.lua: Permission denied", 1, true), text)
  end)
end)

describe(".env", function()
  it("may begin with the mark of an editor", function()
    local here = cli.workdir()
    here:project()
    here:write(".env", "\239\187\191MENDED=yes\n")
    assert.equal(0, here:run({ "check" }).code)
  end)
end)
