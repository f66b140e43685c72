-- Redis Streams as a user has them: what other programs read and write, trimming, the commands, shared dedupe.
local C = require "moonwire.internal.cdef"
local contract = require("spec.contract.redis").plain
local harness = require "spec.support.harness"
local json = require "moonwire.json"
local process = require "spec.support.process"
local project = require "spec.support.project"
local servers = require "spec.support.servers.redis"
local wait = require "spec.support.wait"

C.mw_log_setup(0, 9)

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect(mw.env "BROKER_URL")
mw.pipeline "p" {
  from = broker:channel("in", %s),
  handler = function(msg) %s end,
  retry = { attempts = 1 },
}
]]

describe("redis", function()
  local server, url, dir
  lazy_setup(function()
    server = servers.start()
    url = "redis://127.0.0.1:" .. server.port
  end)
  lazy_teardown(function() server:kill() end)
  before_each(function()
    server:call "FLUSHALL"
    dir = process.tmpdir()
  end)

  local function write(options, handler)
    project.write(dir .. "/moonwire.lua", MAIN:format(options or "nil", handler or ""))
  end

  local function moonwire(...)
    return process.run { { os.getenv "MOONWIRE_BIN", ... }, env = { BROKER_URL = url }, cwd = dir, timeout = 30 }
  end

  local function good(...)
    local result = moonwire(...)
    assert.equal(0, result.code, result.stderr .. result.stdout)
    return result.stdout
  end

  describe("entries", function()
    it("have fields that other programs can read", function()
      write()
      good("publish", "in", '{"n":1}', "--key", "ann", "--id", "m1", "--header", "x-a=1", "--type", "application/json")
      local fields = servers.fields(server:call("XRANGE", "in", "-", "+")[1][2])
      assert.equal('{"n":1}', fields.body)
      assert.equal("m1", fields.id)
      assert.equal("ann", fields.key)
      assert.equal("1", fields["h:x-a"])
      assert.matches("^%d+$", fields.time)
    end)

    it("of other programs are read by body_field, their other fields as headers", function()
      write('{ body_field = "data" }', [[mw.publish("out", msg.data.n .. " " .. msg:header "source" .. " " .. msg.id)]])
      server:call("XADD", "in", "5-1", "data", '{"n":7}', "source", "shop")
      good("run", "--once")
      local fields = servers.fields(server:call("XRANGE", "out", "-", "+")[1][2])
      assert.equal("7 shop 5-1", fields.body)
    end)
  end)

  describe("a stream", function()
    local function fill(n)
      for i = 1, n do server:call("XADD", "in", "*", "id", "m" .. i, "body", "x") end
    end

    it("keeps what was handled, unless told otherwise", function()
      write()
      fill(20)
      good("run", "--once")
      assert.equal(20, server:call("XLEN", "in"))
    end)

    it("with delete = true loses each message with its ack", function()
      write "{ delete = true }"
      fill(20)
      good("run", "--once")
      assert.equal(0, server:call("XLEN", "in"))
    end)

    it("with delete = true keeps what another group has not acked", function()
      write "{ delete = true }"
      fill(20)
      server:call("XGROUP", "CREATE", "in", "other", "0")
      good("run", "--once")
      assert.equal(20, server:call("XLEN", "in"))
    end)

    it("with trim.acked loses what lies below the lowest message that some group still has", function()
      write "{ trim = { acked = true } }"
      fill(300)
      server:call("XGROUP", "CREATE", "in", "other", "0")
      local read = server:call("XREADGROUP", "GROUP", "other", "c", "COUNT", "100", "STREAMS", "in", ">")[1][2]
      for i = 1, 49 do server:call("XACK", "in", "other", read[i][1]) end
      local child = process.spawn { { os.getenv "MOONWIRE_BIN", "run" }, env = { BROKER_URL = url }, cwd = dir }
      finally(function() child:kill "KILL" child:wait(5) end)
      harness.new(setmetatable({ url = function(h) h.server, h.db = server, 0 return url end }, { __index = contract }))
        :wait(function() return server:call("XLEN", "in") == 251 end, 15, "the stream to be trimmed")
      assert.equal(read[50][1], server:call("XRANGE", "in", "-", "+", "COUNT", "1")[1][1])
    end)

    it("with trim.count is kept short by who publishes", function()
      project.write(dir .. "/moonwire.lua", MAIN:format("nil", [[
        for i = 1, 50 do mw.publish("out", "x") end]]) .. '\nbroker:channel("out", { trim = { count = 100 } })\n')
      fill(20)
      good("run", "--once")
      local length = server:call("XLEN", "out")
      assert.is_true(length >= 100 and length < 400, length .. " entries")
    end)
  end)

  it("an option that a channel does not have is an error, with the nearest name", function()
    write '{ body_feild = "data" }'
    local result = moonwire "check"
    assert.equal(78, result.code)
    local expected = 'moonwire.lua:4: channel "in": unknown field "body_feild"; did you mean "body_field"?'
    assert.matches(expected, result.stderr, 1, true)
    write "{ trim = { cuont = 5 } }"
    assert.matches('unknown field "trim.cuont"; did you mean "count"?', moonwire("check").stderr, 1, true)
    write "{ trim = 5 }"
    assert.matches("trim must be a table", moonwire("check").stderr, 1, true)
  end)

  it("an address with an unknown option is an error, with the nearest name", function()
    write()
    local result = process.run { { os.getenv "MOONWIRE_BIN", "run", "--once" }, cwd = dir,
                                 env = { BROKER_URL = url .. "?timout=3" } }
    assert.equal(69, result.code, result.stderr)
    assert.matches('did you mean "timeout"', result.stderr .. result.stdout, 1, true)
  end)

  it("a server that is away is said in time, without the password", function()
    write()
    local result = process.run { { os.getenv "MOONWIRE_BIN", "publish", "in", "x" }, cwd = dir, timeout = 30,
      env = { BROKER_URL = ("redis://u:secret@127.0.0.1:%d?timeout=1"):format(process.free_port()) } }
    assert.equal(69, result.code, result.stderr)
    assert.is_nil((result.stderr .. result.stdout):find("secret", 1, true))
  end)

  it("a database that the server does not have is an error at once, which says that it stays one", function()
    write()
    local began = wait.now()
    local result = process.run { { os.getenv "MOONWIRE_BIN", "publish", "in", "x" }, cwd = dir, timeout = 30,
                                 env = { BROKER_URL = url .. "/5000" } }
    assert.equal(69, result.code, result.stderr)
    assert.matches("database 5000 cannot be used; this does not heal by itself", result.stderr, 1, true)
    assert.is_true(wait.now() - began < 2.5 * harness.late, "it was waited for")
  end)

  describe("messages that are too large", function()
    local function publish(query, bytes)
      project.write(dir .. "/body", ("x"):rep(bytes))
      return process.run { { os.getenv "MOONWIRE_BIN", "publish", "in", "--file", dir .. "/body" }, cwd = dir,
                           timeout = 30, env = { BROKER_URL = url .. query } }
    end

    it("are not published", function()
      write()
      local result = publish("?max_message=1", 1048577)
      assert.not_equal(0, result.code)
      assert.matches("at most 1 MiB are taken: ?max_message=MIB", result.stderr, 1, true)
      assert.equal(0, publish("?max_message=2", 1048577).code)
    end)

    it("and were written by others are not taken, and that is said", function()
      write()
      server:call("XADD", "in", "*", "body", ("x"):rep(6 * 1048576))
      local child = process.spawn { { os.getenv "MOONWIRE_BIN", "run", "--workers", "0" }, cwd = dir,
                                    env = { BROKER_URL = url .. "?max_message=1" } }
      finally(function() child:kill "KILL" child:wait(5) end)
      wait.until_(function() return child:stderr():find("cannot read.-in one piece; at most 5242880 are taken") end, 20,
        "it to be logged")
    end)
  end)

  it("explain tells of a message that waits for a retry", function()
    project.write(dir .. "/moonwire.lua", [[
      local mw = require "moonwire"
      local broker = mw.connect(mw.env "BROKER_URL")
      mw.pipeline "p" { from = broker:channel "in", order = "none", handler = function() error("later", 0) end,
        retry = { attempts = 5, backoff = "fixed", base = 60 } }]])
    local child = process.spawn { { os.getenv "MOONWIRE_BIN", "run", "--workers", "0" }, cwd = dir,
                                  env = { BROKER_URL = url } }
    finally(function() child:kill "KILL" child:wait(5) end)
    server:call("XADD", "in", "*", "id", "m1", "body", "x")
    wait.until_(function() return server:call("ZCARD", "{in}:mw:retries:p") == 1 end, 20, "it to wait")
    wait.until_(function() return moonwire("explain", "m1").stdout:find("it is delayed until", 1, true) end, 10,
      "it to be told")
    assert.is_nil(good("explain", "m1"):find("no process has fetched it", 1, true))
  end)

  describe("the commands", function()
    it("tail shows what stands there, and where", function()
      write()
      for i = 1, 450 do server:call("XADD", "in", ("7-%d"):format(i), "id", "m" .. i, "body", "text " .. i) end
      local lines = {}
      for line in good("tail", "in", "--from", "start", "--json", "--count", "450"):gmatch "[^\n]+" do
        lines[#lines + 1] = json.decode(line)
      end
      assert.equal(450, #lines)
      assert.equal("7-450", lines[450].position)
      assert.equal("text 450", lines[450].body)
    end)

    it("dlq ls, show, replay and purge work on a stream of dead letters", function()
      write("nil", [[if msg.body == "bad" and not msg:header "mw-replay" then error("no", 0) end]])
      for i = 1, 3 do server:call("XADD", "in", "*", "id", "m" .. i, "body", "bad") end
      good("run", "--once")
      assert.equal(3, server:call("XLEN", "in.dead"))
      assert.matches("m2", good("dlq", "ls", "in.dead"))
      assert.matches("gave up after 1", good("dlq", "show", "in.dead", "m2"))
      good("dlq", "replay", "in.dead", "m2", "--yes")
      assert.equal(2, server:call("XLEN", "in.dead"))
      assert.equal(4, server:call("XLEN", "in"))
      good("run", "--once")
      good("dlq", "purge", "in.dead", "--yes")
      assert.equal(0, server:call("XLEN", "in.dead"))
    end)

    describe("know the form of a channel with body_field", function()
      local function elsewhere(...)
        return process.run { { os.getenv "MOONWIRE_BIN", ... }, env = { BROKER_URL = url }, cwd = process.tmpdir(),
          timeout = 30 }
      end

      local function last(stream)
        local entry = server:call("XREVRANGE", stream, "+", "-", "COUNT", 1)[1]
        return servers.fields(entry[2])
      end

      it("replay gives it back, from anywhere", function()
        write('{ body_field = "data" }', [[if not msg:header "mw-replay" then error("no", 0) end
          if msg.data.n ~= 7 or msg:header "source" ~= "shop" then error("not as it was", 0) end]])
        for _, replay in ipairs { moonwire, elsewhere } do
          server:call("XADD", "in", "*", "data", '{"n":7}', "source", "shop")
          good("run", "--once")
          assert.equal(1, server:call("XLEN", "in.dead"))
          assert.equal("data", last "in.dead"["h:mw-dead-body-field"])
          local result = replay("dlq", "replay", "in.dead", "--yes")
          assert.equal(0, result.code, result.stderr)
          local fields = last "in"
          assert.equal('{"n":7}', fields.data)
          assert.is_nil(fields.body)
          assert.is_nil(fields["h:mw-body-field"])
          good("run", "--once")
          assert.equal(0, server:call("XLEN", "in.dead"))
        end
      end)

      it("replay to another channel uses that one's form", function()
        write('{ body_field = "data" }', [[error("no", 0)]])
        server:call("XADD", "in", "*", "data", "x")
        good("run", "--once")
        good("dlq", "replay", "in.dead", "--to", "other", "--yes")
        assert.equal("x", last "other".body)
        assert.is_nil(last "other".data)
      end)

      it("publish and tail use the options of the project in the folder", function()
        local example = os.getenv "MOONWIRE_ROOT" .. "/examples/redis-streams"
        local function there(...)
          local result = process.run { { os.getenv "MOONWIRE_BIN", ... }, env = { BROKER_URL = url }, cwd = example,
            timeout = 30 }
          assert.equal(0, result.code, result.stderr)
          assert.equal("", result.stderr:match "note: the project[^\n]*" or "")
          return result.stdout
        end
        there("publish", "events", '{"user":"ann"}')
        assert.equal('{"user":"ann"}', last "events".data)
        assert.is_nil(last "events".body)
        server:call("XADD", "events", "*", "data", '{"user":"bob"}')
        local shown = there("tail", "events", "--from", "start", "--count", "2", "--json")
        assert.matches("ann", shown)
        assert.matches("bob", shown)
      end)

      it("a project that cannot be read is told, and in nobody's way", function()
        project.write(dir .. "/moonwire.lua", "this is no Lua")
        local result = moonwire("publish", "in", "x")
        assert.equal(0, result.code, result.stderr)
        assert.matches("note: the project here cannot be read", result.stderr)
      end)
    end)

    it("status tells the connections and how far it is", function()
      write("nil", "mw.sleep(0.2)")
      local child = process.spawn { { os.getenv "MOONWIRE_BIN", "run" }, env = { BROKER_URL = url }, cwd = dir }
      finally(function() child:kill "KILL" child:wait(5) end)
      local h = harness.new(setmetatable({ url = function(x) x.server, x.db = server, 0 return url end },
        { __index = contract }))
      h:wait(function() return moonwire("status").code == 0 end, 20, "the worker")
      h:wait(function()
        local text = moonwire("status").stdout
        return text:find "commands" and text:find "reader" and text:find "up"
      end, 20, "the connections in status")
    end)
  end)

  it("dedupe records are shared by workers of different brokers", function()
    local function worker(name)
      local where = dir .. "/" .. name
      process.run { "mkdir", "-p", where }
      project.write(where .. "/moonwire.lua", ([[
        local mw = require "moonwire"
        local broker = mw.connect "embedded:data"
        mw.pipeline "p" { from = broker:channel "in", dedupe = { ttl = 60, store = mw.connect %q },
          handler = function(msg) io.open(%q, "a"):write(msg.id, "\n") end }
        ]]):format(url, dir .. "/handled"))
      return function(...)
        local result = process.run { { os.getenv "MOONWIRE_BIN", ... }, cwd = where, timeout = 30,
                                     env = { BROKER_URL = "embedded:data" } }
        assert.equal(0, result.code, result.stderr)
      end
    end
    local one, two = worker "one", worker "two"
    one("publish", "in", "x", "--id", "same")
    two("publish", "in", "x", "--id", "same")
    two("publish", "in", "x", "--id", "other")
    one("run", "--once")
    two("run", "--once")
    local handled = {}
    for line in io.lines(dir .. "/handled") do handled[#handled + 1] = line end
    assert.same({ "same", "other" }, handled)
  end)
end)
