-- SASL OAUTHBEARER with tokens from the project: refused where it cannot work, renewed before they end, asked of the
-- new function after a reload, and clear about what went wrong. The broker takes unsecured JWTs, and cuts a connection
-- when the token that it began with has ended.
local C = require "moonwire.internal.cdef"
local broker = require "spec.support.broker"
local client = require "spec.support.servers.kafka_client"
local clock = require "spec.support.wait"
local kafka = require "spec.support.servers.kafka"
local process = require "spec.support.process"
local supervised = require "spec.support.supervised"
local tokens = require "spec.support.servers.tokens"

C.mw_log_setup(0, 9)

local LATE = supervised.late
local LIFE = 5 -- seconds that a token lives

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect("%s", {
  ["queued.max.messages.kbytes"] = 1, -- fetchers are woken for each message, which must not disturb the tokens
  ["security.protocol"] = "sasl_plaintext", ["sasl.mechanisms"] = "OAUTHBEARER", %s
})
broker:topology { topics = { ["in"] = { partitions = 6 }, twice = {} } }
mw.pipeline "p" { from = broker:channel "in", handler = "handlers.p" }
mw.pipeline "once" { from = broker:channel "twice", handler = "handlers.once", exactly_once = true }
]]

local TOKEN = [[
local mw = require "moonwire"
local jwt = require "jwt"
local calls, file = 0, assert(io.open(%q, "a"))
return function()
  calls = calls + 1
  file:write(%q, "\n")
  file:flush()
  %s
  return {
    token = jwt(mw.now(), %d), expires = math.floor(mw.now()) + %d, principal = "me", extensions = { traceId = "a b" },
  }
end
]]

-- As a user has it: from a server.
local BY_HTTP = [[
local mw = require "moonwire"
return function()
  local reply = mw.http.post(%q, nil, { timeout = 5, form = { grant_type = "client_credentials", client_id = %q } })
  if not reply.ok then error(("the token server answered %%d: %%s"):format(reply.status, reply.body), 0) end
  local given = reply:json()
  return { token = given.access_token, expires = mw.now() + given.expires_in }
end
]]

local JWT = assert(io.open(os.getenv "MOONWIRE_ROOT" .. "/spec/support/jwt.lua")):read "*a"

local P = [[function M.handle(msg) trace("done", msg) end]]
local ONCE = [[
local mw = require "moonwire"
return { handle = function(msg) mw.publish("out", msg.body, { id = msg.id }) end }
]]

local server, port

local function start_server()
  port = process.free_port()
  local of = "listener.name.sasl_plaintext.oauthbearer."
  server = assert(kafka.new {
    sasl = { port = port },
    properties = table.concat({
      "sasl.enabled.mechanisms=OAUTHBEARER",
      of .. "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        .. 'unsecuredLoginStringClaim_sub="broker";',
      of .. "sasl.server.callback.handler.class="
        .. "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
        .. "OAuthBearerUnsecuredValidatorCallbackHandler",
      of .. ("connections.max.reauth.ms=%d"):format(LIFE * 1000),
    }, "\n"),
  })
end

local function scene(prefix, token, workers)
  local url = ("kafka://127.0.0.1:%d/%s"):format(port, prefix)
  client.create(server.bootstrap, { [prefix .. "in"] = { partitions = 6 }, [prefix .. "twice"] = { partitions = 1 },
    [prefix .. "out"] = { partitions = 1 } })
  local self = supervised.scene { handler = P, flags = { "--workers", tostring(workers or 0) }, files = {
    ["moonwire.lua"] = MAIN:format(url, 'token = require "token"'), ["token.lua"] = token, ["jwt.lua"] = JWT,
    ["handlers/once.lua"] = ONCE,
  } }
  self.outside = broker.open(("kafka://%s/%s"):format(server.bootstrap, prefix))
  return self
end

local function list(from, count)
  local made = {}
  for i = 1, count do made[i] = { "x", id = ("m%d"):format(from + i), key = tostring(i % 7) } end
  return made
end

-- How often the functions were asked, by the word they leave.
local function calls(path, word)
  local file, count = io.open(path), 0
  for line in file and file:lines() or function() end do
    if line == word then count = count + 1 end
  end
  if file then file:close() end
  return count
end

local function check(options)
  local self = supervised.scene { handler = P, files = {
    ["moonwire.lua"] = MAIN:format("kafka://127.0.0.1:1/", options), ["handlers/once.lua"] = ONCE,
  } }
  local ran = self:ask("check")
  assert.equal(78, ran.code)
  return ran.stdout .. ran.stderr
