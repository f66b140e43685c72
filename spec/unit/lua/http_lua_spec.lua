-- The Lua face of mw.http on the real runtime: each call runs as a task of its own, and the loop turns until it is
-- over. The peer is
-- `http_test serve` (spec/unit/c/http_test.c), built with the other C tests.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local process = require "spec.support.process"
local runtime = require "moonwire.internal.runtime"
local wait = require "moonwire.internal.wait"

local function server_program()
  local build = os.getenv "MW_BUILD" or os.getenv("MOONWIRE_BIN"):match "^(.*)/"
  local program = build .. "/c-tests/http_test"
  if not io.open(program) then
    assert.equal(0, process.run({ "cmake", "--build", build, "--target", "c_tests", timeout = 300 }).code)
  end
  return program
end

describe("mw.http", function()
  local http, server, base, port, real
  local cancel_after

  --- Runs fn as a handler would: waiting yields; what it raised or returned comes back here.
  local function as_task(fn, ...)
    local arguments, results, failure, over = { n = select("#", ...), ... }, nil, nil, false
    local task = runtime.spawn(function()
      results = { fn(unpack(arguments, 1, arguments.n)) }
    end, nil, function(err) failure, over = err, true end)
    local turns = 0
    while not over do
      core.step(10)
      turns = turns + 1
      if cancel_after and turns >= cancel_after then
        wait.cancel(task)
        for _ = 1, 20 do core.step(1) end
        error("the task was cancelled", 0)
      end
      assert(turns < 3000, "no answer in 30 s")
    end
    if failure ~= nil then error(failure, 0) end
    return unpack(results)
  end

  setup(function()
    server = process.spawn { server_program(), "serve", stdout = "pipe" }
    for _ = 1, 500 do
      port = server:stdout():match "^%d+ (%d+)"
      if port then break end
      core.step(10)
    end
    base = "http://127.0.0.1:" .. assert(port, "the test server did not start")
    real = require "moonwire.http"(wait.vm, C.mw_vm_http(wait.vm), C)
    http = setmetatable({}, {
      __index = function(_, name)
        return function(...) return as_task(real[name], ...) end
      end,
    })
  end)

  teardown(function()
    collectgarbage()
    collectgarbage()
    server:stop()
  end)

  before_each(function() cancel_after = nil end)

  local function sent(reply) return reply.body:lower() end
  local function has(text, part)
    assert(text:find(part, 1, true), ("%q is not in %q"):format(part, text))
  end
  local function lacks(text, part)
    assert(not text:find(part, 1, true), ("%q is in %q"):format(part, text))
  end
  --- Runs f, expects it to fail, gives the error.
  local function failure(f, ...)
    local ok, problem = pcall(f, ...)
    assert.is_false(ok)
    return problem
  end

  it("gets a reply", function()
    local reply = http.get(base .. "/hello")
    assert.equal(200, reply.status)
    assert.is_true(reply.ok)
    assert.equal("hello", reply.body)
    assert.equal("a, b", reply.headers["x-twice"])
    assert.equal("a, b", reply.headers["X-TWICE"])
    assert.is_nil(reply.headers.nothing)
    assert.is_true(reply.elapsed > 0 and reply.elapsed < 5)
  end)

  it("takes any status for a reply", function()
    local reply = http.get(base .. "/missing")
    assert.equal(404, reply.status)
    assert.is_false(reply.ok)
  end)

  it("sends every method", function()
    for _, name in ipairs { "get", "post", "put", "patch", "delete" } do
      has(http[name](base .. "/echo").body, name:upper() .. " /echo HTTP/1.1\r\n")
    end
    assert.equal("", http.head(base .. "/empty").body)
    has(http.request { method = "options", url = base .. "/echo" }.body, "OPTIONS /echo")
    has(http.request { url = base .. "/echo" }.body, "GET /echo")
  end)

  it("sends a string as it is and a table as JSON", function()
    local reply = http.post(base .. "/echo", "a\0b")
    assert.equal("a\0b", reply.body:sub(-3))
    lacks(sent(reply), "content-type")
    reply = http.post(base .. "/echo", { a = 7 })
    has(sent(reply), "content-type: application/json\r\n")
    assert.equal('{"a":7}', reply.body:match "\r\n\r\n(.*)$")
    reply = http.put(base .. "/echo", { a = 7 }, { headers = { ["Content-Type"] = "application/x-mine" } })
    has(sent(reply), "content-type: application/x-mine\r\n")
    lacks(sent(reply), "application/json")
    reply = http.post(base .. "/echo", nil, { json = false })
    assert.equal("false", reply.body:match "\r\n\r\n(.*)$")
    has(failure(http.post, base .. "/echo", nil, { json = function() end }), "cannot be encoded as JSON")
  end)

  it("encodes query and form, sorted", function()
    local values = { b = { 1, 2 }, a = "x y&z", c = true }
    local reply = http.post(base .. "/echo?first=1#end", nil, { query = values, form = values })
    has(reply.body, "POST /echo?first=1&a=x%20y%26z&b=1&b=2&c=true HTTP")
    has(sent(reply), "content-type: application/x-www-form-urlencoded\r\n")
    assert.equal("a=x%20y%26z&b=1&b=2&c=true", reply.body:match "\r\n\r\n(.*)$")
  end)

  it("sends headers from a map or a list", function()
    local reply = http.get(base .. "/echo", { headers = { ["X-A"] = "1", ["X-B"] = { "2", 3 }, "X-C: 4" } })
    has(reply.body, "X-C: 4\r\nX-A: 1\r\nX-B: 2\r\nX-B: 3\r\n")
  end)

  it("authenticates", function()
    has(http.get(base .. "/echo", { auth = { user = "me", password = "pw" } }).body, "Authorization: Basic bWU6cHc=")
    has(http.get(base .. "/echo", { bearer = "t0k" }).body, "Authorization: Bearer t0k\r\n")
    has(failure(http.get, base, { bearer = "a\nb" }), "bearer")
    has(failure(http.get, base, { auth = { name = "x" } }), "auth takes user and password")
  end)

  it("decodes JSON when asked, once", function()
    local reply = http.post(base .. "/echo", { a = { 7 } })
    reply.body = reply.body:match "\r\n\r\n(.*)$"
    assert.same({ a = { 7 } }, reply:json())
    assert.equal(reply:json(), reply:json())
    local problem = failure(function() return http.get(base .. "/slow"):json() end)
    has(tostring(problem), "is not JSON")
    has(tostring(problem), "it begins with \"slow\"")
  end)

  it("follows redirects only when told", function()
    assert.equal(302, http.get(base .. "/to").status)
    assert.equal(200, http.get(base .. "/to", { follow = true }).status)
  end)

  it("raises a transient fault, or returns it", function()
    local problem = failure(http.get, base .. "/silent", { timeout = 0.1 })
    assert.equal("transient", problem.class)
    has(tostring(problem), "mw.http.get: GET 127.0.0.1:" .. port .. ": timed out")
    local reply, text, kind = http.get(base .. "/hello", { max_bytes = 2, raise = false })
    assert.is_nil(reply)
    has(text, "larger than 2 bytes")
    assert.equal("too_large", kind)
  end)

  it("blames the caller's line for misuse", function()
    for want, call in pairs {
      ['unknown option "timout"; did you mean "timeout"?'] = function() http.get(base, { timout = 1 }) end,
      ['unknown option "zzz"'] = function() http.get(base, { zzz = 1 }) end,
      ["timeout must be a number, not a string"] = function() http.get(base, { timeout = "1" }) end,
      ["timeout must be a number of seconds above 0"] = function() http.get(base, { timeout = 0 }) end,
      ["body must be a string or table, not a number"] = function() http.post(base, 5) end,
      ["only one of body, json and form"] = function() http.post(base, "x", { json = 1 }) end,
      ["the body is given twice"] = function() http.post(base, "x", { body = "y" }) end,
      ["the URL must be a string"] = function() http.get() end,
      ["the URL is missing"] = function() http.request {} end,
      ["expected a table"] = function() http.request(base) end,
      ["must begin with http:// or https://"] = function() http.get "ftp://127.0.0.1/" end,
      ["line break or NUL"] = function() http.get(base, { headers = { X = "a\r\nEvil: 1" } }) end,
      ["a valid name"] = function() http.get(base, { headers = { ["X Y"] = "a" } }) end,
      ["method is not a token"] = function() http.request { url = base, method = "G T" } end,
      ["query.a must be"] = function() http.get(base, { query = { a = { {} } } }) end,
      ["use mw.http.request"] = function() http.get(base, { method = "PUT" }) end,
    } do
      local problem = failure(call)
      assert.equal("string", type(problem))
      has(problem, want)
      has(problem, "http_lua_spec.lua:")
    end
  end)

  it("returns an invalid URL or header like a failure with raise = false", function()
    local _, _, kind = http.get("nonsense", { raise = false })
    assert.equal("invalid", kind)
    _, _, kind = http.get(base .. "/\0", { raise = false })
    assert.equal("invalid", kind)
    _, _, kind = http.get(base, { raise = false, headers = { X = "a\0" } })
    assert.equal("invalid", kind)
  end)

  it("works inside a handler only, and starts nothing outside", function()
    has(failure(real.get, base .. "/hello"), "only inside a handler")
  end)

  it("frees the request when the task is cancelled", function()
    cancel_after = 3
    has(failure(http.get, base .. "/silent"), "cancelled")
    cancel_after = nil
    assert.equal(200, http.get(base .. "/hello").status)
  end)

  it("sends nothing where it cannot wait", function()
    local function inside_sort() table.sort({ 2, 1 }, function() real.get(base .. "/hello") end) end
    has(failure(as_task, inside_sort), "mw.http.get cannot wait inside table.sort")
  end)

  it("declares what the C header declares", function()
    local function body(path)
      local text = assert(io.open(path)):read "*a"
      return (text:match("typedef struct mw_http_spec (%b{})"):gsub("/%*.-%*/", ""):gsub("%s+", " "))
    end
    assert.equal(body "runtime/http/http.h", body "lua/moonwire/http.lua")
  end)

  it("survives the collector at any moment, compiled or not", function()
    local pause = collectgarbage("setpause", 0)
    for i = 1, 300 do
      local options = { headers = { ["X-N"] = "n" .. i }, query = { i = i } }
      local reply = http.post(base .. "/echo", ("%d"):format(i), options)
      has(reply.body, "/echo?i=" .. i .. " ")
      has(reply.body, "X-N: n" .. i .. "\r\n")
      assert.equal(tostring(i), reply.body:match "\r\n\r\n(.*)$")
    end
    collectgarbage("setpause", pause)
  end)
end)
