-- What is wrong with a project is said before anything runs: exact text, file and line, exit code 78.
-- luacheck: no max line length (the texts are the point)
local process = require "spec.support.process"
local project = require "spec.support.project"

local binary = os.getenv "MOONWIRE_BIN"

-- A project of moonwire.lua with these pipeline settings on line 5, and this handler.
local function main(settings)
  return ([[
local mw = require "moonwire"
local broker = mw.connect "memory:x"
mw.pipeline "orders" {
  from = broker:channel "orders",
  %s
}
]]):format(settings)
end

local FINE = 'return { handle = function() end }'

local function make(files)
  local dir = process.tmpdir()
  process.run { "mkdir", "-p", dir .. "/handlers", dir .. "/schemas" }
  for path, text in pairs(files) do project.write(dir .. "/" .. path, text) end
  return dir
end

local function with(settings, handler) return { ["moonwire.lua"] = main(settings), ["handlers/o.lua"] = handler or FINE } end

local CASES = {
  -- fields
  { "an unknown field, with the nearest name", with 'handler = "handlers.o", concurency = 8,',
    'moonwire.lua:5: pipeline "orders": unknown field "concurency"; did you mean "concurrency"?' },
  { "an unknown field of retry", with 'handler = "handlers.o", retry = { atempts = 3 },',
    'moonwire.lua:5: pipeline "orders": unknown field "retry.atempts"; did you mean "attempts"?' },
  { "a field that is like nothing", with 'handler = "handlers.o", buffer = { zzzzzz = 1 },',
    'moonwire.lua:5: pipeline "orders": unknown field "buffer.zzzzzz"; known are bytes, count' },
  { "a wrong type", with 'handler = "handlers.o", concurrency = "many",',
    'moonwire.lua:5: pipeline "orders": concurrency must be a whole number from 1 to 100000, got "many"' },
  { "a number out of range", with 'handler = "handlers.o", lease = 0.1,',
    'moonwire.lua:5: pipeline "orders": lease must be seconds, 1 or more, got 0.1' },
  { "a number that is none", with 'handler = "handlers.o", timeout = 0/0,',
    'moonwire.lua:5: pipeline "orders": timeout must be seconds, 0.001 or more, got nan' },
  { "a time that never ends", with 'handler = "handlers.o", timeout = 1/0,',
    'moonwire.lua:5: pipeline "orders": timeout must be seconds, 0.001 or more and at most 3.15e9 (a hundred years), got inf' },
  { "a delay that is no number", with 'handler = "handlers.o", retry = { backoff = { 1, 0/0 } },',
    'moonwire.lua:5: pipeline "orders": retry.backoff must list seconds, 0 or more; item 2 is nan' },
  { "a group with a name too long", with 'handler = "handlers.o", group = ("g"):rep(250),',
    'moonwire.lua:5: pipeline "orders": group must be a string of 1 to 249 bytes without control characters, got "ggg' },
  { "a group with a zero byte", with 'handler = "handlers.o", group = "a\\0b",',
    'moonwire.lua:5: pipeline "orders": group must be a string of 1 to 249 bytes without control characters, got "a\\0b"' },
  { "a dead-letter channel with a control character", with 'handler = "handlers.o", dead = "a\\tb",',
    'moonwire.lua:5: pipeline "orders": dead must name a channel with 1 to 249 bytes and no control characters' },
  { "a key path with a hole", with 'handler = "handlers.o", key = "a..b",',
    'moonwire.lua:5: pipeline "orders": key must be a path into the data, such as "customer.id", or a function of the message' },
  { "a dedupe key with a hole", with 'handler = "handlers.o", dedupe = { key = "a." },',
    'moonwire.lua:5: pipeline "orders": dedupe.key must be a path into the data, such as "order.id", or a function of the message' },
  { "a pipeline without its table", { ["moonwire.lua"] = 'local mw = require "moonwire"\nmw.pipeline "orders"\n' },
    'moonwire.lua:2: mw.pipeline: write mw.pipeline "orders" { … }' },
  { "an error that is a table", { ["moonwire.lua"] = 'error { code = 5 }\n' },
    "moonwire.lua: error() was called with a table instead of a text" },
  { "an error that is nothing", with('handler = "handlers.o",', "error()"),
    'moonwire.lua:5: pipeline "orders": handlers/o.lua: error() was called with nothing instead of a text' },
  { "a wrong choice", with 'handler = "handlers.o", order = "keys",',
    'moonwire.lua:5: pipeline "orders": order must be one of "key", "source", "none", got "keys"; did you mean "key"?' },
  { "a backoff that is none", with 'handler = "handlers.o", retry = { backoff = "linear" },',
    'moonwire.lua:5: pipeline "orders": retry.backoff must be "exponential", "fixed" or a list such as {1, 2, 4}, got linear' },
  { "a class that is no policy", with 'handler = "handlers.o", retry = { classes = { odd = 5 } },',
    'moonwire.lua:5: pipeline "orders": retry.classes.odd must be "dead" or a table, got 5' },
  { "a missing from", { ["moonwire.lua"] = 'local mw = require "moonwire"\nmw.connect "memory:x"\nmw.pipeline "orders" {\n'
      .. '  handler = "handlers.o",\n}\n', ["handlers/o.lua"] = FINE },
    'moonwire.lua:3: pipeline "orders": from is missing: name the channel it reads, such as broker:channel "orders"' },
  { "a missing handler field", with "", 'moonwire.lua:3: pipeline "orders": handler is missing: name the module, such as '
      .. '"handlers.orders"' },
  { "a setting that would lose messages", with 'handler = "handlers.o", dead = false,',
    'dead = false would lose messages: leave it out, and they go to the channel\'s name + ".dead"' },
  { "dead letters into their own channel", with 'handler = "handlers.o", dead = "orders",',
    'moonwire.lua:5: pipeline "orders": dead letters would go back into the channel they came from' },
  { "a guarantee the settings cannot keep", with 'handler = "handlers.o", order = "none", on_dead = "hold_key",',
    'pipeline "orders": on_dead holds keys, but order = "none" has none: set order = "key"' },
  { "batch without handle_batch", with 'handler = "handlers.o", batch = { size = 5 },',
    'moonwire.lua:5: pipeline "orders": batch needs a handler with handle_batch(messages)' },
  { "two pipelines of one name", { ["moonwire.lua"] = main 'handler = "handlers.o",' ..
      'mw.pipeline "orders" { from = broker:channel "a", handler = "handlers.o" }\n', ["handlers/o.lua"] = FINE },
    'moonwire.lua:7: mw.pipeline: there are two pipelines named "orders"' },
  { "no pipeline at all", { ["moonwire.lua"] = "" },
    'moonwire.lua: declares no pipeline: write mw.pipeline "name" { from = …, handler = … }' },
  { "no moonwire.lua", {}, "there is no moonwire.lua; `moonwire new` makes a project" },
  { "a misspelt function of the library", { ["moonwire.lua"] = 'local mw = require "moonwire"\nmw.conect "memory:x"\n' },
    "moonwire.lua:2: mw.conect does not exist; did you mean mw.connect?" },

  -- handlers
  { "a handler that is not there", with 'handler = "handlers.missing",',
    'moonwire.lua:5: pipeline "orders": module "handlers.missing" not found: there is no handlers/missing.lua in the project' },
  { "a handler without handle", with('handler = "handlers.o",', "return { handel = function() end }"),
    'moonwire.lua:5: pipeline "orders": handler "handlers.o" has neither handle nor handle_batch; is "handel" meant?' },
  { "a handler that is no table", with('handler = "handlers.o",', "return 7"),
    'moonwire.lua:5: pipeline "orders": handler "handlers.o" must return a table with a function handle, got a number' },
  { "a handler that returns nothing", with('handler = "handlers.o",', "local x = 1"),
    'moonwire.lua:5: pipeline "orders": handler "handlers.o" must return a table with a function handle, got nothing' },
  { "a handler with both ways", with('handler = "handlers.o",',
      "return { handle = function() end, handle_batch = function() end }"),
    'handler "handlers.o" has both handle and handle_batch: one of them would never run' },
  { "a global by accident", with('handler = "handlers.o",', "counter = 0\nreturn { handle = function() end }"),
    'moonwire.lua:5: pipeline "orders": handlers/o.lua:1: "counter" would become a global: write `local counter`' },
  { "an unknown global", with('handler = "handlers.o",', "\nlocal n = tonumbr '1'\nreturn { handle = function() end }"),
    'handlers/o.lua:2: undefined variable "tonumbr"; did you mean "tonumber"?' },
  { "a syntax error", with('handler = "handlers.o",', "return { handle = function( end }"),
    "moonwire.lua:5: pipeline \"orders\": handlers/o.lua:1: <name> or '...' expected near 'end'" },
  { "a syntax error in moonwire.lua", { ["moonwire.lua"] = "local mw = \n" },
    "moonwire.lua:2: unexpected symbol near '<eof>'" },
  { "bytecode", with('handler = "handlers.o",', string.dump(function() return {} end)),
    'moonwire.lua:5: pipeline "orders": handlers/o.lua: is bytecode; only source text is loaded' },
  { "a module that requires itself", with('handler = "handlers.o",', 'return require "handlers.o"'),
    'module "handlers.o" requires itself, through handlers/o.lua' },
  { "a module out of the project", with 'handler = "../../etc/passwd",', '"../../etc/passwd" is not a module name' },

  -- environment
  { "a setting that is not set", { ["moonwire.lua"] = 'local mw = require "moonwire"\nmw.connect(mw.env "NOT_SET_ANYWHERE")\n' },
    "moonwire.lua:2: mw.env: NOT_SET_ANYWHERE is not set, and there is no default: set it in the environment or in .env" },
  { "a .env that is none", { ["moonwire.lua"] = main 'handler = "handlers.o",', ["handlers/o.lua"] = FINE,
                             [".env"] = "A=1\nwhat is this\n" }, '.env:2: expected NAME=value, got "what is this"' },

  -- schemas
  { "a schema that is not there", with('handler = "handlers.o",',
      'return { schema = "schemas/none.json", handle = function() end }'),
    'handler "handlers.o": schema: ' },
  { "a schema that is not JSON", { ["moonwire.lua"] = main 'handler = "handlers.o",',
      ["handlers/o.lua"] = 'return { schema = "schemas/o.json", handle = function() end }', ["schemas/o.json"] = "{ no" },
    'handler "handlers.o": schemas/o.json: is not JSON: ' },
  { "a schema with a misspelt keyword value", { ["moonwire.lua"] = main 'handler = "handlers.o",',
      ["handlers/o.lua"] = 'return { schema = "schemas/o.json", handle = function() end }',
      ["schemas/o.json"] = '{ "type": "strng" }' }, 'handler "handlers.o": schemas/o.json' },
  { "a schema file that is only a number", { ["moonwire.lua"] = main 'handler = "handlers.o",',
      ["handlers/o.lua"] = 'return { schema = "schemas/o.json", handle = function() end }', ["schemas/o.json"] = "5" },
    'handler "handlers.o": schemas/o.json: must be a schema: an object, true or false' },
  { "a handler that yields while it is loaded", with('handler = "handlers.o",', "coroutine.yield()"),
    "handlers/o.lua:1: coroutine.yield: only inside a coroutine of your own; to wait, use mw.sleep" },
  { "a handler that asks the web while it is loaded",
    with('handler = "handlers.o",', 'require("moonwire").http.get "http://localhost:1/"'),
    "handlers/o.lua:1: mw.http.get: only inside a handler: there is nothing to wait in here" },
  { "a zero byte in .env", { ["moonwire.lua"] = main 'handler = "handlers.o",', ["handlers/o.lua"] = FINE,
      [".env"] = "A=1\nB=\0\n" }, ".env:2: there is a zero byte in it; is it a text file?" },
  { "a schema of a wrong kind", with('handler = "handlers.o",', "return { schema = 5, handle = function() end }"),
    'handler "handlers.o": schema must be the path of a JSON Schema, or the schema as a table' },

  -- brokers
  { "an unknown broker, with the nearest", { ["moonwire.lua"] = 'local mw = require "moonwire"\nmw.connect "memry:x"\n' },
    'moonwire.lua:2: mw.connect: unknown broker "memry:"; did you mean "memory:"?' },
  { "a URL that is none", { ["moonwire.lua"] = 'local mw = require "moonwire"\nmw.connect "just words"\n' },
    'moonwire.lua:2: mw.connect: "just words" is not a broker URL: it must begin with a scheme, such as embedded:data' },
  { "a URL with an unknown option", { ["moonwire.lua"] = 'local mw = require "moonwire"\nmw.connect "embedded:data?sze=1GB"\n' },
    'moonwire.lua:2: mw.connect: unknown option "sze" in the URL; did you mean "size"?' },
  { "a URL with a wrong option", { ["moonwire.lua"] = 'local mw = require "moonwire"\nmw.connect "embedded:data?size=1KB"\n' },
    "moonwire.lua:2: mw.connect: option size=1KB: expected a size from 4MB to 16TB, such as 512MB" },
  { "a URL with an option twice",
    { ["moonwire.lua"] = 'local mw = require "moonwire"\nmw.connect "embedded:data?size=4MB&size=8MB"\n' },
    'moonwire.lua:2: mw.connect: option "size" stands twice in the URL' },
  { "a URL that is no string", { ["moonwire.lua"] = 'local mw = require "moonwire"\nmw.connect(nil)\n' },
    "moonwire.lua:2: mw.connect: expected a broker URL, such as embedded:data" },
}

