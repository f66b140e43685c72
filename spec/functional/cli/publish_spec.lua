-- moonwire publish: bodies from everywhere, ids and counts, many lines, what is refused.
local cli = require "spec.functional.cli.support"
local json = require "moonwire.json"

local function publish(here, words, options)
  return here:run({ "publish", "-b", "embedded:data", unpack(words) }, options)
end

describe("publish", function()
  it("creates the store, prints the id, says nothing else", function()
    local here = cli.workdir()
    local result = publish(here, { "orders", "hello" })
    assert.equal(0, result.code)
    assert.equal("", result.stderr)
    local id = result.stdout:match "^(%S+)\n$"
    assert.truthy(id)
    local found = here:messages "orders"
    assert.equal(1, #found)
    assert.equal(id, found[1].id)
    assert.equal("hello", found[1].body)
    assert.is_nil(found[1].key)
  end)

  it("sends everything it is told", function()
    local here = cli.workdir()
    local result = publish(here, {
      "orders", '{"a":1}', "--key", "k", "--header", "a=b=c", "-H", "d=", "--id", "me", "--delay", "1h",
      "--priority", "9", "--type", "application/json",
    })
    assert.equal("me\n", result.stdout)
    local m = here:messages("orders")[1]
    assert.same({ "me", "k", { a = "b=c", d = "" }, 9, "application/json" },
      { m.id, m.key, m.headers, m.priority, m.type })
    assert.truthy(m.due > m.time)
  end)

  it("refuses a broker that ends with the command, and addresses that cannot be", function()
    local here = cli.workdir()
    for url, text in pairs {
      ["memory:x"] = "memory:x lives inside of one process, and ends with this command: use embedded:FOLDER",
      ["memory-offset:x"] = "memory-offset:x lives inside of one process",
      ["redis://:x"] = "an empty host name", ["redis://h:99999"] = '"99999" is no port of "h"',
    } do
      local result = here:run { "publish", "-b", url, "orders", "hello" }
      assert.same({ 64, "" }, { result.code, result.stdout })
      assert.truthy(result.stderr:find(text, 1, true), result.stderr)
    end
    for _, words in ipairs { { "tail", "orders" }, { "dlq", "ls", "orders.dead" } } do
      local result = here:run { words[1], words[2], words[3], "-b", "memory:x" }
      assert.equal(64, result.code)
    end
  end)

  it("refuses an empty id and a delay of ages", function()
    local here = cli.workdir()
    local result = publish(here, { "orders", "x", "--id", "" })
    assert.equal(64, result.code)
    assert.truthy(result.stderr:find("id must be a string that is not empty", 1, true), result.stderr)
    result = publish(here, { "orders", "x", "--delay", "1000000d" })
    assert.equal(64, result.code)
    assert.truthy(result.stderr:find("at most 3.15e+09 (a hundred years), got 86400000000", 1, true), result.stderr)
  end)

  it("reads standard input when there is no body, or a dash", function()
    local here = cli.workdir()
    assert.equal(0, publish(here, { "a" }, { stdin = "one\ntwo\n" }).code)
    assert.equal(0, publish(here, { "a", "-" }, { stdin = "three" }).code)
    assert.equal(0, publish(here, { "a", "" }).code)
    local found = here:messages "a"
    assert.same({ "one\ntwo\n", "three", "" }, { found[1].body, found[2].body, found[3].body })
  end)

  it("reads a file, and says when it cannot", function()
    local here = cli.workdir()
    here:write("body", "from a file")
    assert.equal(0, publish(here, { "a", "--file", "body" }).code)
    assert.equal("from a file", here:messages("a")[1].body)
    local result = publish(here, { "a", "--file", "nowhere" })
    assert.equal(1, result.code)
    assert.truthy(result.stderr:find("nowhere: No such file", 1, true), result.stderr)
    assert.equal(1, publish(here, { "a", "--file", "." }).code)
  end)

  it("keeps bytes that are no text, and large bodies", function()
    local here = cli.workdir()
    local binary = "\0\1\255\254" .. ("x"):rep(10 * 1024 * 1024)
    assert.equal(0, publish(here, { "a" }, { stdin = binary }).code)
    local m = here:messages("a")[1]
    assert.is_nil(m.body)
    assert.equal("AAH//nh4eHh4", m.body_base64:sub(1, 12))
    assert.equal(math.ceil(#binary / 3) * 4, #m.body_base64)
  end)

  it("prints nothing with --quiet", function()
    local result = publish(cli.workdir(), { "a", "x", "--quiet" })
    assert.same({ 0, "", "" }, { result.code, result.stdout, result.stderr })
  end)

  it("takes the broker from the environment, or from .env", function()
    local here = cli.workdir()
    assert.equal(0, here:run({ "publish", "a", "x" }, { env = { BROKER_URL = "embedded:data" } }).code)
    here:write(".env", "BROKER_URL=embedded:data\n")
    assert.equal(0, here:run({ "publish", "a", "y" }).code)
    assert.equal(2, #here:messages "a")
  end)

  it("takes the broker from the project in the folder when nothing else says it", function()
    local here = cli.workdir()
    here:project()
    assert.equal(0, here:run({ "publish", "orders", "x" }).code)
    assert.equal(1, #here:messages "orders")
    here:write("moonwire.lua", here:read "moonwire.lua" .. '\nmw.connect "redis://user:secret@nowhere.invalid"\n')
    local several = here:run { "publish", "orders", "x" }
    assert.equal(64, several.code)
    assert.matches("several brokers: say which by %-%-broker URL: embedded:.*/data, redis://", several.stderr)
    assert.falsy(several.stderr:find("secret", 1, true))
  end)

  it("refuses what contradicts itself", function()
    local here = cli.workdir()
    for _, words in ipairs {
      { "a", "x", "--file", "f" }, { "a", "x", "--lines" }, { "a", "--lines", "--id", "1" },
      { "a", "x", "--key-path", "k" }, { "a", "--lines", "--key", "k", "--key-path", "k" },
      { "a", "x", "--priority", "10" }, { "a", "x", "-H", "a=1", "-H", "a=2" }, { "a", "x", "y" },
      { "a", "x", "--id", ("x"):rep(256) },
    } do
      local result = publish(here, words, { stdin = "x\n" })
      assert.equal(64, result.code, table.concat(words, " "))
      assert.equal("", result.stdout)
    end
  end)

  it("ends with 69 when the store is not one", function()
    local here = cli.workdir()
    here:write("data/moonwire.mdb", ("garbage "):rep(2000))
    local result = publish(here, { "a", "x" })
    assert.equal(69, result.code)
    assert.equal("", result.stdout)
    assert.truthy(result.stderr:find("is not a Moonwire store", 1, true), result.stderr)
    here:write("file", "x")
    assert.equal(69, here:run({ "publish", "-b", "embedded:file", "a", "x" }).code)
    assert.equal(69, here:run({ "publish", "-b", "embedded:/proc/nothing", "a", "x" }).code)
  end)
end)

describe("publish --lines", function()
  it("sends 10,000 lines in order, far faster than one by one", function()
    local here, lines = cli.workdir(), {}
    for i = 1, 10000 do lines[i] = ('{"n":%d,"customer":{"id":"c%d"}}'):format(i, i % 7) end
    local result = publish(here, { "a", "--lines", "--key-path", "customer.id", "--id-path", "n" },
      { stdin = table.concat(lines, "\n") .. "\n", timeout = 30 })
    assert.same({ 0, "10000 published\n", "" }, { result.code, result.stdout, result.stderr })
    local found = here:messages "a"
    assert.equal(10000, #found)
    for i, m in ipairs(found) do
      if m.id ~= tostring(i) or m.key ~= "c" .. i % 7 or m.body ~= lines[i] then assert.same(lines[i], m) end
    end
  end)

  it("leaves out empty lines and takes a last one without an end", function()
    local here = cli.workdir()
    assert.equal("2 published\n", publish(here, { "a", "--lines" }, { stdin = "\none\n  \n\ntwo" }).stdout)
    assert.equal("0 published\n", publish(here, { "b", "--lines" }, { stdin = "" }).stdout)
    here:write("lines", "x\ny\nz\n")
    assert.equal("3 published\n", publish(here, { "c", "--lines", "-f", "lines" }).stdout)
  end)

  it("takes lines larger than a chunk", function()
    local here = cli.workdir()
    local long = ("y"):rep(3 * 1024 * 1024)
    assert.equal("3 published\n", publish(here, { "a", "--lines" }, { stdin = "x\n" .. long .. "\nz\n" }).stdout)
    assert.equal(long, here:messages("a")[2].body)
  end)

  it("stops at a line that has no key, and says how many were confirmed", function()
    local here = cli.workdir()
    local lines = '{"k":1}\n{"k":12345678901}\n{"j":1}\n{"k":2}\n'
    local result = publish(here, { "a", "--lines", "--key-path", "k" }, { stdin = lines })
    assert.equal(1, result.code)
    assert.equal("", result.stdout)
    local why = '2 confirmed, then stopped: line 3: there is nothing at "k"'
    assert.truthy(result.stderr:find(why, 1, true), result.stderr)
    assert.same({ "1", "12345678901" }, { here:messages("a")[1].key, here:messages("a")[2].key })
    result = publish(here, { "a", "--lines", "--key-path", "k" }, { stdin = "no json\n" })
    assert.truthy(result.stderr:find("line 1: body is not JSON", 1, true), result.stderr)
    result = publish(here, { "a", "--lines", "--id-path", "k" }, { stdin = '{"k":{}}\n' })
    assert.truthy(result.stderr:find("is no text or number", 1, true), result.stderr)
  end)

  it("says how many were confirmed when the store is full", function()
    local here, lines = cli.workdir(), {}
    for i = 1, 4000 do lines[i] = ("x"):rep(2000) .. i end
    local words = { "publish", "-b", "embedded:data?size=4MB", "a", "--lines" }
    local result = here:run(words, { stdin = table.concat(lines, "\n") })
    assert.equal(69, result.code)
    local confirmed = tonumber(result.stderr:match "(%d+) confirmed, %d+ not confirmed by embedded:")
    assert.truthy(confirmed, result.stderr)
    assert.equal(confirmed, #here:messages "a")
  end)

  it("confirms what has come while more may follow", function()
    local here = cli.workdir()
    local fifo = here.path .. "/fifo"
    local process = require "spec.support.process"
    local wait = require "spec.support.wait"
    process.run { "mkfifo", fifo }
    local child = process.spawn {
      { "sh", "-c", 'exec "$0" publish -b embedded:data a --lines < fifo', cli.binary }, cwd = here.path,
    }
    local writer = process.spawn { { "sh", "-c", "exec > fifo; echo one; sleep 30" }, cwd = here.path }
    wait.until_(function() return #here:messages "a" == 1 end, 10, "the first line on the channel")
    child:kill "INT"
    assert.equal(1, child:wait(5))
    assert.truthy(child:stderr():find("interrupted: 1 confirmed", 1, true), child:stderr())
    writer:stop()
  end)
end)

describe("a broker that is not there", function()
  for _, scheme in ipairs { "amqp", "redis" } do
    it("is told at once, and soon given up: " .. scheme, function()
      local process = require "spec.support.process"
      local wait = require "spec.support.wait"
      local url = ("%s://127.0.0.1:%d"):format(scheme, process.free_port())
      local child = process.spawn { { cli.binary, "publish", "-b", url, "a", "x" } }
      wait.until_(function() return child:stderr():find("cannot connect; trying again", 1, true) end, 20, "a word")
      assert.truthy(child:stderr():find("connection refused", 1, true))
      assert.is_true(child:alive())
      local before = wait.now()
      assert.equal(69, child:wait(30))
      assert.is_true(wait.now() - before < 8)
      assert.truthy(child:stderr():find("the broker cannot be reached: 127.0.0.1:", 1, true), child:stderr())
    end)
  end
end)

describe("ids", function()
  it("that are no text cannot disturb a terminal", function()
    local here = cli.workdir()
    local result = publish(here, { "a", "x", "--id", "a\27[31m" })
    assert.equal("a\\x1b[31m\n", result.stdout)
    assert.equal("a\27[31m", here:messages("a")[1].id)
    assert.truthy(json.encode(here:messages "a"))
  end)
end)
