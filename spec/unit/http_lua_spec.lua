-- The Lua face of mw.http over the real runtime/http and a real loop, both loaded as a shared library; only the
-- runtime's waiting is a stand-in: wait.yield turns the loop until C completes the waiter. The peer is
-- `http_test serve` (spec/unit/http_test.c). Run: luajit /usr/bin/busted spec/unit/http_lua_spec.lua
local ffi = require "ffi"

local FLAGS = "-std=gnu11 -D_GNU_SOURCE -DMW_VERSION='\"0\"' -fno-strict-aliasing -Iruntime -g"
local SOURCES = "runtime/http/*.c runtime/base/*.c"
local LIBS = "-lcurl -lev -lm -ldl -lpthread"

local function sh(command)
  local ok = os.execute(command)
  assert(ok == 0 or ok == true, command)
end

local function read_line(command)
  local pipe = assert(io.popen(command))
  local line = pipe:read "*l"
  return line, pipe
end

describe("mw.http", function()
  local dir, lib, loop, h, http, server, pid, port, base
  local inside, cancel_after, live = true, nil, 0

  -- stand-ins for what the runtime provides
  local function stub_modules()
    package.loaded["moonwire.internal.wait"] = {
      begin = function()
        if not inside then error("only inside a handler", 0) end
        live = live + 1
        return live
      end,
      yield = function(id, cancel)
        local turns = 0
        while lib.test_completed() ~= id do
          if cancel_after and turns >= cancel_after then
            cancel()
            for _ = 1, 20 do lib.mw_loop_step(loop, 1) end
            error("the task was cancelled", 0)
          end
          lib.mw_loop_step(loop, 10)
          turns = turns + 1
        end
      end,
    }
    package.loaded["moonwire.internal.fault"] = {
      new = function(t) return setmetatable(t, { __tostring = function(self) return self.text end }) end,
    }
    package.loaded["moonwire.internal.nearest"] = function(word, list)
      for _, name in ipairs(list) do
        if name:sub(1, 3) == word:sub(1, 3) then return name end
      end
    end
    package.loaded["moonwire.json"] = {
      encode = function(value)
        if type(value) == "function" then error "a function" end
        return type(value) == "table" and ("{\"a\":%d}"):format(value.a) or tostring(value)
      end,
      decode = function(text)
        if text ~= "hello" then return nil, "bad at 1" end
        return { decoded = text }
      end,
    }
  end

  setup(function()
    dir = read_line "mktemp -d /tmp/mw_http_lua.XXXXXX"
    local stub = assert(io.open(dir .. "/stub.c", "w"))
    stub:write [[
      #include <signal.h>
      struct mw_vm;
      static double last;
      void mw_vm_complete(struct mw_vm *vm, double waiter);
      double test_completed(void);
      void mw_vm_complete(struct mw_vm *vm, double waiter) { (void)vm; last = waiter; }
      double test_completed(void) { return last; }
    ]]
    stub:close()
    sh(("gcc -shared -fPIC %s %s %s/stub.c -o %s/lib.so %s"):format(FLAGS, SOURCES, dir, dir, LIBS))
    sh(("gcc %s spec/unit/http_test.c %s -o %s/http_test %s"):format(FLAGS, SOURCES, dir, LIBS))
    local line
    line, server = read_line("exec " .. dir .. "/http_test serve")
    pid, port = line:match "^(%d+) (%d+)$"
    base = "http://127.0.0.1:" .. port

    stub_modules()
    package.loaded["moonwire.http"] = nil
    local build = dofile "lua/moonwire/http.lua"
    if not pcall(ffi.typeof, "mw_loop") then
      ffi.cdef [[
        typedef struct mw_loop mw_loop;
        mw_loop *mw_loop_new(void);
        void mw_loop_free(mw_loop *l);
        void mw_loop_step(mw_loop *l, int64_t max_wait_ms);
        mw_http *mw_http_new(mw_loop *);
        void mw_http_free(mw_http *);
        double test_completed(void);
      ]]
    end
    lib = ffi.load(dir .. "/lib.so")
    loop = lib.mw_loop_new()
    h = lib.mw_http_new(loop)
    http = build(nil, h, lib)
  end)

  teardown(function()
    collectgarbage()
    collectgarbage()
    lib.mw_http_free(h)
    lib.mw_loop_free(loop)
    sh("kill " .. pid)
    server:close()
    sh("rm -r " .. dir)
  end)

  before_each(function() inside, cancel_after = true, nil end)

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
    local reply = http.get(base .. "/hello")
    assert.same({ decoded = "hello" }, reply:json())
    assert.equal(reply:json(), reply:json())
    has(failure(function() return http.get(base .. "/slow"):json() end), "is not JSON: bad at 1; it begins with \"slow\"")
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
    inside = false
    has(failure(http.get, base .. "/hello"), "only inside a handler")
  end)

  it("frees the request when the task is cancelled", function()
    cancel_after = 3
    has(failure(http.get, base .. "/silent"), "cancelled")
    cancel_after = nil
    assert.equal(200, http.get(base .. "/hello").status)
  end)

  it("sends nothing where it cannot wait", function()
    local wait = package.loaded["moonwire.internal.wait"]
    local real = wait.yield
    wait.yield = function() error("not in a coroutine of your own", 0) end
    local problem = failure(http.get, base .. "/hello")
    wait.yield = real
    assert.equal("not in a coroutine of your own", problem)
  end)

  it("declares what the C header declares, which FFI can read", function()
    local function body(path)
      local text = assert(io.open(path)):read "*a"
      return (text:match("typedef struct mw_http_spec (%b{})"):gsub("/%*.-%*/", ""):gsub("%s+", " "))
    end
    assert.equal(body "runtime/http/http.h", body "lua/moonwire/http.lua")
    sh [[luajit -e 'local t = io.open("runtime/http/http.h"):read "*a"
      require("ffi").cdef((t:gsub("#[^\n]*\n", "\n")))']]
  end)

  it("survives the collector at any moment, compiled or not", function()
    local pause = collectgarbage("setpause", 0)
    for i = 1, 300 do
      local reply = http.post(base .. "/echo", ("%d"):format(i), { headers = { ["X-N"] = "n" .. i }, query = { i = i } })
      has(reply.body, "/echo?i=" .. i .. " ")
      has(reply.body, "X-N: n" .. i .. "\r\n")
      assert.equal(tostring(i), reply.body:match "\r\n\r\n(.*)$")
    end
    collectgarbage("setpause", pause)
  end)
end)
