-- The ready-made handlers in a project, as a user has them: by name, with options, in the sandbox.
local C = require "moonwire.internal.cdef"
local broker = require "spec.support.broker"
local core = require "moonwire.core"
local json = require "moonwire.json"
local process = require "spec.support.process"

local binary = os.getenv "MOONWIRE_BIN"
local last = 0

local function project(text)
  local dir = process.tmpdir()
  local file = assert(io.open(dir .. "/moonwire.lua", "wb"))
  file:write('local mw = require "moonwire"\nlocal broker = mw.connect(mw.env "BROKER_URL")\n', text)
  file:close()
  return dir
end

--- What `moonwire check` would say about it; nil when it is fine.
local function problems(text)
  local app = core.app()
  local ok, why = app:load { dir = project(text), check = true, broker = "memory:check" }
  app:close()
  return not ok and why or nil
end

describe("ready-made handlers", function()
  local app, messages

  setup(function() C.mw_log_setup(0, 9) end)
  teardown(function() C.mw_log_setup(0, 1) end)

  local function start(text)
    last = last + 1
    local url = "memory:handlers-" .. last
    messages = broker.open(url)
    app = core.app()
    assert(app:load { dir = project(text), broker = url })
    assert(app:start())
  end

  local function settle() broker.turn_until(function() return app:idle() end, 10, "everything to be settled") end

  after_each(function()
    if app then app:kill() end
    app = nil
  end)

  describe("forward", function()
    it("sends a message on as it is, with the ack", function()
      start 'mw.pipeline "f" { from = broker:channel "in", handler = "forward", options = { to = "out" } }'
      messages:publish("in", { { "\0body\255", id = "m1", key = "k", type = "x/y", priority = 7,
                                 headers = { a = "1", ["mw-replay"] = "1" } } })
      settle()
      local out = messages:messages "out"
      assert.equal(1, #out)
      assert.same({ "\0body\255", "m1", "k", "x/y", 7 },
        { out[1].body, out[1].id, out[1].key, out[1].type, out[1].priority })
      assert.same({ a = "1" }, out[1].headers)
      assert.equal(0, #messages:messages "in")
    end)

    it("sends it to several channels, also of other connections, with another key and more headers", function()
      start [[
        local other = mw.connect(mw.env "BROKER_URL" .. "-other")
        mw.pipeline "f" { from = broker:channel "in", handler = "forward",
          options = { to = { "one", other:channel "two" }, key = "user.id", headers = { via = "f", a = "2" } } }]]
      local other = broker.open(messages.url .. "-other")
      messages:publish("in", { { '{"user":{"id":7}}', id = "m1", key = "k", headers = { a = "1" } } })
      settle()
      for _, list in ipairs { messages:messages "one", other:messages "two" } do
        assert.equal(1, #list)
        assert.equal("7", list[1].key)
        assert.same({ a = "2", via = "f" }, list[1].headers)
      end
    end)

    it("takes the key away when told so, and where the path leads nowhere", function()
      start [[
        mw.pipeline "a" { from = broker:channel "in", handler = "forward", options = { to = "a", key = false } }
        mw.pipeline "b" { from = broker:channel "in", handler = "forward", options = { to = "b", key = "nobody" } }]]
      messages:publish("in", { { "{}", key = "k" } })
      settle()
      assert.is_nil(messages:messages("a")[1].key)
      assert.is_nil(messages:messages("b")[1].key)
    end)

    it("makes a dead letter of a body that has no JSON to look for a key in", function()
      start 'mw.pipeline "f" { from = broker:channel "in", handler = "forward", options = { to = "out", key = "a" } }'
      messages:publish("in", { { "not json" } })
      settle()
      assert.equal("invalid", messages:messages("in.dead")[1].headers["mw-dead-class"])
      assert.equal(0, #messages:messages "out")
    end)

    it("refuses wrong options when the project is read", function()
      local function with(options)
        return problems('mw.pipeline "f" { from = broker:channel "in", handler = "forward"' .. options .. " }")
      end
      assert.is_nil(with ', options = { to = "out" }')
      for options, want in pairs {
        [""] = 'option "to" is missing',
        [", options = {}"] = 'option "to" is missing',
        [', options = { to = "x", keys = "a" }'] = 'unknown option "keys"; did you mean "key"?',
        [", options = { to = 7 }"] = "to must be a string or table, not a number",
        [", options = { to = {} }"] = "to must name at least one channel",
        [', options = { to = { "a", 7 } }'] = "to[2] must be a channel or its name",
        [', options = { to = "a", headers = { a = {} } }'] = "headers.a must be a string, not a table",
        [', options = { to = "a", headers = { "a" } }'] = "headers must have names",
        [', options = { to = "a", key = true }'] = "key must be a path into the data, or false",
      } do
        local why = assert(with(options), options)
        assert(why:find(want, 1, true), why)
        assert(why:find("^moonwire.lua:%d+: pipeline \"f\": handler \"forward\": "), why)
      end
    end)
  end)

  describe("log", function()
    it("writes one line per message, with the fields that are asked for", function()
      local dir = project [[
        mw.pipeline "watch" { from = broker:channel "in", handler = "log",
          options = { level = "warn", text = "seen", fields = { "user.id", "list", "gone" } } }]]
      local url = "embedded:" .. dir .. "/data"
      for _, body in ipairs { '{"user":{"id":7},"list":[1,2]}', "not json" } do
        local sent = process.run { binary, "publish", "in", body, "--key", "k", "--broker", url }
        assert(sent.code == 0, sent.stderr)
      end
      local ran = process.run { binary, "run", dir, "--once", "--log", "json", env = { BROKER_URL = url } }
      assert(ran.code == 0, ran.stderr)
      local lines = {}
      for text in ran.stderr:gmatch "[^\n]+" do
        local line = json.decode(text)
        if line.msg == "seen" then lines[#lines + 1] = line end
      end
      assert.equal(2, #lines)
      table.sort(lines, function(a, b) return a.bytes > b.bytes end)
      assert.same({ "warn", "watch", "in", "k", 30, 7, "[1,2]" },
        { lines[1].level, lines[1].pipeline, lines[1].channel, lines[1].key, lines[1].bytes, lines[1]["user.id"],
          lines[1].list })
      assert.is_nil(lines[1].gone)
      assert.is_nil(lines[2]["user.id"])
    end)

    it("takes nothing away from other pipelines", function()
      start [[
        mw.pipeline "watch" { from = broker:channel "in", handler = "log" }
        mw.pipeline "work" { from = broker:channel "in", handler = "forward", options = { to = "out" } }]]
      messages:publish("in", { { "a" }, { "b" } })
      settle()
      assert.equal(2, #messages:messages "out")
      for _, p in ipairs(app:status()) do assert.equal(2, p.handled) end
    end)

    it("refuses wrong options when the project is read", function()
      for options, want in pairs {
        ['{ level = "loud" }'] = "level must be debug, info, warn or error",
        ["{ fields = { 7 } }"] = "fields[1] must be a path",
        ["{ feilds = {} }"] = 'unknown option "feilds"; did you mean "fields"?',
      } do
        local pipeline = 'mw.pipeline "l" { from = broker:channel "in", handler = "log", options = %s }'
        local why = problems(pipeline:format(options))
        assert(why and why:find(want, 1, true), why)
      end
    end)
  end)

  describe("webhook", function()
    it("retries an endpoint that is not there, then gives up with the reason", function()
      local port = process.free_port()
      start(([[mw.pipeline "hook" { from = broker:channel "in", handler = "webhook",
        options = { url = "http://127.0.0.1:%d/" }, retry = { attempts = 2, base = 0.01 } }]]):format(port))
      messages:publish("in", { { "{}", id = "m1" } })
      settle()
      local letter = messages:messages("in.dead")[1]
      assert.same({ "transient", "2" }, { letter.headers["mw-dead-class"], letter.headers["mw-dead-attempts"] })
      assert(letter.headers["mw-dead-last-error"]:find "refused", letter.headers["mw-dead-last-error"])
    end)

    it("needs a URL when the project is read", function()
      local why = problems 'mw.pipeline "hook" { from = broker:channel "in", handler = "webhook" }'
      assert(why and why:find("url must be an http:// or https:// URL, not missing", 1, true), why)
    end)
  end)
end)
