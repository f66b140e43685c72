-- mw.redis: commands of handlers, against a real server and against a spec's answers.
local process = require "spec.support.process"
local project = require "spec.support.project"
local servers = require "spec.support.servers.redis"
local testing = require "moonwire.testing"

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
        ['r:blpop("k", 0)'] = "BLPOP cannot be used",
        ['r:subscribe("c")'] = "SUBSCRIBE cannot be used",
        ['r:xread("BLOCK", 0, "STREAMS", "s", "$")'] = "BLOCK cannot be used",
        ["r:multi()"] = "MULTI belongs into a pipeline",
        ["r:get(nil)"] = "argument 1 must be a string or a number, not nil",
        ["r:set('k', {})"] = "argument 2 must be a string or a number, not a table",
        ["r:call()"] = "the name of the command is missing",
      }
      for handler, expected in pairs(problems) do
        start(handler)
        assert.matches(expected, one_letter(app).headers["mw-dead-last-error"], 1, true)
        app:stop()
      end
      app = nil
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