describe("a project that is wrong", function()
  teardown(function() process.cleanup() end)

  for _, case in ipairs(CASES) do
    it("is refused: " .. case[1], function()
      local dir = make(case[2])
      for _, verb in ipairs { "check", "run" } do
        local result = process.run { { binary, verb, dir }, timeout = 10 }
        assert.is_false(result.timeout, verb .. " started it")
        assert.equal(78, result.code, verb .. ": " .. result.stderr)
        assert.is_truthy(result.stderr:find(case[3], 1, true), verb .. " said: " .. result.stderr)
        assert.is_nil(result.stderr:find("stack traceback", 1, true), verb .. " shows its insides: " .. result.stderr)
      end
    end)
  end

  it("shows all its problems at once", function()
    local dir = make(with 'handler = "handlers.o", concurency = 8, order = 5,')
    local result = process.run { binary, "check", dir }
    local _, lines = result.stderr:gsub("\n", "\n")
    assert.equal(2, lines, result.stderr)
  end)
end)

describe("a hostile broker URL", function()
  teardown(function() process.cleanup() end)

  local URLS = {
    "embedded:", "embedded:?size=1", "embedded:x?size=-1", "embedded:x?size=99999999999999999999TB", "embedded:x?siez=1GB",
    "embedded:x?size", "embedded:x?=1", "embedded://host/x", "embedded:/dev/null", "embedded:/proc/nothing", "memory:x?a=b",
    "memory:%zz", "memory:a%00b", ":", "://", "a" .. ("b"):rep(5000) .. ":x", "memory:" .. ("%41"):rep(3) .. "%4",
    "MEMORY:x", "embedded:" .. ("x/"):rep(5000), "embedded:x?" .. ("a=1&"):rep(100), "memory\n:x", "embedded:a\1b?size=x",
  }

  for i, url in ipairs(URLS) do
    it(("is refused with a reason: %d %s"):format(i, url:sub(1, 40):gsub("%c", "?")), function()
      local dir = make(with 'handler = "handlers.o",')
      project.write(dir .. "/moonwire.lua", (main 'handler = "handlers.o",'):gsub('"memory:x"', function()
        return ("%q"):format(url)
      end))
      local result = process.run { { binary, "run", dir, "--once" }, timeout = 10 }
      assert.is_true(result.code == 78 or result.code == 69, tostring(result.code or result.signal) .. ": " .. result.stderr)
      assert.is_truthy(#result.stderr > 10)
      assert.is_nil(result.stderr:find("internal error", 1, true))
    end)
  end
end)