end

describe("an OAUTHBEARER token", function()
  it("is asked for by `check`, and only where it can be used", function()
    assert.matches("moonwire.lua:2: mw.connect: sasl.mechanisms=OAUTHBEARER needs a token", check "", 1, true)
    assert.matches("option token must be a function", check 'token = "abc"', 1, true)
    assert.matches("leave one of the two out",
      check 'token = print, ["enable.sasl.oauthbearer.unsecure.jwt"] = true', 1, true)
    local flags = "security.protocol=sasl_ssl&sasl.mechanisms="
    for _, url in ipairs { "OAUTHBEARER", "OAUTHBEARER&token=function" } do
      local ran = process.run { { supervised.binary, "publish", "in", "x", "--broker", "kafka://127.0.0.1:1/?"
        .. flags .. url } }
      assert.equal(64, ran.code)
      assert.matches("takes its token from a function of a project", ran.stderr, 1, true)
    end
  end)

  if kafka.shared().mock then
    it("needs a real broker", function() pending "no Kafka broker here" end)
    return
  end

  setup(start_server)
  teardown(function() server:stop() end)

  it("is renewed before it ends, for every handle, and after a reload by the new function", function()
    local asked = process.tmpdir() .. "/asked"
    local s = scene("renew.", TOKEN:format(asked, "old", "mw.sleep(0.05)", LIFE, LIFE))
    finally(function() assert(s.child:stop(15) == 0, s.child:stderr()) end)
    s:start()
    local sent = 0
    local function wave()
      s.outside:publish("in", list(sent, 20))
      s.outside:publish("twice", list(sent, 5))
      sent = sent + 20
      clock.sleep(0.2) -- the tokens need their time
      clock.until_(function() return s.trace:count "done" >= sent end, 30 * LATE, "the messages: " .. s.child:stderr())
    end
    repeat wave() until calls(asked, "old") >= 4 -- far beyond the life of the first
    local shown = s:ask("topology", "plan", "--json")
    assert.equal(0, shown.code, shown.stdout .. shown.stderr)
    assert.matches('"same"', shown.stdout)

    local file = assert(io.open(s.dir .. "/token.lua", "wb"))
    file:write(TOKEN:format(asked, "new", "", LIFE, LIFE))
    file:close()
    assert.equal(0, s:ask("reload").code)
    clock.until_(function() return calls(asked, "new") >= 1 end, 15 * LATE, "the new function")
    local before = calls(asked, "old")
    repeat wave() until calls(asked, "new") >= 4
    assert.equal(before, calls(asked, "old"))

    local seen = {}
    for _, line in ipairs(s.trace:of "done") do seen[line.id] = true end
    for i = 1, sent do assert.is_true(seen["m" .. i], "m" .. i .. " is missing") end
    broker.turn_until(function() return #s.outside:messages "out" >= sent / 4 end, 30 * LATE, function()
      return ("%d of %d: %s"):format(#s.outside:messages "out", sent / 4, s.child:stderr())
    end)
    assert.equal(sent / 4, #s.outside:messages "out")
  end)

  it("says what is wrong with it, tries again, and loses nothing", function()
    local asked = process.tmpdir() .. "/asked"
    local s = scene("wrong.", TOKEN:format(asked, "call", [[
      if calls == 1 then error "the identity provider is down" end
      if calls == 2 then return 42 end
      if calls == 3 then return { token = "abc", expire = 5 } end
      if calls == 4 then return { token = jwt(mw.now(), -100), expires = mw.now() + 3600 } end]], 3600, 3600))
    finally(function() assert(s.child:stop(15) == 0, s.child:stderr()) end)
    s.outside:publish("in", list(0, 50))
    s:start()
    s:see "the token function: token.lua:%d+: the identity provider is down"
    s:see "the token function: it must return { token = text, expires = seconds since 1970 }, not number"
    s:see "the token function: unknown field expire; did you mean expires%?"
    clock.until_(function()
      local connection = s:status().connections[1]
      return (connection.error or ""):find "invalid_token" or calls(asked, "call") > 4 and error "nothing in status"
    end, 20 * LATE, "status to tell of the refusal: " .. s.child:stderr())
    clock.until_(function() return s.trace:count "done" == 50 end, 30 * LATE, "the messages: " .. s.child:stderr())
    local connection = s:status().connections[1]
    assert.equal("up", connection.state)
  end)

  local function save(s, path, text)
    local file = assert(io.open(s.dir .. "/" .. path, "wb"))
    file:write(text)
    file:close()
  end

  it("comes from a server over HTTP, for each of several workers, through its outage and through canaries", function()
    local provider, workers = tokens.start(LIFE), 3
    finally(function() provider:stop() end)
    local s = scene("http.", BY_HTTP:format(provider.url, "old"), workers)
    local sent = 0
    local function asked(name)
      local count = 0
      for _, body in ipairs(provider:asked()) do
        assert.matches("grant_type=client_credentials", body, 1, true)
        if body:find("client_id=" .. name, 1, true) then count = count + 1 end
      end
      return count
    end
    local function wave()
      s.outside:publish("in", list(sent, 20))
      s.outside:publish("twice", list(sent, 4))
      sent = sent + 20
      clock.sleep(0.2)
    end
    local function arrive()
      clock.until_(function() return s.trace:count "done" >= sent end, 90 * LATE, function()
        return ("%d messages, %d came: %s"):format(sent, s.trace:count "done", s.child:stderr())
      end)
    end
    s:start()
    s:see "all workers started"
    repeat wave() until asked "old" >= 3 * workers -- each worker asks by itself, again and again
    arrive()

    provider:say "refuse" -- for longer than a token lives
    local before = asked "old"
    s:see 'the token function: the token server answered 401: {\\"error\\":\\"invalid_client\\"}'
    repeat wave() until asked "old" >= before + 2 * workers
    local last -- the broker may have had the last word, about a token that ended
    clock.until_(function()
      wave()
      last = s:status().connections[1].error
      return last:find("the token server answered 401", 1, true)
    end, 20 * LATE, function() return last end)
    provider:say "break"
    s:see "the token server answered 500"
    provider:say "hang"
    s:see "the token function: [^\n]*timed out"
    provider:say "give"
    arrive()

    -- worse code is rolled back; its function is never asked
    save(s, "token.lua", BY_HTTP:format(provider.url, "bad"))
    save(s, "handlers/p.lua", "return { handle = function() error 'worse' end }")
    local reload = process.spawn { { supervised.binary, "reload", "--canary", "50%", "--for", "60s", "--least", "10" },
      cwd = s.dir }
    repeat wave() until not reload:alive()
    assert.is_true(reload:wait(1) ~= 0, reload:stdout())
    assert.matches("rolled back", reload:stdout() .. reload:stderr())
    before = asked "old"
    repeat wave() until asked "old" >= before + workers
    arrive()
    assert.equal(0, asked "bad")

    -- good code asks its own function as soon as it is the only one
    save(s, "token.lua", BY_HTTP:format(provider.url, "new"))
    save(s, "handlers/p.lua", require("spec.support.project").handler(P))
    reload = process.spawn { { supervised.binary, "reload", "--canary", "50%", "--for", "3s", "--least", "5" },
      cwd = s.dir }
    repeat wave() until not reload:alive()
    assert.equal(0, (reload:wait(1)), reload:stdout() .. reload:stderr() .. s.child:stderr():sub(-4000))
    clock.until_(function() return asked "new" >= workers end, 15 * LATE, "the new function, in every worker")
    before = asked "old"
    repeat wave() until asked "new" >= 3 * workers
    assert.equal(before, asked "old")
    arrive()
    -- A commit is answered before its marks stand in the partitions: readers see what it wrote a little later.
    clock.until_(function() return #s.outside:messages "out" >= sent / 5 end, 90 * LATE, function()
      return ("%d of %d published: %s"):format(#s.outside:messages "out", sent / 5, s.child:stderr():sub(-4000))
    end)
    assert.equal(0, (s.child:stop(20)), s.child:stderr())

    local seen = {}
    for _, line in ipairs(s.trace:of "done") do seen[line.id] = true end
    for i = 1, sent do assert.is_true(seen["m" .. i], "m" .. i .. " is missing") end
    assert.equal(sent / 5, #s.outside:messages "out") -- exactly once, through all of it
  end)

  it("can be librdkafka's own", function()
    client.create(server.bootstrap, { ["own.out"] = { partitions = 1 } })
    local b = broker.open(("kafka://127.0.0.1:%d/own.?security.protocol=sasl_plaintext&sasl.mechanisms=OAUTHBEARER"
      .. "&enable.sasl.oauthbearer.unsecure.jwt=true&sasl.oauthbearer.config=principal%%3Dme"):format(port))
    b:publish("out", { { "hello", id = "by-itself" } })
    local found = b:messages "out"
    assert.equal("by-itself", found[#found].id)
  end)
end)
