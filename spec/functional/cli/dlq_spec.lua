-- moonwire dlq: dead letters made by a real run, listed, shown, sent back, removed.
local cli = require "spec.functional.cli.support"
local process = require "spec.support.process"
local wait = require "spec.support.wait"

local function dlq(here, verb, ...) return here:run { "dlq", verb, "-b", "embedded:data", ... } end

-- Three letters: r1 (rejected, key k1), f1 (failed twice), r2 (rejected, key k2).
local function with_letters()
  local here = cli.workdir()
  here:project()
  here:publish("orders", "reject 1", "--id", "r1", "--key", "k1")
  here:publish("orders", '{"fail":true,"b":[1,2]}', "--id", "f1", "-H", "tenant=acme")
  here:publish("orders", "reject 2", "--id", "r2", "--key", "k2")
  here:publish("orders", "fine", "--id", "ok")
  here:settle()
  return here
end

local function ids(list)
  local found = {}
  for i, letter in ipairs(list) do found[i] = letter.id end
  table.sort(found)
  return table.concat(found, " ")
end

describe("dlq ls", function()
  local here = with_letters()

  it("is a table", function()
    local result = dlq(here, "ls", "orders.dead")
    assert.equal(0, result.code)
    assert.equal("", result.stderr)
    assert.truthy(result.stdout:match "^ID +TIME +CLASS +ATTEMPTS +KEY +REASON\n", result.stdout)
    assert.truthy(result.stdout:match "\nr1 +%S+Z +business +1 +k1 +no reject 1\n", result.stdout)
    assert.truthy(result.stdout:match "\nf1 +%S+Z +transient +2 +%- +gave up after 2 attempts: .*handler says no\n")
  end)

  it("lists those of all pipelines of the project here when no channel is named", function()
    local result = here:run { "dlq", "ls" }
    assert.equal(0, result.code)
    assert.matches("^CHANNEL +ID +TIME +CLASS +ATTEMPTS +KEY +REASON\norders.dead +%S+ ", result.stdout)
    assert.equal(2, #cli.objects(here:run({ "dlq", "ls", "--json", "--limit", "2" }).stdout))
    assert.equal("orders.dead", cli.objects(here:run({ "dlq", "ls", "--json" }).stdout)[1].dead)
    local elsewhere = cli.workdir():run { "dlq", "ls", "-b", "embedded:" .. here.path .. "/data" }
    assert.equal(64, elsewhere.code)
    assert.matches("CHANNEL is missing", elsewhere.stderr)
  end)

  it("says which channel may be meant when there is nothing on it", function()
    local result = here:run { "dlq", "ls", "orders.daed" }
    assert.equal("no dead letters on orders.daed; did you mean orders.dead?\n", result.stderr)
  end)

  it("gives everything as JSON", function()
    local letter = here:letters("--class", "transient")[1]
    assert.same({ "f1", "transient", 2, 0, "orders", '{"fail":true,"b":[1,2]}', "acme" }, {
      letter.id, letter.class, letter.attempts, letter.replays, letter.channel, letter.body, letter.headers.tenant,
    })
  end)

  it("filters", function()
    assert.equal("r1 r2", ids(here:letters("--class", "business")))
    assert.equal("r2", ids(here:letters("--reason", "reject 2")))
    assert.equal("f1", ids(here:letters("--reason", "handler says no")))
    assert.equal("r1", ids(here:letters("--key", "k1")))
    assert.equal("", ids(here:letters("--older", "1h")))
    assert.equal("f1 r1 r2", ids(here:letters("--newer", "1h")))
    assert.equal("f1 r1 r2", ids(here:letters("--older", "1ms")))
    assert.equal(2, #here:letters("--limit", "2"))
    assert.equal("f1", ids(here:letters("f1")))
    assert.equal("r1", ids(here:letters("--class", "business", "--key", "k1", "--newer", "10m")))
    assert.equal("f1 r1 r2", ids(here:letters("--pipeline", "orders")))
    assert.equal("", ids(here:letters("--pipeline", "other")))
  end)

  it("says when there is nothing, on stderr", function()
    local result = dlq(here, "ls", "nowhere.dead")
    assert.same({ 0, "" }, { result.code, result.stdout })
    assert.equal("no dead letters on nowhere.dead\n", result.stderr)
    result = dlq(here, "ls", "orders.dead", "--older", "1h")
    assert.same({ 0, "", "no dead letter on orders.dead is as the flags say\n" },
      { result.code, result.stdout, result.stderr })
  end)

  it("fails for an id that is not there", function()
    local result = dlq(here, "ls", "orders.dead", "r1", "nobody")
    assert.equal(1, result.code)
    assert.truthy(result.stderr:find("not on orders.dead: nobody", 1, true), result.stderr)
  end)

  it("creates no store", function()
    local empty = cli.workdir()
    for _, verb in ipairs { "ls", "replay", "purge" } do
      local result = dlq(empty, verb, "orders.dead")
      assert.equal(69, result.code)
      assert.truthy(result.stderr:find("there is no folder", 1, true), result.stderr)
    end
    assert.equal("", process.run({ "ls", "-A", empty.path }).stdout)
  end)
end)

describe("dlq show", function()
  local here = with_letters()

  it("prints everything, with pretty JSON", function()
    local result = dlq(here, "show", "orders.dead", "f1")
    assert.equal(0, result.code)
    local text = result.stdout
    for _, pattern in ipairs {
      "id +f1\n", "class +transient\n", "attempts +2\n", "channel +orders\n", "pipeline +orders\n", "tenant: acme\n",
      "first error +handlers/orders.lua:6: handler says no\n", "last error +handlers/orders.lua:6: handler says no\n",
      "broker +embedded:" .. here.path:gsub("%p", "%%%0") .. "/data\n",
      'body %(23 bytes%)\n  {\n    "b": %[\n      1,\n',
    } do
      assert.truthy(text:match(pattern), pattern .. " in " .. text)
    end
  end)

  it("prints bodies that are no JSON, and the bytes alone", function()
    assert.truthy(dlq(here, "show", "orders.dead", "r1").stdout:find("body (8 bytes)\n  reject 1\n", 1, true))
    assert.equal("reject 1", dlq(here, "show", "orders.dead", "r1", "--body").stdout)
    assert.equal("reject 1", cli.objects(dlq(here, "show", "orders.dead", "r1", "--json").stdout)[1].body)
  end)

  it("fails for an id that is not there", function()
    local result = dlq(here, "show", "orders.dead", "nobody")
    assert.same({ 1, "" }, { result.code, result.stdout })
  end)

  it("escapes what would act on a terminal", function()
    local hostile = cli.workdir()
    hostile:project()
    hostile:publish("orders", "reject \27[2J\255", "--id", "x\27]0;", "--key", "\27[31m", "-H", "h=\27c")
    hostile:settle()
    for _, words in ipairs { { "ls", "orders.dead" }, { "show", "orders.dead", "x\27]0;" } } do
      local result = dlq(hostile, unpack(words))
      assert.equal(0, result.code)
      assert.falsy(result.stdout:find "\27", result.stdout)
    end
    assert.truthy(dlq(hostile, "show", "orders.dead", "x\27]0;").stdout:find("(not text", 1, true))
  end)
end)

describe("dlq replay", function()
  it("sends letters back where they died, without what died on them", function()
    local here = with_letters()
    local result = dlq(here, "replay", "orders.dead", "--class", "transient")
    assert.same({ 0, "", "replayed 1\n" }, { result.code, result.stdout, result.stderr })
    assert.equal("r1 r2", ids(here:letters()))
    local found = here:messages "orders"
    assert.equal(1, #found)
    assert.same({ "f1", '{"fail":true,"b":[1,2]}', { tenant = "acme", ["mw-replay"] = "1" } },
      { found[1].id, found[1].body, found[1].headers })
    here:settle { MENDED = "yes" }
    assert.equal(0, #here:messages "orders")
    assert.equal("r1 r2", ids(here:letters()))
  end)

  it("refuses to send letters to where they stand: they would lose why they died", function()
    local here = with_letters()
    local result = dlq(here, "replay", "orders.dead", "--to", "orders.dead", "--force", "--yes")
    assert.equal(64, result.code)
    assert.truthy(result.stderr:find("--to orders.dead: they stand there already", 1, true), result.stderr)
    assert.equal("business", here:letters("r1")[1].class)
  end)

  it("changes nothing with --dry-run", function()
    local here = with_letters()
    local result = dlq(here, "replay", "orders.dead", "--dry-run", "--reason", "reject 1")
    assert.same({ 0, "r1 -> orders\n", "would replay 1\n" }, { result.code, result.stdout, result.stderr })
    assert.equal("f1 r1 r2", ids(here:letters()))
    assert.equal(0, #here:messages "orders")
  end)

  it("tells about each letter with --json", function()
    local here = with_letters()
    local result = dlq(here, "replay", "orders.dead", "--json", "r1", "--to", "elsewhere")
    local line = cli.objects(result.stdout)[1]
    assert.same({ "r1", "replayed", "elsewhere", 0 }, { line.id, line.result, line.to, line.replays })
    assert.equal("r1", here:messages("elsewhere")[1].id)
  end)

  it("refuses a letter that was replayed three times, unless forced", function()
    local here = with_letters()
    for i = 1, 3 do
      assert.equal(0, dlq(here, "replay", "orders.dead", "r1").code)
      here:settle()
      assert.equal(i, here:letters("r1")[1].replays)
    end
    local result = dlq(here, "replay", "orders.dead", "--class", "business")
    assert.equal(1, result.code)
    assert.truthy(result.stderr:find("r1 was replayed 3 times already", 1, true), result.stderr)
    assert.truthy(result.stderr:find("replayed 1; refused 1 that were replayed 3 times", 1, true), result.stderr)
    assert.equal("f1 r1", ids(here:letters()))
    result = dlq(here, "replay", "orders.dead", "r1", "--force")
    assert.equal(0, result.code)
    assert.equal("4", here:messages("orders")[2].headers["mw-replay"])
  end)

  it("refuses letters of another broker, unless told where to", function()
    local here = with_letters()
    process.run { "mv", here.path .. "/data", here.path .. "/moved" }
    local function replay(...) return here:run { "dlq", "replay", "-b", "embedded:moved", "orders.dead", ... } end
    local result = replay()
    assert.equal(1, result.code)
    local origin = "embedded:" .. here.path .. "/data"
    assert.truthy(result.stderr:find("r1 died on another broker, " .. origin, 1, true), result.stderr)
    assert.truthy(result.stderr:find("replayed 0; refused 3 of another broker", 1, true), result.stderr)
    assert.equal(0, replay("r1", "--to", "orders").code)
    assert.equal(0, replay("--force").code)
  end)

  it("knows its own broker by any path", function()
    local here = with_letters()
    process.run { "ln", "-s", "data", here.path .. "/link" }
    assert.equal(0, here:run({ "dlq", "replay", "-b", "embedded:./link/../data?size=1GB", "orders.dead", "r1" }).code)
    assert.equal(0, here:run({ "dlq", "replay", "-b", "embedded:link", "orders.dead", "r2" }).code)
  end)

  it("refuses what is no dead letter", function()
    local here = with_letters()
    here:publish("orders.dead", "by hand", "--id", "hand")
    local result = dlq(here, "replay", "orders.dead", "hand")
    assert.equal(1, result.code)
    assert.truthy(result.stderr:find("hand does not say where it died: use --to CHANNEL", 1, true), result.stderr)
    assert.equal(0, dlq(here, "replay", "orders.dead", "hand", "--to", "orders").code)
  end)

  it("keeps to the rate, and ends cleanly when interrupted", function()
    local here, lines = cli.workdir(), {}
    here:project()
    for i = 1, 40 do lines[i] = ("reject %d"):format(i) end
    here:run({ "publish", "-b", "embedded:data", "orders", "--lines" }, { stdin = table.concat(lines, "\n") })
    here:settle()
    assert.equal(40, #here:letters())
    local began = wait.now()
    assert.equal(0, dlq(here, "replay", "orders.dead", "--rate", "20/s", "--limit", "10").code)
    assert.truthy(wait.now() - began > 0.4)
    assert.equal(30, #here:letters())
    local child = here:spawn { "dlq", "replay", "-b", "embedded:data", "orders.dead", "--rate", "10/s" }
    wait.until_(function() return #here:letters() < 30 end, 10, "the first letter to go")
    child:kill "INT"
    assert.equal(1, child:wait(5))
    assert.truthy(child:stderr():match "interrupted: replayed %d+; run it again to go on", child:stderr())
    assert.equal(40, #here:letters() + #here:messages "orders")
    assert.equal(0, dlq(here, "replay", "orders.dead").code)
    assert.same({ 0, 40 }, { #here:letters(), #here:messages "orders" })
  end)

  it("takes the set as it stood at the start", function()
    local here = with_letters()
    here:publish("orders", "reject 4", "--id", "r4")
    local worker = here:spawn { "run" } -- everything that is sent back dies again at once
    wait.until_(function() return #here:letters() == 4 end, 10, "the fourth letter")
    local result = dlq(here, "replay", "orders.dead", "--rate", "20/s")
    assert.equal("replayed 4\n", result.stderr)
    wait.until_(function() return #here:letters() == 4 end, 10, "all four to die again")
    assert.equal(0, worker:stop())
    for _, letter in ipairs(here:letters()) do assert.equal(1, letter.replays) end
  end)

  it("asks on a terminal", function()
    if not process.which "script" then return pending "needs script(1)" end
    local here = with_letters()
    local function answer(text)
      local command = ("'%s' dlq replay -b embedded:data orders.dead --class business"):format(cli.binary)
      local feed = ("(sleep 0.3; printf '%s\\n'; sleep 0.5) | script -qec \"%s\" /dev/null"):format(text, command)
      return process.run { { "bash", "-o", "pipefail", "-c", feed }, cwd = here.path }
    end
    local result = answer "n"
    local question = "send 2 letters of orders.dead back to where they died? [y/N]"
    assert.truthy(result.stdout:find(question, 1, true), result.stdout)
    assert.equal("f1 r1 r2", ids(here:letters()))
    result = answer "y"
    assert.truthy(result.stdout:find("replayed 2", 1, true), result.stdout)
    assert.equal("f1", ids(here:letters()))
  end)
end)

describe("dlq purge", function()
  it("wants to be told when nobody can be asked", function()
    local here = with_letters()
    local result = dlq(here, "purge", "orders.dead")
    assert.equal(64, result.code)
    assert.truthy(result.stderr:find("say --yes", 1, true), result.stderr)
    assert.equal("f1 r1 r2", ids(here:letters()))
  end)

  it("removes what was chosen, and nothing else", function()
    local here = with_letters()
    local result = dlq(here, "purge", "orders.dead", "--class", "business", "--dry-run")
    assert.same({ 0, "would remove 2\n" }, { result.code, result.stderr })
    assert.equal("f1 r1 r2", ids(here:letters()))
    result = dlq(here, "purge", "orders.dead", "--class", "business", "--yes")
    assert.same({ 0, "", "removed 2\n" }, { result.code, result.stdout, result.stderr })
    assert.equal("f1", ids(here:letters()))
    assert.equal(1, dlq(here, "purge", "orders.dead", "r1", "--yes").code)
    assert.equal("removed", cli.objects(dlq(here, "purge", "orders.dead", "--yes", "--json").stdout)[1].result)
    assert.equal(0, #here:letters())
  end)

  it("removes thousands, page by page", function()
    local here, lines = cli.workdir(), {}
    for i = 1, 3000 do lines[i] = tostring(i) end
    here:run({ "publish", "-b", "embedded:data", "orders.dead", "--lines" }, { stdin = table.concat(lines, "\n") })
    assert.equal("removed 2500\n", dlq(here, "purge", "orders.dead", "--yes", "--limit", "2500").stderr)
    assert.equal(500, #here:letters())
  end)

  it("releases the key that was held for a letter", function()
    local here = cli.workdir()
    here:project "hold_key"
    here:publish("orders", "reject it", "--id", "first", "--key", "k")
    here:publish("orders", "fine", "--id", "second", "--key", "k")
    local worker = here:spawn { "run", "--log", "json" }
    wait.until_(function() return #here:letters() == 1 end, 10, "the letter")
    wait.sleep(0.3)
    assert.equal("second", ids(here:messages "orders"))
    local result = dlq(here, "purge", "orders.dead", "first", "--yes")
    assert.same({ 0, "removed 1; released 1 held key\n" }, { result.code, result.stderr })
    wait.until_(function() return #here:messages "orders" == 0 end, 10, "the held message to flow")
    assert.equal(0, worker:stop())
  end)
end)

describe("the progress bar", function()
  -- On a terminal of its own.
  local function on_terminal(here, words)
    local command = ("'%s' dlq %s"):format(cli.binary, words)
    return process.run({ { "script", "-qec", command, "/dev/null" }, cwd = here.path, timeout = 30 }).stdout
  end

  it("shows how far it came, and is wiped away", function()
    if not process.which "script" then return pending "needs script(1)" end
    local here = with_letters()
    local text = on_terminal(here, "replay -b embedded:data orders.dead --yes --rate 5/s")
    assert.truthy(text:find "\rreplaying %[#+ *%] [1-3]/3  %d+/s\27%[K", text)
    assert.truthy(text:find("\r\27[Kreplayed 3", 1, true), text)
    here:settle()
    text = on_terminal(here, "purge -b embedded:data orders.dead --yes")
    assert.truthy(text:find "\rremoving %[#+%] 3/3  %d+/s\27%[K\r\27%[K", text)
    assert.equal(0, #here:letters())
  end)

  it("is not drawn into a file", function()
    local here = with_letters()
    local result = dlq(here, "replay", "orders.dead", "--yes")
    assert.equal("replayed 3\n", result.stderr)
  end)
end)
