-- What a Redis server can answer instead of doing what it was asked: each has a defined behaviour
-- (docs/brokers/redis.md), and none loses a message.
local C = require "moonwire.internal.cdef"
local contract = require("spec.contract.redis").plain
local harness = require "spec.support.harness"
local json = require "moonwire.json"
local process = require "spec.support.process"
local project = require "spec.support.project"
local servers = require "spec.support.servers.redis"
local wait = require "spec.support.wait"

C.mw_log_setup(0, 9)

local DONE = [[
  function M.handle(msg)
    mw.publish("out", msg.body, { id = "out-" .. msg.id })
    trace("done", msg)
  end]]
local SETTINGS = "lease = 2, retry = { attempts = 1000, backoff = 'fixed', base = 0.05 },"

local function messages(n, from)
  local list = {}
  for i = from or 1, n do list[#list + 1] = { "body " .. i, id = "m" .. i, key = "k" .. i % 5 } end
  return list
end

describe("redis answers", function()
  local running, open = {}, {}

  local function start(options)
    local server = servers.start(options)
    running[#running + 1] = server
    return server
  end

  -- url: as the worker sees it; the spec itself looks at `server`.
  local function new(server, url)
    local driver = setmetatable({ url = function(h)
      h.server, h.db = server, 0
      return ("redis://127.0.0.1:%d"):format(server.port)
    end }, { __index = contract })
    local h = harness.new(driver)
    if url then h.url = url end
    open[#open + 1] = h
    return h
  end

  local function says(worker, text) return worker.child:stderr():find(text, 1, true) end

  local function assert_all(h, n)
    h:wait_settled("in", 30)
    local seen = {}
    for _, line in ipairs(h.trace:of "done") do seen[line.id] = true end
    for i = 1, n do assert.is_true(seen["m" .. i], "m" .. i .. " was never handled") end
    assert.equal(n, #h.broker:messages "out")
  end

  after_each(function()
    for _, h in ipairs(open) do h:close() end
    for _, server in ipairs(running) do if server.child:alive() then server:kill() end end
    running, open = {}, {}
  end)

  it("READONLY: it waits until there is a master again", function()
    local server = start()
    local h = new(server)
    local worker = h:start { settings = SETTINGS, handler = DONE }
    h:publish(messages(20))
    h:wait_for("done", 20, 20)
    h:wait_settled()
    h:publish(messages(40, 21))
    server:call("REPLICAOF", "127.0.0.1", tostring(process.free_port()))
    h:wait(function() return says(worker, "READONLY") end, 20, "the refusal to be logged")
    server:call("REPLICAOF", "NO", "ONE")
    assert_all(h, 40)
  end)

  it("LOADING: it waits until the data is there", function()
    local server = start { extra = { "--appendonly", "no" } }
    local h = new(server)
    h:publish(messages(20))
    for i = 1, 400 do server:call("SET", "key" .. i, ("x"):rep(1000)) end
    server:call "SAVE"
    server:kill "KILL"
    server.extra = { "--appendonly", "no", "--key-load-delay", "5000",
                     "--loading-process-events-interval-bytes", "1024" }
    server.child = process.spawn { server:arguments(), stdout = server.dir .. "/log", stderr = server.dir .. "/log" }
    local worker = h:start { settings = SETTINGS, handler = DONE }
    h:wait(function() return says(worker, "LOADING") end, 20, "LOADING to be logged")
    h:wait(function() return (select(2, pcall(server.call, server, "PING"))) == "PONG" end, 30, "the end of loading")
    assert_all(h, 20)
  end)

  it("NOAUTH and WRONGPASS: it says so, and goes on when the password is right", function()
    local server = start()
    local h = new(server, ("redis://:secret@127.0.0.1:%d"):format(server.port))
    h:publish(messages(10))
    server:call("CONFIG", "SET", "requirepass", "other")
    local worker = h:start { settings = SETTINGS, handler = DONE }
    h:wait(function() return says(worker, "WRONGPASS") end, 20, "the wrong password to be logged")
    assert.is_nil(says(worker, "secret"), "a password in the log")
    server:call("CONFIG", "SET", "requirepass", "secret")
    h:wait_for("done", 10, 20)
    server:call("CONFIG", "SET", "requirepass", "")
    assert_all(h, 10)
  end)

  it("NOPERM: it says what it may not do, and goes on when it may", function()
    local server = start()
    local h = new(server, ("redis://app:pw@127.0.0.1:%d"):format(server.port))
    h:publish(messages(10))
    server:call("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-xreadgroup")
    local worker = h:start { settings = SETTINGS, handler = DONE }
    h:wait(function() return says(worker, "NOPERM") end, 20, "the refusal to be logged")
    h:stay(3) -- it is tried twice a second
    local function times() return select(2, worker.child:stderr():gsub("cannot read", "")) end
    assert.equal(1, times())
    server:call("ACL", "SETUSER", "app", "+xreadgroup")
    assert_all(h, 10)
    server:call("ACL", "SETUSER", "app", "-xreadgroup")
    h:wait(function() return times() == 2 end, 20, "it to be said again")
  end)

  it("works with the permissions that the documentation lists, and no others", function()
    local server = start()
    local page = assert(io.open(os.getenv "MOONWIRE_ROOT" .. "/docs/brokers/redis.md")):read "*a"
    local rule = page:match "ACL SETUSER moonwire ([^\n]+)"
    local call = { "ACL", "SETUSER", "moonwire" }
    for word in rule:gmatch "%S+" do call[#call + 1] = word end
    assert.equal("OK", server:call(unpack(call)))
    local h = new(server, ("redis://moonwire:secret@127.0.0.1:%d"):format(server.port))
    local worker = h:start { settings = SETTINGS .. "dedupe = true,", handler = DONE }
    h:publish(messages(10))
    assert_all(h, 10)
    assert.is_nil(says(worker, "NOPERM"))
    h:stop()
  end)

  it("OOM: what cannot be published is not acked, and nothing is lost", function()
    local server = start()
    local h = new(server)
    h:publish(messages(20))
    server:call("CONFIG", "SET", "maxmemory", "1")
    local worker = h:start { settings = SETTINGS, handler = DONE }
    h:wait(function() return says(worker, "OOM") end, 20, "the refusal to be logged")
    h:stay(0.3)
    assert.equal(0, #h.broker:messages "out")
    server:call("CONFIG", "SET", "maxmemory", "0")
    assert_all(h, 20)
  end)

  it("OOM: a dead letter waits", function()
    local server = start()
    local h = new(server)
    local worker = h:start { settings = "retry = { attempts = 1 },", handler = [[
      function M.handle(msg)
        trace("try", msg)
        mw.sleep(0.5)
        error("no", 0)
      end]] }
    h:publish(messages(1))
    h:wait_for("try", 1)
    server:call("CONFIG", "SET", "maxmemory", "1")
    h:wait(function() return says(worker, "cannot settle") end, 20, "the refusal to be logged")
    assert.equal(0, #h:dead())
    assert.is_false(h:is_empty "in")
    server:call("CONFIG", "SET", "maxmemory", "0")
    h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
    h:wait_settled()
    assert.equal(1, h.trace:count "try")
  end)

  it("WRONGTYPE: a channel that is no stream is an error that names it", function()
    local server = start()
    local h = new(server)
    server:call("SET", "out", "a text")
    h:start { settings = "retry = { attempts = 2, base = 0.01 },", handler = DONE }
    h:publish(messages(1))
    h:wait(function() return #h:dead() == 1 end, 20, "the dead letter")
    assert.matches("WRONGTYPE", h:dead()[1].headers["mw-dead-last-error"])
  end)

  it("MOVED: it goes to the node that has the stream", function()
    local one = start { extra = { "--cluster-enabled", "yes" } }
    local two = start { extra = { "--cluster-enabled", "yes" } }
    one:call("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
    two:call("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
    one:call("CLUSTER", "MEET", "127.0.0.1", tostring(two.port))
    wait.until_(function()
      return one:call("CLUSTER", "INFO"):find "cluster_state:ok" and two:call("CLUSTER", "INFO"):find "cluster_state:ok"
    end, 30, "the cluster")
    local tag = one:call("CLUSTER", "KEYSLOT", "in") > 8191 -- where "in" lives
    local home, away = tag and two or one, tag and one or two
    local h = new(home, ("redis://127.0.0.1:%d"):format(away.port))
    h:start { settings = SETTINGS, handler = [[function M.handle(msg) trace("done", msg) end]] }
    h:publish(messages(20))
    h:wait_for("done", 20, 20)
    h:wait_settled("in", 20)
    assert.equal(20, h.trace:count "done")
  end)

  it("a lag that Redis does not know is unknown, and `run --once` ends all the same", function()
    local server = start()
    local h = new(server)
    local worker = h:start { settings = SETTINGS, handler = DONE }
    h:publish(messages(10))
    assert_all(h, 10)
    h:stop(worker)
    h:publish(messages(20, 11))
    local entries = server:call("XREVRANGE", "in", "+", "-", "COUNT", "5")
    server:call("XDEL", "in", entries[3][1])
    local group = servers.fields(server:call("XINFO", "GROUPS", "in")[1])
    assert.is_nil(group.lag)
    local once = process.run { { os.getenv "MOONWIRE_BIN", "run", "--once", worker.dir }, env = { BROKER_URL = h.url },
                               timeout = 30 }
    assert.equal(0, once.code, once.stderr)
    assert.equal(19, h.trace:count "done")
  end)
end)

describe("redis with sentinels", function()
  local running = {}
  after_each(function()
    for _, child in ipairs(running) do if child:alive() then child:kill "KILL" child:wait(5) end end
    running = {}
  end)

  local function sentinel(master)
    local dir, port = process.tmpdir(), process.free_port()
    local file = assert(io.open(dir .. "/sentinel.conf", "w"))
    file:write(("port %d\nbind 127.0.0.1\ndir %s\n"):format(port, dir),
      ("sentinel monitor mymaster 127.0.0.1 %d 2\n"):format(master.port),
      "sentinel down-after-milliseconds mymaster 700\nsentinel failover-timeout mymaster 5000\n")
    file:close()
    local child = process.spawn { { "redis-sentinel", dir .. "/sentinel.conf" }, stdout = dir .. "/log",
                                  stderr = dir .. "/log" }
    running[#running + 1] = child
    return { port = port, child = child }
  end

  local function project_on(url)
    local dir = process.tmpdir()
    project.make(dir, { handler = [[function M.handle(msg) trace("done", msg) end]] }, dir .. "/trace", "w")
    return { dir = dir, env = { BROKER_URL = url } }
  end

  local function run(on)
    local child = process.spawn { { os.getenv "MOONWIRE_BIN", "run", on.dir, "--workers", "0" }, env = on.env,
                                  stdout = on.dir .. "/log", stderr = on.dir .. "/log" }
    running[#running + 1] = child
    return child
  end

  local function publish(on)
    return process.run { { os.getenv "MOONWIRE_BIN", "publish", "in", "x" }, cwd = on.dir, env = on.env, timeout = 30 }
  end

  local function connection(on, name)
    local status = process.run { { os.getenv "MOONWIRE_BIN", "status", on.dir, "--json" }, timeout = 20 }
    for _, c in ipairs(status.code == 0 and json.decode(status.stdout).connections or {}) do
      if c.name == name then return c end
    end
  end

  -- The reason stands in the log, once, in the status, and in what a command says.
  local function tells(url, reason)
    local on = project_on(url)
    local child = run(on)
    wait.until_(function() return child:stderr():find(reason) end, 15, "it to be logged")
    local ends = wait.now() + 4
    wait.until_(function() return wait.now() > ends end, 6, "some more tries")
    assert.is_true(select(2, child:stderr():gsub("cannot connect", "")) <= 2, child:stderr())
    wait.until_(function()
      local c = connection(on, "sentinel")
      return c and c.error and c.error:find(reason)
    end, 10, "the reason in the status")
    local result = publish(on)
    assert.equal(69, result.code, result.stderr)
    assert.matches(reason, result.stderr)
  end

  it("that are all away, says so", function()
    tells(("redis://127.0.0.1:%d,127.0.0.1:%d/0?sentinel=mymaster&timeout=2")
      :format(process.free_port(), process.free_port()), "connection refused")
  end)

  it("that do not know the master, says which ones they know", function()
    local master = servers.start()
    running[#running + 1] = master.child
    local s = sentinel(master)
    wait.until_(function() return servers.connect(s.port) end, 10, "the sentinel")
    tells(("redis://127.0.0.1:%d/0?sentinel=other&timeout=2"):format(s.port),
      "does not know a master named other; it knows: mymaster")
  end)

  it("that are none, says so, and asks the next one", function()
    local master = servers.start()
    running[#running + 1] = master.child
    tells(("redis://127.0.0.1:%d/0?sentinel=mymaster&timeout=2"):format(master.port), "unknown command")
    local s = sentinel(master)
    wait.until_(function() return servers.connect(s.port) end, 10, "the sentinel")
    local on = project_on(("redis://127.0.0.1:%d,127.0.0.1:%d/0?sentinel=mymaster"):format(master.port, s.port))
    run(on)
    wait.until_(function()
      local commands, c = connection(on, "commands"), connection(on, "sentinel")
      return commands and commands.state == "up" and c and c.state == "up"
    end, 20, "the connection by the other sentinel")
  end)

  it("follows a failover, and loses nothing that had reached the replica", function()
    local master = servers.start()
    local replica = servers.start { extra = { "--replicaof", "127.0.0.1 " .. master.port } }
    running[#running + 1] = master.child
    running[#running + 1] = replica.child
    local hosts = {}
    for i = 1, 3 do hosts[i] = "127.0.0.1:" .. sentinel(master).port end
    local driver = setmetatable({ url = function(h)
      h.server, h.db = master, 0
      return ("redis://%s/0?sentinel=mymaster"):format(table.concat(hosts, ","))
    end }, { __index = contract })
    local h = harness.new(driver)
    finally(function() h:close() end)
    h:wait(function() return master:call("INFO", "replication"):find "state=online" end, 20, "the replica")
    local client = assert(servers.connect(tonumber(hosts[1]:match ":(%d+)$")))
    h:wait(function()
      local rows = client:call("SENTINEL", "MASTERS")
      local fields = rows and rows[1] and servers.fields(rows[1])
      return fields and fields["num-other-sentinels"] == "2" and fields["num-slaves"] == "1"
    end, 30, "the sentinels to know each other")
    client:close()
    h:start { settings = "lease = 2, concurrency = 4, retry = { attempts = 1000, base = 0.05 },", handler = [[
      function M.handle(msg)
        mw.sleep(0.005)
        trace("done", msg)
      end]] }
    h:publish(messages(300))
    master:call("WAIT", "1", "5000")
    h:wait_for("done", 50, 20)
    master:kill "KILL"
    h.server = replica
    h:wait(function() return replica:call("ROLE")[1] == "master" end, 40, "the failover")
    h:publish(messages(400, 301)) -- by the same URL
    h:wait_for("done", 400, 40)
    h:wait_settled("in", 40)
    local seen = {}
    for _, line in ipairs(h.trace:of "done") do seen[line.id] = true end
    for i = 1, 400 do assert.is_true(seen["m" .. i], "m" .. i .. " was never handled") end
  end)
end)
