-- mw.redis: commands of handlers, against a real server and against a spec's answers.
local process = require "spec.support.process"
local project = require "spec.support.project"
local servers = require "spec.support.servers.redis"
local testing = require "moonwire.testing"
local wait = require "spec.support.wait"

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect "memory:redis-handlers"
mw.pipeline "p" { from = broker:channel "in", retry = { attempts = 3, base = 0.1 }, timeout = 2,
  handler = "handlers.p" }
]]

local function write(handler)
  local dir = process.tmpdir()
  process.run { "mkdir", "-p", dir .. "/handlers" }
  project.write(dir .. "/moonwire.lua", MAIN)
  project.write(dir .. "/handlers/p.lua", ([[
    local mw = require "moonwire"
    local r = mw.redis(mw.env "REDIS_URL")
    return { handle = function(msg)
      %s
    end }]]):format(handler))
  return dir
end

local function one_letter(app)
  app:publish("in", "x", { id = "m1" })
  app:settle()
  return app:messages("in.dead")[1]
end

describe("mw.redis", function()
  describe("against a server", function()
    local server, app
    lazy_setup(function() server = servers.start() end)
    lazy_teardown(function() server:kill() end)
    after_each(function()
      if app then app:stop() end
      app = nil
      server:call "FLUSHALL"
    end)

    local function start(handler, url)
      url = url or ("redis://127.0.0.1:%d"):format(server.port)
      app = testing.start { dir = write(handler), env = { REDIS_URL = url } }
      return app
    end

    local function handled(handler, url)
      start(handler, url)
      app:publish("in", "x", { id = "m1" })
      app:settle()
      local letter = app:messages("in.dead")[1]
      assert.is_nil(letter, letter and letter.headers["mw-dead-last-error"])
      assert.equal(1, app:handled "p")
    end

    it("sends any command, by name or by call", function()
      handled [[
        assert(r:set("k", "v") == "OK")
        assert(r:get("k") == "v")
        assert(r:get("none") == nil)
        assert(r:incr("n") == 1 and r:incrby("n", 41) == 42)
        assert(r:call("HSET", "h", "a", 1, "b", 2.5) == 2)
        local all = r:hgetall("h")
        assert(all.n == 4 and all[1] == "a" and all[2] == "1" and all[4] == "2.5")
        local list = r:mget("k", "none", "n")
        assert(list.n == 3 and list[1] == "v" and list[2] == nil and list[3] == "42")
      ]]
    end)

    it("passes any bytes, and much of them", function()
      handled [[
        local all = {}
        for i = 0, 255 do all[#all + 1] = string.char(i) end
        all = table.concat(all)
        r:set(all, all)
        assert(r:get(all) == all)
        local big = all:rep(20000)
        r:set("big", big)
        assert(r:get("big") == big)
      ]]
    end)

    it("sends a pipeline in one go, transactions too", function()
      handled [[
        local replies = r:pipeline(function(p)
          p:multi()
          p:set("a", 1)
          p:call("INCR", "a")
          p:exec()
          p:get("none")
          p:get("a")
        end)
        assert(replies.n == 6 and replies[1] == "OK" and replies[2] == "QUEUED")
        assert(replies[4][1] == "OK" and replies[4][2] == 2)
        assert(replies[5] == nil and replies[6] == "2")
        assert(#r:pipeline(function() end) == 0)
      ]]
    end)

    it("works by a Unix socket", function()
      handled('assert(r:set("k", "v") == "OK")', "redis+unix://" .. server.socket .. "?db=3")
      server:call("SELECT", 3)
      assert.equal("v", server:call("GET", "k"))
      server:call("SELECT", 0)
    end)

    it("raises what the server answers", function()
      start [[r:set("k", "v") r:lpush("k", "x")]]
      local letter = one_letter(app)
      assert.matches("mw.redis: LPUSH: WRONGTYPE", letter.headers["mw-dead-last-error"], 1, true)
    end)

    it("refuses what would hold up others, and what is no command", function()
      local problems = {
        ['r:xread("BLOCK", 0, "STREAMS", "s", "$")'] = "XREAD with BLOCK cannot be used",
        ['r:xreadgroup("GROUP", "g", "c", "block", 0, "STREAMS", "s", ">")'] = "XREADGROUP with BLOCK cannot be used",
        ["r:multi()"] = "MULTI belongs into a pipeline",
        ["r:pipeline(function(p) p:multi() p:incr 'x' end)"] = "MULTI without EXEC",
        ["r:pipeline(function(p) p:call('Multi') p:multi() p:exec() end)"] = "MULTI inside of MULTI",
        ["r:pipeline(function(p) p:incr 'x' p:exec() end)"] = "EXEC without MULTI",
        ["r:pipeline(function(p) p:multi() p:discard() end)"] = "DISCARD: leave out the pipeline",
        ["r:pipeline(function(p) p:multi() p:exec('now') end)"] = "EXEC takes no arguments",
        ["r:pipeline(function(p) p:watch 'x' p:multi() p:exec() end)"] = "goes into a script",
        ["r:client('SETNAME', 'x')"] = "CLIENT SETNAME cannot be used",
        ["r:client()"] = "CLIENT cannot be used",
        ["r:call('CLIENT REPLY', 'OFF')"] = "is no name of a command",
        ["r:call('client|reply', 'OFF')"] = "is no name of a command",
        ["r:call('GET\\r\\nMONITOR')"] = "is no name of a command",
        ["r:call({ 'GET', 'x' })"] = "the name of the command is missing",
        ["r:get(nil)"] = "argument 1 must be a string or a number, not nil",
        ["r:client(nil)"] = "argument 1 must be a string or a number, not nil",
        ["r:client({ 'REPLY' })"] = "argument 1 must be a string or a number, not a table",
        ["r:set('k', {})"] = "argument 2 must be a string or a number, not a table",
        ["r:call()"] = "the name of the command is missing",
      }
      for name in ([[SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SUNSUBSCRIBE MONITOR SYNC PSYNC REPLCONF
        SHUTDOWN QUIT SELECT AUTH HELLO RESET ASKING READONLY READWRITE BLPOP BRPOP BLMOVE BLMPOP BRPOPLPUSH BZPOPMIN
        BZPOPMAX BZMPOP WAIT WAITAOF DEBUG WATCH UNWATCH]]):gmatch "%S+" do
        problems[("r:call(%q, 'x', 0)"):format(name:lower())] = name .. " cannot be used on a connection"
      end
      for _, sub in ipairs { "reply", "TRACKING", "Caching", "NO-EVICT", "no-touch", "SETINFO" } do
        problems[("r:client(%q, 'SKIP')"):format(sub)] = ("CLIENT %s cannot be used"):format(sub:upper())
      end
      local tests = { "local problems, bad = {}, {}" }
      for handler, expected in pairs(problems) do
        tests[#tests + 1] = ("problems[%q] = { function() %s end, %q }"):format(handler, handler, expected)
      end
      tests[#tests + 1] = [[
        for text, test in pairs(problems) do
          local ok, err = pcall(test[1])
          if ok or not tostring(err):find(test[2], 1, true) then bad[#bad + 1] = text .. ": " .. tostring(err) end
        end
        assert(#bad == 0, table.concat(bad, "\n"))
        assert(r:set("k", "v") == "OK" and r:get("k") == "v")
        assert(type(r:client("ID")) == "number")
        r:xadd("block", "*", "a", 1)
        local streams = r:xread("COUNT", 1, "STREAMS", "block", 0)
        assert(streams.n == 1)
      ]]
      handled(table.concat(tests, "\n"))
    end)

    it("gives whole numbers as they are: beyond 2^53 as strings", function()
      handled [[
        assert(r:incrby("n", "9223372036854775806") == "9223372036854775806")
        assert(r:incr("n") == "9223372036854775807")
        assert(r:decrby("m", "9223372036854775807") == "-9223372036854775807" and r:decr("m") == "-9223372036854775808")
        assert(r:incrby("o", "9007199254740992") == 2 ^ 53 and r:incr("o") == "9007199254740993")
        assert(r:eval("return { 1, 1152921504606846976 }", 0)[2] == "1152921504606846976")
      ]]
    end)

    it("an EXEC that the server does not let through harms nobody else", function()
      server:call("ACL", "SETUSER", "half", "on", ">pw", "~*", "+@all", "-exec")
      start([[
        if msg.id == "bad" then r:pipeline(function(p) p:multi() p:incr "x" p:exec() end) end
        assert(r:set("k" .. msg.id, "v") == "OK", "not OK")
        assert(r:get("k" .. msg.id) == "v", "not v")
      ]], ("redis://half:pw@127.0.0.1:%d"):format(server.port))
      for i = 1, 20 do app:publish("in", "x", { id = i == 10 and "bad" or "m" .. i }) end
      app:settle()
      local letters = app:messages "in.dead"
      assert.equal(1, #letters)
      assert.equal("bad", letters[1].id)
      assert.matches("EXEC: EXECABORT .*NOPERM", letters[1].headers["mw-dead-last-error"])
    end)

    it("a script that the server does not know is the handler's own affair", function()
      local function connections() return tonumber(server:call("INFO", "stats"):match "connections_received:(%d+)") end
      local before = connections()
      handled [[
        local ok, err = pcall(r.evalsha, r, ("0"):rep(40), 0)
        assert(not ok and tostring(err):find "NOSCRIPT")
        assert(r:get("k") == nil)
      ]]
      assert.equal(1, connections() - before)
    end)

    it("its connection stands in status, with its last error", function()
      local dir = process.tmpdir()
      project.write(dir .. "/moonwire.lua", [[
        local mw = require "moonwire"
        local broker = mw.connect "embedded:data"
        local r = mw.redis(mw.env "REDIS_URL")
        mw.pipeline "p" { from = broker:channel "in", handler = function() r:incr "seen" end }]])
      local env = { REDIS_URL = ("redis://:hunter2@127.0.0.1:%d?timeout=1"):format(server.port) }
      local binary = os.getenv "MOONWIRE_BIN"
      local child = process.spawn { { binary, "run" }, cwd = dir, env = env, stderr = dir .. "/log" }
      finally(function() child:kill "KILL" child:wait(5) end)
      process.run { { binary, "publish", "-b", "embedded:data", "in", "x" }, cwd = dir, timeout = 20 }
      local shown = ("redis://127.0.0.1:%d?timeout=1"):format(server.port)
      wait.until_(function()
        local status = process.run { { binary, "status" }, cwd = dir, timeout = 20 }.stdout
        local row = status:match("[^\n]*" .. shown:gsub("%p", "%%%0") .. "[^\n]*")
        return row and row:find("handlers", 1, true) and row:find("AUTH", 1, true)
      end, 20, "the connection in status, and why it is not let in")
      local status = process.run { { binary, "status", "--json" }, cwd = dir, timeout = 20 }.stdout
      assert.is_nil(status:find("hunter2", 1, true))
    end)

    it("a server that is away is a transient failure", function()
      start([[r:get("k")]], ("redis://127.0.0.1:%d?timeout=1"):format(process.free_port()))
      local letter = one_letter(app)
      assert.equal("transient", letter.headers["mw-dead-class"])
      assert.matches("not connected", letter.headers["mw-dead-last-error"])
      assert.equal("3", letter.headers["mw-dead-attempts"])
    end)
  end)

  describe("with answers of a spec", function()
    local function start(handler, answers)
      local app = testing.start { dir = write(handler), env = { REDIS_URL = "redis://nowhere.example" } }
      finally(function() pcall(app.stop, app) end) -- it fails once more when the test was to fail
      app:redis(answers)
      return app
    end

    it("sees the commands and gives the answers", function()
      local app = start([[
        assert(r:get("user:7") == "ann")
        assert(r:incr("n") == 1 and r:incr("n") == 2)
        assert(r:set("k", "v") == "OK")
        assert(r:get("other") == nil)
        assert(r:lrange("l", 0, -1)[2] == "b")
        local replies = r:pipeline(function(p) p:get("user:8") p:incr("n") end)
        assert(replies[1] == "ann" and replies[2] == 2)
      ]], { ["GET user:*"] = "ann", INCR = { each = { 1, 2 } }, SET = true, LRANGE = { "a", "b" },
            ["GET other"] = function() return nil end })
      app:publish("in", "x")
      app:settle()
      local letter = app:messages("in.dead")[1]
      assert.is_nil(letter, letter and letter.headers["mw-dead-last-error"])
      assert.same({ "GET", "user:7" }, app:commands()[1])
      assert.equal(8, #app:commands())
    end)

    it("fails like a server, and like a network", function()
      local app = start([[r:get("k")]], { GET = { each = { { error = "OOM no" }, { down = "cut" }, "v" } } })
      app:publish("in", "x")
      app:settle()
      assert.equal(1, app:handled "p")
      assert.equal(2, #app:retries "p")
    end)

    it("a deadline ends a command that takes too long", function()
      local app = start([[r:get("k")]], { GET = { delay = 60, value = "v" } })
      assert.matches("timed out", one_letter(app).headers["mw-dead-last-error"])
    end)

    it("a command that was not foreseen fails the test", function()
      local app = start([[r:del("k")]], { GET = "v" })
      local ok, err = pcall(function()
        app:publish("in", "x")
        app:settle()
      end)
      assert.is_false(ok)
      assert.matches("unexpected Redis command: DEL k", tostring(err), 1, true)
    end)
  end)

  it("a URL that is none is an error of the project, with the nearest name", function()
    local function problem(url)
      local ok, err = pcall(testing.start, { dir = write "", env = { REDIS_URL = url } })
      assert.is_false(ok)
      return tostring(err)
    end
    assert.matches('"http:" is not Redis', problem "http://x", 1, true)
    assert.matches('did you mean "timeout"', problem "redis://x?timeuot=1", 1, true)
    assert.matches("the number of the database", problem "redis://x/mydb", 1, true)
  end)
end)
