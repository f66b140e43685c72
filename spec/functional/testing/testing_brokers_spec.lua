-- In specs memory brokers stand for the own ones of the project. What those refuse, they refuse with the same words: a
-- spec that passes must not hide what `check` or production would say.
local process = require "spec.support.process"
local project = require "spec.support.project"

local binary = os.getenv "MOONWIRE_BIN"

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect "%s"
mw.pipeline "p" { from = broker:channel("in"%s), handler = "handlers.p", %s }
]]

local SPEC = [[
local testing = require "moonwire.testing"
it("runs", function()
  local app = testing.start()
  %s
  app:stop()
end)
]]

local HANDLE = [[local mw = require "moonwire" return { handle = function(msg) %s end }]]

-- given: url, channel, settings, handler and spec, all of them code
local function make(given)
  local dir = process.tmpdir()
  process.run { "mkdir", dir .. "/handlers", dir .. "/spec" }
  project.write(dir .. "/moonwire.lua", MAIN:format(given.url or "kafka://127.0.0.1:1/", given.channel or "",
    given.settings or ""))
  project.write(dir .. "/handlers/p.lua", HANDLE:format(given.handler or ""))
  project.write(dir .. "/spec/p_spec.lua", SPEC:format(given.spec or ""))
  return dir
end

local function run(verb, dir)
  local ran = process.run { { binary, verb, dir }, timeout = 60 }
  return ran.code, ran.stdout .. ran.stderr
end

describe("a memory broker that stands for another one", function()
  for what, given in pairs {
    ["hold_key on Kafka"] = { settings = 'on_dead = "hold_key"',
      says = "need a broker that can park messages; kafka cannot" },
    ["hold_key on Redis"] = { url = "redis://127.0.0.1:1/", settings = 'on_dead = "hold_key"',
      says = "need a broker that can park messages; redis cannot" },
    ["the order of a partition, with retry topics"] = { settings = 'order = "source", retry = { topics = { 1 } }',
      says = 'retry.topics gives up the order that order = "source" promises' },
    ["retry topics elsewhere"] = { url = "redis://127.0.0.1:1/", settings = "retry = { topics = { 1 } }",
      says = "retry.topics needs Kafka; redis keeps retries itself" },
    ["retry topics that do not rise"] = { settings = "retry = { topics = { 2, 1 } }",
      says = "retry.topics must rise from one attempt to the next" },
    ["both ways of retrying at once"] = { settings = "retry = { topics = { 1 }, backoff = { 1 } }",
      says = "retry takes either backoff or topics" },
    ["both ways of retrying at once, for a class"] = {
      settings = 'retry = { classes = { busy = { topics = { 1 }, backoff = "fixed" } } }',
      says = "retry.classes.busy takes either backoff or topics" },
    ["a start that needs a log"] = { url = "redis://127.0.0.1:1/", settings = "start = { offset = 3 }",
      says = "start at a time or an offset needs a broker that keeps what was handled" },
    ["exactly once without transactions"] = { url = "amqp://127.0.0.1:1/", settings = "exactly_once = true",
      says = "exactly_once needs a broker with transactions; rabbitmq has none" },
    ["exactly once with dedupe elsewhere"] = { settings = "exactly_once = true, dedupe = true",
      says = "exactly_once and dedupe in another store cannot be one transaction" },
    ["dedupe records in Kafka"] = { settings = "dedupe = { store = broker }",
      says = "kafka cannot keep dedupe records: name another store" },
    ["retain on Kafka"] = { channel = ", { retain = { count = 5 } }",
      says = "kafka cannot keep messages that were handled: leave out retain" },
  } do
    it("refuses " .. what .. ", as `check` does", function()
      local dir = make(given)
      local code, text = run("check", dir)
      assert.equal(78, code, text)
      assert.matches(given.says, text, 1, true)
      local problem = text:match "moonwire%.lua:%d+: [^\n]*"
      code, text = run("test", dir)
      assert.equal(1, code, text)
      assert.matches(problem, text, 1, true)
    end)
  end

  local PUBLISHES = {
    handler = [[mw.publish("out", "x", { delay = 60, now = msg.body == "now" })]],
    settings = "retry = { attempts = 1 }",
    spec = [[
      app:publish("in", "now")
      app:publish("in", "with the ack")
      app:settle()
      for _, letter in ipairs(app:dead "p") do print(letter.headers["mw-dead-last-error"]) end
      assert.equal(%d, #app:dead "p")
      assert.equal(%d, #app:published "out")]],
  }

  it("refuses to publish with a delay where that is Kafka, and not where it is another", function()
    for url, dead in pairs { ["kafka://127.0.0.1:1/"] = 2, ["redis://127.0.0.1:1/"] = 0, ["embedded:data"] = 0 } do
      local code, text = run("test", make { url = url, handler = PUBLISHES.handler, settings = PUBLISHES.settings,
        spec = PUBLISHES.spec:format(dead, 2 - dead) })
      assert.equal(0, code, text)
      local _, count = text:gsub("handlers/p.lua:1: mw%.publish: delay: this broker cannot hold messages back; "
        .. "mw%.retry { after = … } delays", "")
      assert.equal(dead, count, text)
    end
  end)

  it("cannot be given a delayed message by the spec, either", function()
    local code, text = run("test", make { spec = [[app:publish("in", "x", { delay = 5 })]] })
    assert.equal(1, code)
    assert.matches("publish: delay: this broker cannot hold messages back", text, 1, true)
  end)

  it("starts where Kafka would, retries after the same delays by class, and dedupes in memory", function()
    local code, text = run("test", make {
      settings = [[start = { time = 5 }, dedupe = true, retry = { topics = { 30, 300 }, classes = {
        held = { base = 2, jitter = 0, attempts = 4 }, busy = { topics = { 5 } } } }]],
      handler = [[if msg.body ~= "good" then error(mw.error(msg.body, "no")) end]],
      spec = [[
        for _, body in ipairs { "other", "held", "busy", "good", "good" } do
          app:publish("in", body, { id = body })
        end
        app:settle()
        local delays = {}
        for _, r in ipairs(app:retries "p") do
          delays[r.class] = (delays[r.class] or "") .. (" %g"):format(r.delay)
        end
        assert.same({ other = " 30 300", held = " 2 4 8", busy = " 5" }, delays)
        assert.equal(3, #app:dead "p")
        assert.equal(1, app:handled "p")
        assert.equal(1, app:status("p").deduped)]],
    })
    assert.equal(0, code, text)
  end)
end)
